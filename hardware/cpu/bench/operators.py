"""Times native operators beside torch's, in turn, with every set of kernels that this processor has.

With one thread it is the processor's time that counts, so that a busy machine spoils little; with more, the clock's.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from trunnion.ops.moe import experts_by_token
from trunnion_cpu.native import Native, native
from trunnion_cpu.tiled_weights import per_tile, tiles_of

HIDDEN, INNER, VOCABULARY, GROUP = 576, 1536, 49152, 64
EXPERTS, TOP_K = 32, 4
ROWS = (1, 8, 32, 128)
SAMPLE_SECONDS = 0.004
Call = Callable[[], object]


def main(rounds: int) -> dict[str, dict[str, float]]:
    found = native()
    if not isinstance(found, Native):
        return {}
    results = {}
    for isa in found.isas:
        found.choose(isa)
        for dtype in (torch.bfloat16, torch.float32):
            for rows in ROWS:
                for name, (own, other) in _pairs(rows, dtype).items():
                    key = f"{name}, {rows} rows, {str(dtype).removeprefix('torch.')}, {isa}"
                    results[key] = _compare(own, other, rounds)
    return results


@torch.inference_mode()
def _compare(own: Call, other: Call, rounds: int) -> dict[str, float]:
    times: list[list[float]] = [[], []]
    for _ in range(rounds + 1):
        for index, call in enumerate((own, other)):
            times[index].append(_microseconds(call))
    ours, theirs = (statistics.median(values[1:]) for values in times)
    return {"us": ours, "torch us": theirs, "times faster": theirs / ours}


def _microseconds(call: Call) -> float:
    """Of one call, over as many as fill a sample."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    started, calls = clock(), 0
    while (elapsed := clock() - started) < SAMPLE_SECONDS:
        call()
        calls += 1
    return elapsed / calls * 1e6


@torch.inference_mode()
def _pairs(rows: int, dtype: torch.dtype) -> dict[str, tuple[Call, Call]]:
    """Name -> our call and torch's. Weights of a call are more than caches hold."""
    operators = torch.ops.trunnion_cpu
    x = torch.randn(rows, HIDDEN).to(dtype)
    gated = torch.randn(rows, 2 * INNER).to(dtype)
    scale = torch.randn(HIDDEN).to(dtype)
    head = torch.randn(VOCABULARY, HIDDEN).to(dtype)
    layers = [torch.randn(2 * INNER, HIDDEN).to(dtype) for _ in range(16)]
    codes = torch.randint(-127, 128, (VOCABULARY, HIDDEN), dtype=torch.int8)
    nibbles = torch.randint(0, 256, (VOCABULARY, HIDDEN // 2), dtype=torch.uint8)
    tiles = tiles_of(nibbles, 4)
    row_scales, group_scales = torch.rand(VOCABULARY), torch.rand(VOCABULARY, HIDDEN // GROUP).to(dtype)
    w13 = torch.randn(EXPERTS, 2 * HIDDEN, HIDDEN).to(dtype)
    w2 = torch.randn(EXPERTS, HIDDEN, HIDDEN).to(dtype)
    routing = torch.topk(torch.rand(rows, EXPERTS), TOP_K)
    tiled_scales = per_tile(group_scales)
    return {
        f"{TOP_K} of {EXPERTS} experts": (
            lambda: operators.fused_experts(x, w13, w2, *routing),
            lambda: experts_by_token(x, w13, w2, *routing),
        ),
        "lm_head": (lambda: operators.linear(x, head, None), lambda: F.linear(x, head)),
        "16 x gate_up_proj": (
            lambda: [operators.linear(x, weight, None) for weight in layers],
            lambda: [F.linear(x, weight) for weight in layers],
        ),
        "lm_head in 8 bits, beside dense": (
            lambda: operators.w8a8_linear(x, codes, row_scales, None, None),
            lambda: F.linear(x, head),
        ),
        "lm_head in 4 bits, beside dense": (
            lambda: operators.grouped_int_linear(x, nibbles, group_scales, None, None, 4, GROUP),
            lambda: F.linear(x, head),
        ),
        "lm_head in 4 bits, rows in int8, beside dense": (
            lambda: operators.tiled_int_linear(x, tiles, tiled_scales, None, None, None, 4, GROUP, VOCABULARY),
            lambda: F.linear(x, head),
        ),
        "fused_add_rms_norm": (
            lambda: operators.fused_add_rms_norm(x, x, scale, 1e-6, False),
            lambda: F.rms_norm(x + x, (HIDDEN,), scale, 1e-6),
        ),
        "silu_and_mul": (
            lambda: operators.silu_and_mul(gated),
            lambda: F.silu(gated[:, :INNER]) * gated[:, INNER:],
        ),
    }


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    print(json.dumps(main(int(sys.argv[2]))))
