"""What a step costs and how fast text comes: `nox -s bench-cpu -- --json FILE`.

Each section runs in a process of its own. Absolute figures are this machine's; only ratios within one run transfer.

* boundary: one `execute` of the contract with an executor that computes nothing, beside a bare Python callable.
* exec: the host's share of a replayed decode step on a null device: boundary, copy, plan, launch.
* operators: native operators beside torch's, one by one, at the sizes of SmolLM2 and with every set of kernels.
* attention: native paged attention beside this package's own in torch, same steps, same caches.
* decode: SmolLM2 in bfloat16 with native operators beside the same package without them.
* threads: steps while other processes keep cores busy, beside quiet ones; native threads beside torch's OpenMP.
* speed: SmolLM2 in bfloat16 through the C++ host beside `transformers`, in turn, same prompts, same threads.

With `--peers all` (or names) other engines are measured beside trunnion instead; `--peers --help` says more.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

SECTIONS = ("boundary", "exec", "operators", "attention", "decode", "threads", "speed")
HERE = Path(__file__).resolve().parent


def main() -> int:
    if any(word.partition("=")[0] == "--peers" for word in sys.argv[1:]):
        return subprocess.run([sys.executable, str(HERE / "peers"), *sys.argv[1:]], check=False).returncode
    parser = argparse.ArgumentParser(
        prog="bench-cpu", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="torch threads (default: all cores)"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds of each measurement; the median counts (default: 3)"
    )
    parser.add_argument("--only", choices=SECTIONS, action="append", help="run this section only; may be repeated")
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": machine(options.threads)}
    for section in options.only or SECTIONS:
        print(f"\n{section}", flush=True)
        command = [sys.executable, str(HERE / f"{section}.py"), str(options.threads), str(options.rounds)]
        environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads))
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
        if done.returncode:
            print(f"section {section} failed with exit code {done.returncode}", file=sys.stderr)
            return 1
        results[section] = json.loads(done.stdout)
        for name, figures in results[section].items():
            print(f"  {name:48}  " + "  ".join(f"{key} {value:,.2f}" for key, value in figures.items()), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0


def machine(threads: int) -> dict[str, Any]:
    """What a reader needs to place the figures."""
    import torch

    return {
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    sys.exit(main())
