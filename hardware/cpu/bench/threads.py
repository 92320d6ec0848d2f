"""Times decode steps of SmolLM2 while other processes keep cores busy, beside the same steps on a quiet machine.

Native operators share work among threads of their own; `reference` leaves it to torch, which has OpenMP's.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from worker import Worker

BATCHES = (1, 8)
CONTESTANTS = {"native": "", "torch": "reference"}
"""Name -> TRUNNION_CPU_ISA."""


def main(threads: int, rounds: int) -> dict[str, dict[str, float]]:
    last_core = max(os.sched_getaffinity(0))
    states: dict[str, Sequence[Sequence[int]]] = {
        "quiet": [],
        "one busy process": [sorted(os.sched_getaffinity(0))],
        "one busy process on the last core": [[last_core]],
        "three busy processes": [sorted(os.sched_getaffinity(0))] * 3,
    }
    results: dict[str, dict[str, float]] = {}
    for name, isa in CONTESTANTS.items():
        worker = Worker(isa, threads, BATCHES)
        for batch in BATCHES:
            worker.measure(batch)
            samples: dict[str, list[float]] = {state: [] for state in states}
            for _ in range(rounds):
                for state, busy in states.items():
                    with _busy(busy):
                        samples[state].append(batch / worker.measure(batch) * 1e3)
            steps = {state: statistics.median(values) for state, values in samples.items()}
            for state, step in steps.items():
                key = f"{name}, batch {batch}, {state}"
                worst = max(samples[state])
                results[key] = {"ms": step, "times slower": step / steps["quiet"], "worst": worst / steps["quiet"]}
        worker.close()
    return results


@contextmanager
def _busy(cores_of: Sequence[Sequence[int]]) -> Iterator[None]:
    """While active, a process computes for each entry, on the cores that it names."""
    processes = []
    try:
        for cores in cores_of:
            code = f"import os; os.sched_setaffinity(0, {list(cores)}); print(flush=True)\nwhile True: pass"
            processes.append(subprocess.Popen((sys.executable, "-c", code), stdout=subprocess.PIPE))
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]))))
