"""Operators that the CPU package puts over the reference, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trunnion.ops.moe import experts_by_token
from trunnion_cpu.kernels.native import native_kernels
from trunnion_cpu.kernels.norm import fused_add_rms_norm, rms_norm
from trunnion_cpu.native import Native, native

TORCH_KERNELS: Mapping[str, Callable[..., Any]] = {
    # The reference computes every expert for every token, so that it can be captured; eager execution need not.
    "fused_experts": experts_by_token,
    "rms_norm": rms_norm,
    "fused_add_rms_norm": fused_add_rms_norm,
}
"""What there is without the native library."""


def kernels() -> Mapping[str, Callable[..., Any]]:
    """Of this process: native ones where the library is there, else torch's."""
    return {**TORCH_KERNELS, **native_kernels()} if isinstance(native(), Native) else TORCH_KERNELS
