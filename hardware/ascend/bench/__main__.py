"""What the host does for a step on an NPU: `nox -s bench-ascend -- --json FILE`.

* exec: the host's share of telling a full graph of 32 layers its lengths: plan, launch, updates.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SECTIONS = ("exec",)
HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bench-ascend", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of the host (default: 1)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each measurement (default: 3)")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="run this section only; may be repeated")
    options = parser.parse_args()
    environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads))
    results: dict[str, Any] = {"machine": {"cores": os.cpu_count(), "threads": options.threads}}
    for section in options.only or SECTIONS:
        print(f"\n{section}", flush=True)
        command = [sys.executable, str(HERE / f"{section}.py"), str(options.threads), str(options.rounds)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
        if done.returncode:
            print(f"section {section} failed with exit code {done.returncode}", file=sys.stderr)
            return 1
        found = json.loads(done.stdout.splitlines()[-1])
        results["machine"]["device"] = found["device"]
        results[section] = found["rows"]
        print(f"  device: {found['device']}")
        for name, figures in results[section].items():
            print(f"  {name:32}" + "  ".join(f"{key} {value:,.2f}" for key, value in figures.items()), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
