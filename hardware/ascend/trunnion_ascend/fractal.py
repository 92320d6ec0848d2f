"""Weights in the fractal layout (NZ) of the matrix units, made once per load and kept where they first lay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch_npu
from torch import nn

FRACTAL_NZ = 29
"""ACL_FORMAT_FRACTAL_NZ: blocks of 16 rows and 32 bytes, as torch_npu's `npu_format_cast` counts layouts."""


def is_fractal(weight: torch.Tensor) -> bool:
    """Whether a tensor's memory is laid out so; its view may be the transpose."""
    return int(torch_npu.get_npu_format(weight)) == FRACTAL_NZ


def lay_out(layer: nn.Module, name: str, *, transposed: bool = False) -> None:
    """Lay the parameter `name` [.., N, K] out fractal, as [.., K, N] if `transposed`. Its shape stays, its rows go.

    A parameter that is fractal has not been loaded since, and is left alone. One that has been loaded again is laid out
    where it lay before: graphs read it there.
    """
    parameter = layer.get_parameter(name)
    if is_fractal(parameter):
        return
    with _internal_layouts():
        rows = parameter.data.transpose(-1, -2).contiguous() if transposed else parameter.data
        fresh = torch_npu.npu_format_cast(rows, FRACTAL_NZ)
        assert is_fractal(fresh), f"torch_npu laid {name} out in rows"
        kept = layer.__dict__.setdefault("fractal_weights", {}).setdefault(name, fresh)
        if kept is not fresh:
            kept.copy_(fresh)
    parameter.data = kept.transpose(-1, -2) if transposed else kept


@contextmanager
def _internal_layouts() -> Iterator[None]:
    """Allowed within, and not beyond, which is torch_npu's default: tensors made like a fractal one are to be rows."""
    torch.npu.config.allow_internal_format = True
    try:
        yield
    finally:
        torch.npu.config.allow_internal_format = False
