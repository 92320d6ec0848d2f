"""Times the host's share of a replayed decode step on a null device: boundary, copy, plan, launch.

The null device does the work that the host of a real one does: counts and fields are read, rows are padded to a bucket
of a full graph and uploaded, one group of 32 layers is planned from host copies (a plan of the size of a paged-decode
wrapper's), one graph is launched, logits rows are copied out. It computes nothing, and its copies are the host's own
memory: what a real driver's calls cost is not in these figures.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from c_executor import CExecutor, write_model

from trunnion import registry

STEPS, SEQ_LEN, MAX_MODEL_LEN, LAYERS = 1000, 1000, 2048, 32
NULL_DEVICE = '''
"""A device that computes nothing, with everything that its host has to do."""
import time
import numpy as np
import torch
from trunnion.contract import Field
from trunnion.interfaces.runner import Runner
from trunnion.reference.attention import ReferenceAttentionGroup
from trunnion.runner.buckets import Buckets
from trunnion_cpu.hardware import CpuHardware

SECONDS = {"copy": 0.0, "plan": 0.0, "launch": 0.0}


class PlannedGroup(ReferenceAttentionGroup):
    """Splits every request's blocks into work items, as a paged-decode wrapper's plan does, and stages them."""

    CHUNK = 64

    @classmethod
    def required_fields(cls, spec):
        return Field.KV_CSR

    def plan(self, step):
        meta, count = self.tensors(step.host), step.counts.num_reqs
        indptr = meta.kv_indptr.numpy()
        pages = indptr[1 : count + 1] - indptr[:count]
        chunks = -(-pages // self.CHUNK)
        offsets = np.zeros(count + 1, dtype=np.int32)
        np.cumsum(chunks, out=offsets[1:])
        items = np.repeat(np.arange(count, dtype=np.int32), chunks)
        starts = (np.arange(len(items), dtype=np.int32) - offsets[items]) * self.CHUNK
        staged = np.concatenate((offsets, items, starts, meta.kv_last_page_len.numpy()))
        if not hasattr(self, "workspace"):
            self.workspace = torch.zeros(1 << 20, dtype=torch.int32)
        self.workspace[: len(staged)].copy_(torch.from_numpy(staged))


class NullRunner(Runner):
    static_inputs = True

    def select(self, counts):
        self.selected = time.perf_counter()
        return self.buckets.select(counts)

    def __init__(self, model, groups, limits):
        super().__init__(model, groups, limits)
        self.buckets = Buckets(limits)
        self.graphs = {bucket.num_tokens: (lambda: None) for bucket, _ in self.buckets.all_full()}
        self.rows = torch.zeros(limits.max_logits_rows, 16)

    def warm_up(self, report, inputs):
        pass

    def run(self, step, bucket):
        started = time.perf_counter()
        self.plan(step)
        planned = time.perf_counter()
        self.graphs[bucket.num_tokens]()
        SECONDS["copy"] += started - self.selected
        SECONDS["plan"] += planned - started
        SECONDS["launch"] += time.perf_counter() - planned
        return self.rows, self.rows


class NullHardware(CpuHardware):
    name = "null_device"

    def group_class(self, spec):
        return PlannedGroup, None

    def create_runner(self, model, groups, limits, breaks):
        return NullRunner(model, groups, limits)


HARDWARE = NullHardware
'''


def main(rounds: int) -> dict[str, dict[str, float]]:
    results = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "trunnion_null_device").mkdir()
        (folder / "trunnion_null_device" / "__init__.py").touch()
        (folder / "trunnion_null_device" / "hardware.py").write_text(NULL_DEVICE)
        hardware = registry.load_hardware_from(folder)
        seconds: dict[str, float] = sys.modules[type(hardware).__module__].SECONDS
        write_model(folder, LAYERS, MAX_MODEL_LEN)
        for batch in (1, 64, 256):
            samples = [_measure(folder, batch, seconds) for _ in range(rounds)]
            results[f"decode step, batch {batch}"] = min(samples, key=lambda sample: sample["whole us"])
    return results


def _measure(folder: Path, batch: int, seconds: dict[str, float]) -> dict[str, float]:
    executor = CExecutor(folder, "null_device", batch, SEQ_LEN, MAX_MODEL_LEN)
    executor.execute(STEPS // 10)
    before = dict(seconds)
    whole = executor.execute(STEPS) * 1e6
    executor.close()
    spent = {name: (value - before[name]) / STEPS * 1e6 for name, value in seconds.items()}
    # Validation, the GIL, the call, reading the counts, and logits rows of a vocabulary of 16.
    boundary = whole - sum(spent.values())
    return {"whole us": whole, "boundary us": boundary, **{f"{name} us": value for name, value in spent.items()}}


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[2]))))
