"""The frame of a first-day script: its options, its limit of time, its table, its exit status."""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from device_check.parts import ROOT, decode, matrix, pins
from device_check.plain_llama import LARGE, SMALL
from device_check.table import FAILED, Table

FOLDERS = ("packages/trunnion", "models", "")
SECONDS = 270
"""After so many no other part is begun."""
GRACE = 30
"""A part that takes so many more ends the process."""
Machine = Callable[[Table, argparse.Namespace], bool]
"""Adds rows about the machine and the packages; False where nothing can be run on them."""


@dataclass(frozen=True, kw_only=True)
class DeviceScript:
    """What differs between devices."""

    hardware: str
    device_type: str
    device: str
    """What a person calls it: "GPU"."""
    description: str
    add_options: Callable[[argparse.ArgumentParser], object]
    machine: Machine

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """0, 1 if something failed, 2 if there is no device."""
        options = self._parse(arguments)
        own = ROOT / "hardware" / self.hardware
        sys.path[:0] = [*(str(ROOT / folder) for folder in FOLDERS), str(own)]
        if find_spec("torch") is None:
            print("no torch here: install one for this machine's driver")
            return 2
        if options.simulated:
            sys.path.insert(0, str(own / "simulator"))
            importlib.import_module(f"{self.hardware}_simulator.install").install()
        import torch

        module = getattr(torch, self.device_type, None)
        if module is None or not module.is_available():
            print(f"no {self.device} that torch {torch.__version__} can use: nothing was checked")
            return 2
        faulthandler.dump_traceback_later(options.seconds + GRACE, exit=True)
        table = Table(time.monotonic() + options.seconds)
        self._check(table, options)
        faulthandler.cancel_dump_traceback_later()
        print(f"\n{table.text()}")
        failed = sum(row["result"] == FAILED for row in table.rows)
        print(f"{len(table.rows)} rows, {failed} failed, {options.seconds - table.ends + time.monotonic():.0f} s")
        if options.json:
            options.json.write_text(json.dumps({"device": module.get_device_name(), "rows": table.rows}, indent=1))
        return int(failed > 0)

    def _parse(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        parser = argparse.ArgumentParser(description=self.description)
        parser.add_argument("--json", type=Path, help="also write the rows to this file")
        parser.add_argument("--card", action="append", help="only this card of the matrix; may be repeated")
        parser.add_argument("--dtype", choices=("bfloat16", "float32"), help="only this dtype of the matrix")
        parser.add_argument(
            "--seconds", type=int, default=SECONDS, help=f"begin nothing after these; default {SECONDS}"
        )
        parser.add_argument("--simulated", action="store_true", help="run over the simulated device, for tests")
        self.add_options(parser)
        return parser.parse_args(arguments)

    def _check(self, table: Table, options: argparse.Namespace) -> None:
        pins(table, self.hardware)
        if not self.machine(table, options):
            return
        shape = SMALL if options.simulated else LARGE
        what = f"{shape.requests} x {shape.context} tokens, {shape.layers} x {shape.hidden}, bfloat16"
        table.attempt("decode", what, partial(decode, self.hardware, shape))
        matrix(table, self.hardware, options.card, options.dtype)
