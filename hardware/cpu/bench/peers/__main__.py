"""Measures trunnion beside other engines in turn: `nox -s bench-cpu -- --peers all`.

The same prompts (token ids) and as many threads for each, grouped by the width of the weights, in rounds: every engine
answers one measurement, then the next. An engine that cannot be installed, or fails, has a row that says why. Only
ratios within one group of one run transfer to another machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bandwidth import ReadBandwidth
from checkpoints import checkpoint
from contest import Entry, Settings, run_group
from contestants import ENGINES, Engine
from options import parse
from page import page
from results import OURS, Group, Row, groups_from
from table import NOTES, table

VOCABULARY = 40000
"""Both models know as many tokens and more."""
_VERSION = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"


def main() -> int:
    options = parse(sys.argv[1:], __doc__ or "")
    groups = list(groups_from(json.loads(options.json.read_text()))) if options.add and options.json.exists() else []
    with tempfile.TemporaryDirectory(prefix="bench-peers-") as folder:
        scratch = Path(folder)
        bandwidth = ReadBandwidth(scratch, options.threads)
        settings = Settings(
            threads=options.threads,
            rounds=options.rounds,
            is_quick=options.quick,
            vocabulary=VOCABULARY,
            scratch=scratch,
        )
        for model in options.models:
            for bits in options.widths:
                group = _run(model, bits, options, settings, bandwidth)
                groups = [old for old in groups if (old.model, old.bits) != (model, bits)] + [group]
                print(f"\n{table(group)}", flush=True)
                _write(options, groups)
    print("\n" + "\n".join(NOTES))
    return 0


def _run(model: str, bits: int, options: argparse.Namespace, settings: Settings, bandwidth: ReadBandwidth) -> Group:
    rows, entries = [], []
    for name in options.peers:
        engine = ENGINES[name]
        row = Row(engine=name)
        rows.append(row)
        python = options.python.get(name, sys.executable if name == OURS else "")
        if name in options.missing:
            row.failures[""] = options.missing[name]
        elif bits not in engine.files:
            row.failures[""] = engine.absent
        elif not python:
            row.failures[""] = "no environment: give --python"
        else:
            row.version, row.file = _version(python, engine), engine.files[bits]
            path, row.weight_bytes = checkpoint(model, row.file)
            entries.append(Entry(engine=engine, python=python, path=path, row=row))
    found = run_group(entries, settings, bandwidth.measure, lambda text: _show(f"{model}, {bits} bits, {text}"))
    return Group(model=model, bits=bits, bandwidth=found, rows=rows)


def _version(python: str, engine: Engine) -> str:
    done = subprocess.run([python, "-c", _VERSION, engine.distribution], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _show(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)


def _write(options: argparse.Namespace, groups: Sequence[Group]) -> None:
    machine = {"cores": os.cpu_count(), "threads": options.threads, "python": platform.python_version()}
    if options.json is not None:
        found = [{**vars(group), "rows": [vars(row) for row in group.rows]} for group in groups]
        options.json.write_text(json.dumps({"machine": machine, "groups": found}, indent=1) + "\n")
    if options.html is not None:
        options.html.write_text(page(groups, machine))


if __name__ == "__main__":
    sys.exit(main())
