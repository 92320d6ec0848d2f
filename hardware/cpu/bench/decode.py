"""Times SmolLM2 with native operators beside the same package without them, in two processes that take turns."""

from __future__ import annotations

import json
import statistics
import sys

from host_rates import PREFILL_LEN
from worker import Worker

BATCHES = (1, 8, 32)
CONTESTANTS = {"native": "", "torch": "reference"}
"""Name -> TRUNNION_CPU_ISA."""


def main(threads: int, rounds: int) -> dict[str, dict[str, float]]:
    workers = {name: Worker(isa, threads, BATCHES) for name, isa in CONTESTANTS.items()}
    results = {}
    contests = {f"decode, batch {batch}": batch for batch in BATCHES} | {f"prefill {PREFILL_LEN}": PREFILL_LEN}
    for contest, what in contests.items():
        samples: dict[str, list[float]] = {name: [] for name in workers}
        for _ in range(rounds + 1):
            for name, worker in workers.items():
                samples[name].append(worker.measure(what))
        rates = {name: statistics.median(values[1:]) for name, values in samples.items()}
        results[f"{contest}, tokens/s"] = {**rates, "times faster": rates["native"] / rates["torch"]}
    for worker in workers.values():
        worker.close()
    return results


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]))))
