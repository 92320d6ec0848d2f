"""The C++ server beside a Python server of the same bundle: `nox -s bench-bundle -- --json FILE`.

Two bundles: the tiny DLRM through AOTInductor, and a simulated device that uses no processor (1 ms and 8 us a row),
which leaves the serving path alone. Each server has one core and the load tool another; runs of the two alternate, and
the medians of the rounds' ratios count. The rate of a server is the best whose 99th percentile is within 20 ms. It ends
with 1 where a ratio is less than is wanted, or the C++ server takes more processor time per request. Absolute figures
are this machine's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "native"))

import native_build

import trunnion_bundle
from trunnion_bundle import Batching
from trunnion_bundle.examples import sim

HERE = Path(__file__).resolve().parent
ALLOWED = (1, 8, 32, 128, 256)
POLICY = Batching(allowed_sizes=ALLOWED, max_queue_rows=1 << 20)
CONCURRENCY: Mapping[int, str] = {1: "16,64,192", 16: "8,32,64", 128: "2,4,8,12"}
"""Calls in flight that are tried, by rows of a request."""
WANTED: Mapping[str, Mapping[int, float]] = {"dlrm": {1: 3.0, 16: 2.0, 128: 1.1}, "sim": {1: 1.0, 16: 1.0, 128: 1.0}}
"""Least ratio of rates, by bundle and rows of a request."""


def write_dlrm(folder: Path) -> None:
    from trunnion_bundle.examples import dlrm

    trunnion_bundle.save(folder, **dlrm.recipe(POLICY))


def write_sim(folder: Path) -> None:
    sim.write(folder, batching=POLICY)


WRITE = {"dlrm": write_dlrm, "sim": write_sim}


@contextmanager
def running(command: list[str], core: int) -> Iterator[tuple[int, int]]:
    """A server on one core: its process id and port."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pinned = ["taskset", "-c", str(core), *command]
    with subprocess.Popen(pinned, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"{command[0]} did not start")
            yield process.pid, json.loads(line)["grpc_port"]
        finally:
            process.terminate()


def measure(programs: Path, bundle: Path, server: tuple[int, int], rows: int, core: int, seconds: float) -> Any:
    """The best run of one server; RuntimeError if any of its runs had an error."""
    signature = json.loads((bundle / "bundle.json").read_text())["default_signature"]
    request = bundle / "golden" / signature / "0.safetensors"
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "figures.json"
        command = ["taskset", "-c", str(core), str(programs / "trunnion-bench-bundle"), f"127.0.0.1:{server[1]}"]
        options = {
            "--model": bundle.name,
            "--request": request,
            "--rows": rows,
            "--concurrency": CONCURRENCY[rows],
            "--seconds": seconds,
            "--server-pid": server[0],
            "--json": target,
        }
        words = [str(word) for pair in options.items() for word in pair]
        done = subprocess.run([*command, *words], stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise RuntimeError(f"a run is void:\n{done.stdout}")
        return json.loads(target.read_text())["best"][str(rows)]


def compare(name: str, programs: Path, options: argparse.Namespace, cores: tuple[int, int]) -> dict[str, Any]:
    """Figures of one bundle, by rows of a request."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        bundle = (options.bundles or Path(scratch)) / name
        if not (bundle / "COMMITTED").is_file():
            WRITE[name](bundle)
        serve = [str(programs / "trunnion-serve-bundle"), str(bundle), "--grpc-port", "0", "--http-port", "0"]
        with (
            running([*serve, "--poll-ms", "0"], cores[0]) as ours,
            running([sys.executable, str(HERE / "python_server.py"), str(bundle)], cores[0]) as theirs,
        ):
            for rows in options.rows or CONCURRENCY:
                rounds = []
                for _ in range(options.rounds):
                    pair = [
                        measure(programs, bundle, server, rows, cores[1], options.seconds) for server in (ours, theirs)
                    ]
                    rounds.append(dict(zip(("cpp", "python"), pair, strict=True)))
                found[str(rows)] = summary(rounds, WANTED[name][rows])
                figures = "  ".join(f"{key} {value}" for key, value in found[str(rows)].items() if key != "rounds")
                print(f"  {name} rows {rows:4}: {figures}", flush=True)
    return found


def summary(rounds: list[dict[str, Any]], wanted: float) -> dict[str, Any]:
    """Medians of the rounds; a server that never kept the bound has no figure."""
    whole = [pair for pair in rounds if pair["cpp"] and pair["python"]]
    if not whole:
        return {"wanted": wanted, "is_met": False, "rounds": rounds}

    def median(server: str, key: str) -> float:
        return round(statistics.median(pair[server][key] for pair in whole), 1)

    rate, cpu = "rows_per_second", "server_cpu_us_per_request"
    ratio = statistics.median(pair["cpp"][rate] / pair["python"][rate] for pair in whole)
    is_cheaper = median("cpp", cpu) < median("python", cpu)
    return {
        "cpp_rows_per_second": median("cpp", rate),
        "python_rows_per_second": median("python", rate),
        "ratio": round(ratio, 2),
        "wanted": wanted,
        "is_met": ratio >= wanted and is_cheaper,
        "cpp_cpu_us": median("cpp", cpu),
        "python_cpu_us": median("python", cpu),
        "rounds": rounds,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bench-bundle", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--rounds", type=int, default=3, help="of each measurement; the median counts (default: 3)")
    parser.add_argument("--seconds", type=float, default=4, help="of a run (default: 4)")
    parser.add_argument("--rows", type=int, choices=sorted(CONCURRENCY), nargs="+", help="of a request (default: all)")
    parser.add_argument("--bundles", type=Path, metavar="FOLDER", help="keep the bundles here, and take those that are")
    parser.add_argument("--only", choices=sorted(WRITE), action="append", help="this bundle only; may be repeated")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("the servers and the load tool need a core each; this process has one", file=sys.stderr)
        return 1
    programs = native_build.build(*native_build.torch_definitions())
    results = {name: compare(name, programs, options, (cores[0], cores[1])) for name in options.only or sorted(WRITE)}
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    missed = [
        f"{name} rows {rows}" for name, found in results.items() for rows, row in found.items() if not row["is_met"]
    ]
    if missed:
        print(f"less than is wanted: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
