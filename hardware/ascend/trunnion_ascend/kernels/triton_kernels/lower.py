"""Takes the kernels through triton-ascend's stages, and says where they stop: `python -m ...triton_kernels.lower`.

Without CANN that is behind `ttadapter`, Linalg in MLIR: the next stage calls CANN's `bishengir-compile`. Nothing is
run. Needs triton-ascend, which must not be where another Triton is.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, make_backend

from trunnion_ascend.kernels.triton_kernels.gated_delta_decode import BLOCK_V, L2_EPS, gated_delta_decode_kernel
from trunnion_ascend.kernels.triton_kernels.rotary_cache_write import rotary_cache_write_kernel

ARCH = "Ascend910B3"
DELTA = {"HK": 16, "HV": 32, "DK": 128, "DV": 128, "BLOCK_K": 128, "BLOCK_V": BLOCK_V, "EPS": L2_EPS}
ROTARY = {"D": 128, "BLOCK_D": 128, "BLOCK_Q": 16, "BLOCK_K": 2, "HQ": 16, "HK": 2}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One specialisation of a kernel."""

    name: str
    kernel: Any
    types: Mapping[str, str]
    """Of what a launch passes, as Triton writes them; the others are constants."""
    constants: Mapping[str, object]


@dataclass(kw_only=True)
class Outcome:
    """How far a case came."""

    name: str
    stages: list[str]
    linalg: str = ""
    """The module in MLIR, "" if it did not come so far."""
    stopped: str = ""
    """The stage that failed and why, in one line; "" if a binary was made."""


def cases() -> Iterator[Case]:
    """Shapes of published models: Qwen3-Next's delta net, heads of Qwen2.5-3B; in the dtypes that they run in."""
    pointers = {"x": "*bf16", "g": "*fp32", "beta": "*bf16", "state": "*fp32", "out": "*bf16"}
    indices = dict.fromkeys(("state_indices", "has_initial_state", "num_accepted"), "*i32")
    sizes = dict.fromkeys(("num_tasks", "width"), "i32")
    for length in (1, 3):
        constants = {**DELTA, "LENGTH": length, "HAS_ACCEPTED": length > 1}
        name = f"gated_delta_decode of {length}"
        yield Case(
            name=name, kernel=gated_delta_decode_kernel, types={**pointers, **indices, **sizes}, constants=constants
        )
    rows = dict.fromkeys(("q", "k", "v", "q_out", "k_cache", "v_cache"), "*bf16")
    numbers = {"positions": "*i32", "table": "*fp32", "slots": "*i32"}
    strides = dict.fromkeys(("num_tokens", "q_row", "k_row", "v_row"), "i32")
    for half in (64, 32):
        constants = {**ROTARY, "HALF": half, "BLOCK_HALF": half, "BLOCK_REST": max(128 - 2 * half, 1)}
        name = f"rotary_cache_write of {2 * half} features"
        yield Case(
            name=name, kernel=rotary_cache_write_kernel, types={**rows, **numbers, **strides}, constants=constants
        )


def lower(case: Case, arch: str = ARCH) -> Outcome:
    """The stages of `triton.compile`, as far as they go."""
    target = GPUTarget("npu", arch, 0)
    backend = make_backend(target)
    names = case.kernel.arg_names
    signature = {name: case.types[name] for name in names if name in case.types}
    source = ASTSource(case.kernel, signature, dict(case.constants))
    options = backend.parse_options(source.parse_options())
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options)
    metadata = {"target": target, **options.__dict__}
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = source.make_ir(options, backend.get_codegen_implementation(), backend.get_module_map(), context)
    outcome = Outcome(name=case.name, stages=[])
    for stage, make in stages.items():
        try:
            module = make(module, metadata)
        except Exception as error:
            # Whatever a compiler raises is the answer.
            detail = getattr(error, "stderr", None) or str(error)
            text = detail.decode(errors="replace") if isinstance(detail, bytes) else detail
            outcome.stopped = f"{stage}: {' '.join(text.split())}"
            break
        outcome.stages.append(stage)
        if stage == "ttadapter":
            outcome.linalg = str(module)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="lower", description=__doc__)
    parser.add_argument("--arch", default=ARCH, help=f"the chip (default: {ARCH})")
    parser.add_argument("--dump", type=Path, metavar="FOLDER", help="write each module in MLIR here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what came of each kernel here")
    options = parser.parse_args()
    found = [lower(case, options.arch) for case in cases()]
    print(f"triton-ascend {triton.__version__}, {options.arch}")
    for outcome in found:
        reached = f"{' -> '.join(outcome.stages) or 'nothing'}, {outcome.linalg.count(chr(10))} lines of Linalg"
        print(f"  {outcome.name:36} {reached}; stopped at {outcome.stopped or 'nothing'}"[:300])
        if options.dump is not None and outcome.linalg:
            options.dump.mkdir(parents=True, exist_ok=True)
            (options.dump / f"{outcome.name.replace(' ', '_')}.mlir").write_text(outcome.linalg)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(outcome) for outcome in found], indent=2) + "\n")
    return int(not all(outcome.linalg for outcome in found))


if __name__ == "__main__":
    sys.exit(main())
