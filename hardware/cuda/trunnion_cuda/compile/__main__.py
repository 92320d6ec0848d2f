"""`python -m trunnion_cuda.compile [--quick] [--arch ARCH] [--case NAME] [--json FILE]`: kernels to cubins, a table.

Fails if a kernel does not compile, spills more than is listed, or lacks the tensor core instructions it claims. Needs
no GPU; nvcc for the TileLang kernels. Everything compiled is kept in the user's cache folder by content.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from trunnion_cuda.user_cache import cache_folder

if TYPE_CHECKING:
    from trunnion_cuda.compile.report import Line

QUICK_ARCHITECTURES = ("sm_80", "sm_90a")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 if nothing is wrong."""
    parser = argparse.ArgumentParser(prog="python -m trunnion_cuda.compile", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="the first configuration of some cases, on two architectures"
    )
    parser.add_argument("--arch", action="append", help="only this architecture; may be repeated")
    parser.add_argument("--case", action="append", help="only this case; may be repeated")
    parser.add_argument("--without-tilelang", action="store_true", help="leave out the kernels that need nvcc")
    parser.add_argument("--json", type=Path, help="write the lines to this file")
    options = parser.parse_args(arguments)

    # Before Triton looks for its own folder.
    os.environ.setdefault("TRITON_CACHE_DIR", str(cache_folder() / "triton"))
    lines = _compile(options)
    print(table(lines))
    if options.json:
        options.json.write_text(json.dumps([asdict(line) for line in lines], indent=1))
    faults = [line for line in lines if line.fault]
    spilling = sum(line.stack > 0 for line in lines)
    print(f"assemblers: {', '.join(assemblers())}")
    print(f"{len(lines)} kernels compiled, {spilling} of them spill, {len(faults)} faults")
    return 1 if faults or not lines else 0


def assemblers() -> list[str]:
    """Versions of those that Triton calls, and where one comes from that is not its own."""
    from triton import knobs

    found = []
    for name, tool in (("ptxas", knobs.nvidia.ptxas), ("for Blackwell", knobs.nvidia.ptxas_blackwell)):
        own = Path(tool.path).is_relative_to(Path(knobs.__file__).parent)
        found.append(f"{name} {tool.version}{'' if own else f' of {tool.path}'}")
    return found


def _compile(options: argparse.Namespace) -> list[Line]:
    from tqdm import tqdm

    from trunnion_cuda.compile.cases import cases
    from trunnion_cuda.compile.report import compile_all
    from trunnion_cuda.compile.tile import tile_cases
    from trunnion_cuda.kernels.launch import EVERY_ARCHITECTURE

    tiles = () if options.without_tilelang else tile_cases()
    known = {case.name for case in (*cases(), *tiles)}
    if unknown := set(options.case or ()) - known:
        raise SystemExit(f"unknown case {sorted(unknown)[0]!r}; choices: {', '.join(sorted(known))}")
    if unknown := set(options.arch or ()) - set(EVERY_ARCHITECTURE):
        raise SystemExit(f"unknown architecture {sorted(unknown)[0]!r}; choices: {', '.join(EVERY_ARCHITECTURE)}")

    def chosen(case: object) -> bool:
        return case.name in options.case if options.case else case.quick or not options.quick

    some, some_tiles = [case for case in cases() if chosen(case)], [case for case in tiles if chosen(case)]
    architectures = options.arch or (QUICK_ARCHITECTURES if options.quick else EVERY_ARCHITECTURE)
    with tqdm(total=len(some) + len(some_tiles), unit="case", disable=None) as bar:

        def done(name: str) -> None:
            bar.set_postfix_str(name)
            bar.update()

        return compile_all(some, some_tiles, architectures, every_configuration=not options.quick, done=done)


def table(lines: Sequence[Line]) -> str:
    """One row per line, faults at its end."""
    header = ("case", "kernel", "options", "arch", "regs", "stack", "shared", "mma", "")
    rows = [
        (line.case, line.kernel, line.options, line.architecture, str(line.registers), str(line.stack),
         str(line.shared), ",".join(line.mma), f"FAULT: {line.fault}" if line.fault else "")
        for line in lines
    ]  # fmt: skip
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    )


if __name__ == "__main__":
    sys.exit(main())
