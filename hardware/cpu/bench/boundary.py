"""Times one `execute` across the C boundary with a runner that computes nothing, at several batch sizes."""

from __future__ import annotations

import functools
import json
import sys
import tempfile
import timeit
from pathlib import Path

from c_executor import CExecutor, write_model

from trunnion import registry

STEPS = 2000
STUB = '''
"""A CPU whose runner computes nothing: what is left is the boundary and the executor."""
import torch
from trunnion_cpu.hardware import CpuHardware
from trunnion.interfaces.runner import Bucket, Runner

class StubRunner(Runner):
    def select(self, counts):
        return Bucket.exact(counts)

    def warm_up(self, report, inputs):
        self.rows = torch.zeros(self.limits.max_logits_rows, 16)

    def run(self, step, bucket):
        return self.rows, self.rows

class StubHardware(CpuHardware):
    name = "stub"

    def create_runner(self, model, groups, limits, breaks):
        return StubRunner(model, groups, limits)

HARDWARE = StubHardware
'''


def main(rounds: int) -> dict[str, dict[str, float]]:
    bare = functools.partial(lambda: None)
    floor = min(timeit.repeat(bare, number=200_000, repeat=rounds)) / 200_000 * 1e6
    results = {"bare callable": {"us": floor}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "trunnion_stub").mkdir()
        (folder / "trunnion_stub" / "__init__.py").touch()
        (folder / "trunnion_stub" / "hardware.py").write_text(STUB)
        registry.load_hardware_from(folder)
        write_model(folder, num_layers=1, max_model_len=64)
        for batch in (1, 64, 256):
            executor = CExecutor(folder, "stub", batch, seq_len=1, max_model_len=64)
            best = min(executor.execute(STEPS) for _ in range(rounds)) * 1e6
            executor.close()
            results[f"execute, batch {batch}"] = {"us": best, "over floor": best / floor}
    return results


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[2]))))
