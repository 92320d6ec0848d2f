"""Compiles cases and judges what came out: spills must be listed, tensor core instructions there where claimed."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from triton.runtime import driver

from trunnion_cuda.compile import cubin, tile
from trunnion_cuda.compile.absent_device import AbsentDevice, compiled
from trunnion_cuda.compile.cases import Case
from trunnion_cuda.kernels.launch import SM80, SM90A, SM100A, SM120A, Launch, recorded_launches
from trunnion_cuda.kernels.tuning import TUNER, Budget


@dataclass(frozen=True, kw_only=True)
class Line:
    """One kernel of one case on one architecture."""

    case: str
    kernel: str
    options: str
    """Constants and compiler options that tell the case's launches apart."""
    architecture: str
    registers: int
    stack: int
    shared: int
    mma: tuple[str, ...]
    fault: str | None = None


@dataclass(frozen=True, kw_only=True)
class Spill:
    """Stack bytes per thread that are put up with, and why."""

    stack: int
    reason: str


_TMEM = (
    "64 and 128 of 255 registers are in use: ptxas caps them in kernels with tensor memory, and is a few values short"
)
_WIDENED = "without tensor memory FP8 is widened to float16 before each product; tuning can take tiles of 64 x 64"
_HEADS = "64 heads' totals take 128 registers of each thread, and the gather's addresses the others"
_TOOLKIT = "CUDA 13.0's assembler keeps 72 registers and spills one of 64 bits; Triton's own spills none"
SPILLS: Mapping[tuple[str, str, str], Spill] = MappingProxyType(
    {
        ("gated_delta_chunks", "chunks_kernel", SM100A): Spill(
            stack=16, reason="with 32 columns a thread has 4 values more than registers; 16 columns fit, tuning chooses"
        ),
        ("fused_experts_prefill", "grouped_gemm_kernel", SM100A): Spill(stack=8, reason=_TMEM),
        ("fused_experts_mixed", "grouped_gemm_kernel", SM100A): Spill(stack=8, reason=_TMEM),
        ("block_fp8_gemm_64x128", "block_fp8_gemm", SM100A): Spill(stack=8, reason=_WIDENED),
        ("block_fp8_gemm_128x128", "block_fp8_gemm", SM100A): Spill(stack=72, reason=_WIDENED),
        ("mla_decode_64x64", "mla_decode", SM90A): Spill(stack=24, reason=_HEADS),
        ("mla_decode_64x64", "mla_decode", SM100A): Spill(stack=16, reason=_HEADS),
        ("mla_decode_64x64_split", "mla_decode", SM80): Spill(stack=8, reason=_HEADS),
        ("mla_decode_64x64_split", "mla_decode", SM100A): Spill(stack=8, reason=_HEADS),
        ("mla_decode_16x64", "mla_decode", SM120A): Spill(
            stack=8, reason="2 values more than registers, for addresses of 64 keys; tuning can take tiles of 32 keys"
        ),
        # 40 of CUDA 13.0's assembler.
        ("attention_prefill_special", "attention_kernel", SM100A): Spill(stack=40, reason=_TMEM),
        ("recurrent_decode", "recurrent_kernel", SM100A): Spill(stack=8, reason=_TOOLKIT),
    }
)
"""(case, kernel, architecture) -> what it may spill, with Triton's assembler and with a toolkit's, which FlashInfer
puts in its place for Blackwell when it is imported."""


def recorded(case: Case, *, every_configuration: bool) -> list[Launch]:
    """The case's launches, with the first configuration that fits or with each."""
    TUNER.clear()
    with recorded_launches() as launches:
        if not every_configuration:
            case.call()
            return launches
        everything = Budget(max_seconds=math.inf, max_timings=sys.maxsize)
        with TUNER.tuning(lambda call: call() or 0.0, everything, lambda: False):
            case.call()
    TUNER.clear()
    return _distinct(launches)


def _distinct(launches: Sequence[Launch]) -> list[Launch]:
    seen, kept = set(), []
    for launch in launches:
        key = launch.kernel.__name__, tuple(sorted(launch.constants.items(), key=str)), len(launch.args)
        if key not in seen:
            seen.add(key)
            kept.append(launch)
    return kept


def lines_of(case: Case, architectures: Sequence[str], *, every_configuration: bool) -> Iterator[Line]:
    """Compile one case of Triton kernels. The process's driver becomes one that is absent."""
    device = AbsentDevice()
    driver.set_active(device)
    for launch in recorded(case, every_configuration=every_configuration):
        name = launch.kernel.__name__
        for architecture in architectures:
            if architecture not in case.architectures:
                continue
            binary, _, shared = compiled(device, launch, architecture)
            usage = cubin.read(binary)
            wanted = case.mma.get(name, {}).get(architecture)
            line = Line(
                case=case.name, kernel=name.strip("_"), options=_options(launch.constants), architecture=architecture,
                registers=usage.registers, stack=usage.stack, shared=max(shared, usage.shared), mma=usage.mma,
            )  # fmt: skip
            yield replace(line, fault=fault_of(line, usage, wanted))


def tile_lines_of(case: tile.TileCase, architectures: Sequence[str]) -> Iterator[Line]:
    """Compile one case of a TileLang kernel."""
    for architecture in architectures:
        if architecture not in case.architectures:
            continue
        usage = cubin.read(tile.compiled(case, architecture))
        line = Line(
            case=case.name, kernel=case.make.__module__.rpartition(".")[2], options="", architecture=architecture,
            registers=usage.registers, stack=usage.stack, shared=case.shared + usage.shared, mma=usage.mma,
        )  # fmt: skip
        yield replace(line, fault=fault_of(line, usage, case.mma if architecture == SM90A else "mma.sync"))


def fault_of(
    line: Line,
    usage: cubin.Usage,
    wanted_mma: str | None,
    spills: Mapping[tuple[str, str, str], Spill] = SPILLS,
) -> str | None:
    """What is wrong with a line, or None."""
    listed = spills.get((line.case, line.kernel, line.architecture))
    if usage.stack > (listed.stack if listed else 0):
        return f"spills {usage.stack} bytes per thread, {listed.stack if listed else 'none'} listed"
    if wanted_mma is not None and not usage.has(wanted_mma):
        return f"has no {wanted_mma}, but {', '.join(usage.mma) or 'no tensor core instruction'}"
    return None


def _options(constants: Mapping[str, object]) -> str:
    told = ("M", "N", "K", "V", "C", "BLOCK", "ROWS", "HEADS", "num_warps", "num_stages")
    return " ".join(f"{name.removeprefix('num_')}={constants[name]}" for name in told if name in constants)


def compile_all(
    cases: Sequence[Case],
    tile_cases: Sequence[tile.TileCase],
    architectures: Sequence[str],
    *,
    every_configuration: bool,
    done: Callable[[str], None],
) -> list[Line]:
    """Lines of all cases; `done` is called with each one's name."""
    lines: list[Line] = []
    for case in cases:
        lines += lines_of(case, architectures, every_configuration=every_configuration)
        done(case.name)
    for tile_case in tile_cases:
        lines += tile_lines_of(tile_case, architectures)
        done(tile_case.name)
    return lines
