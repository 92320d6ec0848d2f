"""Times SmolLM2 with native operators beside the same package without them, in two processes that take turns."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import Any

import torch

BATCHES = (1, 8, 32)
CONTESTANTS = {"native": "", "torch": "reference"}
"""Name -> TRUNNION_CPU_ISA."""


def main(threads: int, rounds: int) -> dict[str, dict[str, float]]:
    workers = {name: _Worker(isa, threads) for name, isa in CONTESTANTS.items()}
    results = {}
    for contest in (*(f"decode, batch {batch}" for batch in BATCHES), "prefill 1024"):
        samples: dict[str, list[float]] = {name: [] for name in workers}
        for _ in range(rounds + 1):
            for name, worker in workers.items():
                samples[name].append(worker.measure(contest.rpartition(" ")[2]))
        rates = {name: statistics.median(values[1:]) for name, values in samples.items()}
        results[f"{contest}, tokens/s"] = {**rates, "times faster": rates["native"] / rates["torch"]}
    for worker in workers.values():
        worker.close()
    return results


class _Worker:
    """A process of this file that measures what it is told to."""

    def __init__(self, isa: str, threads: int) -> None:
        environment = {**os.environ, "TRUNNION_CPU_ISA": isa}
        command = (sys.executable, __file__, str(threads), "worker")
        self._process: subprocess.Popen[str] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def measure(self, what: str) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def work(threads: int) -> None:
    """Answer each line of the standard input, a batch or the length of the prefill, with a rate."""
    from host_rates import PREFILL_LEN, decode_rate, open_host, prefill_rate

    torch.set_num_threads(threads)
    with open_host(BATCHES) as host:
        for line in sys.stdin:
            rate: Any = prefill_rate(host) if int(line) == PREFILL_LEN else decode_rate(host, int(line))
            print(rate, flush=True)


if __name__ == "__main__":
    if sys.argv[2] == "worker":
        work(int(sys.argv[1]))
    else:
        print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]))))
