"""RMS norms (arXiv:1910.07467): alone, after the residual addition, gated, and with a quantised result.

A row is read once, kept in registers and written once. For T rows of `size` elements of b bytes `rms_norm` moves `2 T
size b` bytes, `fused_add_rms_norm` `4 T size b`; a quantised result of one byte replaces b. About 4 FLOPs per element:
all of them run against memory bandwidth.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from trunnion.ops.quantised import LARGEST, TINY
from trunnion.ops.registry import decline
from trunnion_cuda.kernels.launch import EVERY_ARCHITECTURE, ceil_div, launch, power_of_two
from trunnion_cuda.kernels.row_quantisation import quantise
from trunnion_cuda.kernels.tuning import TUNER, Config, Space, size_class

ARCHITECTURES = EVERY_ARCHITECTURE
MAX_SIZE = 32768
"""Longest row that stays in registers."""
SPACE = Space(
    "rms_norm",
    (
        Config({"ELEMENTS": 2048}, num_warps=4),
        Config({"ELEMENTS": 4096}, num_warps=8),
        Config({"ELEMENTS": 1024}, num_warps=2),
        Config({"ELEMENTS": 1024}, num_warps=8),
    ),
)
"""ELEMENTS: short rows share a program until it has as many."""


@triton.jit
def _norm_kernel(
    x, residual, gate, weight, out, total, scales,
    size, num_rows, inner, x_outer, x_inner, r_outer, r_inner, gate_outer, gate_inner, eps,
    ADDS: tl.constexpr, GATED: tl.constexpr, UNIT_OFFSET: tl.constexpr, GROUP: tl.constexpr, Q_MAX: tl.constexpr,
    IS_INT: tl.constexpr, TINY: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    is_row = row < num_rows
    mask = is_row[:, None] & (column < size)[None, :]
    outer, within = row // inner, row % inner
    dtype = x.dtype.element_ty
    value = tl.load(x + (outer * x_outer + within * x_inner)[:, None] + column[None, :], mask=mask, other=0.0)
    value = value.to(tl.float32)
    to_out = (row * size)[:, None] + column[None, :]
    if ADDS:
        added = tl.load(
            residual + (outer * r_outer + within * r_inner)[:, None] + column[None, :], mask=mask, other=0.0
        )
        rounded = (value + added.to(tl.float32)).to(dtype)
        tl.store(total + to_out, rounded, mask=mask)
        value = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=1) / size + eps)
    value = value * scale[:, None]
    factor = tl.load(weight + column, mask=column < size, other=0.0).to(tl.float32)[None, :]
    value = value * (1.0 + factor) if UNIT_OFFSET else value.to(dtype).to(tl.float32) * factor
    if GATED:
        opening = tl.load(
            gate + (outer * gate_outer + within * gate_inner)[:, None] + column[None, :], mask=mask, other=0.0
        )
        opening = opening.to(tl.float32)
        value = value.to(dtype).to(tl.float32) * (opening * tl.sigmoid(opening))
    if GROUP > 0:
        value = value.to(dtype).to(tl.float32)
        NUM_GROUPS: tl.constexpr = BLOCK // GROUP
        grouped, group_scale = quantise(tl.reshape(value, [ROWS, NUM_GROUPS, GROUP]), Q_MAX, TINY, IS_INT)
        value = tl.reshape(grouped, [ROWS, BLOCK])
        used = tl.cdiv(size, GROUP)
        group = tl.arange(0, NUM_GROUPS)
        to_scale = (row * used)[:, None] + group[None, :]
        tl.store(scales + to_scale, group_scale, mask=is_row[:, None] & (group < used)[None, :])
    tl.store(out + to_out, value.to(out.dtype.element_ty), mask=mask)


def _strides(x: torch.Tensor, like: torch.Tensor) -> tuple[int, int] | None:
    """Element strides of rows of x [outer, inner, size], or None: not such a view, or not `like`'s shape."""
    if x.shape != like.shape or (x.stride(-1) != 1 and x.shape[-1] > 1):
        return None
    if x.dim() == 1:
        return 0, 0
    if x.dim() > 3:
        return (x.stride(-3), x.stride(-2)) if x.is_contiguous() else None
    return (x.stride(0) if x.dim() == 3 else 0), x.stride(-2)


def _why_not(x: torch.Tensor, weight: torch.Tensor, *others: torch.Tensor) -> str | None:
    if x.shape[-1] > MAX_SIZE:
        return f"rows longer than {MAX_SIZE}"
    if any(_strides(each, x) is None for each in (x, *others)):
        return "rows that are no view of at most three dimensions"
    if not weight.is_contiguous():
        return "a strided weight"
    return None


def _run(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    *,
    unit_offset: bool = False,
    residual: torch.Tensor | None = None,
    total: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
    group: int = 0,
) -> None:
    size = x.shape[-1]
    num_rows = x.numel() // size if size else 0
    inner = x.shape[-2] if x.dim() > 1 else 1
    block = power_of_two(size)
    strides = [stride for each in (x, residual, gate) for stride in _strides(x if each is None else each, x) or (0, 0)]

    def run(config: Config) -> None:
        rows = min(max(config["ELEMENTS"] // block, 1), power_of_two(num_rows))
        options = dict(config.options)
        if block > 8192:
            options["num_warps"] = 16
        launch(
            _norm_kernel, (ceil_div(num_rows, rows),),
            x, x if residual is None else residual, x if gate is None else gate, weight, out,
            out if total is None else total, out if scales is None else scales,
            size, num_rows, max(inner, 1), *strides, eps,
            ADDS=residual is not None, GATED=gate is not None, UNIT_OFFSET=unit_offset, GROUP=group,
            Q_MAX=LARGEST.get(out.dtype, 1.0), IS_INT=out.dtype == torch.int8, TINY=TINY, ROWS=rows, BLOCK=block,
            **options,
        )  # fmt: skip

    def fits(config: Config) -> bool:
        # Up to 64 elements of a row stay in a thread's registers; rows beyond 8192 get more warps anyway.
        return block <= 64 * 32 * config.num_warps or block > 8192

    TUNER.run(SPACE, (str(x.dtype), size, residual is not None, group, size_class(num_rows)), run, fits)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool) -> torch.Tensor:
    """As `trunnion::rms_norm`."""
    if (reason := _why_not(x, weight)) is not None:
        return decline("rms_norm", reason, x, weight, eps, unit_offset)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _run(x, weight, eps, out, unit_offset=unit_offset)
    return out


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `trunnion::fused_add_rms_norm`."""
    reason = _why_not(x, weight, residual)
    if x.dtype != residual.dtype:
        reason = "a residual of another dtype"
    if reason is not None:
        return decline("fused_add_rms_norm", reason, x, residual, weight, eps, unit_offset)
    out, total = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    _run(x, weight, eps, out, unit_offset=unit_offset, residual=residual, total=total)
    return out, total


def rms_norm_gated(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As `trunnion::rms_norm_gated`."""
    if (reason := _why_not(x, weight, gate)) is not None:
        return decline("rms_norm_gated", reason, x, gate, weight, eps)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _run(x, weight, eps, out, gate=gate)
    return out


def rms_norm_quantised(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    unit_offset: bool,
    dtype: torch.dtype,
    group_size: int | None = None,
    residual: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """`rms_norm`, or `fused_add_rms_norm` if there is a residual, then quantised symmetrically.

    x [..., size] -> values [..., size] of `dtype` (int8 or float8_e4m3fn), scales [..., size / group_size] float32 (or
    [..., 1]: one per row), and the new residual if there was one. `values * scales` is the norm's result.

    Raises:
        ValueError: a dtype, row or group that cannot be.
    """
    size, group = x.shape[-1], group_size
    if dtype not in LARGEST:
        raise ValueError(f"cannot quantise to {dtype}; choices: {', '.join(map(str, LARGEST))}")
    if group is not None and (size % group or group != power_of_two(group)):
        raise ValueError(f"groups of {group} do not divide rows of {size} into powers of two")
    reason = _why_not(x, weight, *([] if residual is None else [residual]))
    if reason is not None:
        raise ValueError(f"cannot normalise and quantise {reason}")
    values = torch.empty(x.shape, dtype=dtype, device=x.device)
    scales = torch.empty((*x.shape[:-1], size // group if group else 1), dtype=torch.float32, device=x.device)
    total = None if residual is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _run(
        x, weight, eps, values, unit_offset=unit_offset, residual=residual, total=total, scales=scales,
        group=group or power_of_two(size),
    )  # fmt: skip
    return (values, scales) if total is None else (values, scales, total)


def kernels() -> dict[str, Any]:
    """Operators by name."""
    return {"rms_norm": rms_norm, "fused_add_rms_norm": fused_add_rms_norm, "rms_norm_gated": rms_norm_gated}
