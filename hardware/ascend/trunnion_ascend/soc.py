"""What the chips differ in, as data: chosen once, by the name that the device gives itself."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Soc:
    """One family of chips."""

    family: str
    """As Huawei's documents call the products."""
    names: str
    """Matches what `torch.npu.get_device_name` says, in full."""
    has_bfloat16: bool
    has_fused_attention: bool
    """Whether `npu_fused_infer_attention_score_v2` is for these products."""
    has_rotary: bool
    """Whether `npu_rotary_mul` takes every head size, and pairs of neighbours."""
    has_expert_operators: bool
    """Whether the operators of gating, routing and grouped products are for these products."""
    has_token_scales: bool
    """Whether products of int8 take a scale per token (`npu_quant_matmul`), and an operator makes them."""
    has_packed_weights: bool
    """Whether products take weights of 4 bits, in groups (`npu_weight_quant_batchmatmul`)."""
    has_float8: bool
    needs_fractal: bool
    """Whether weights and caches must lie in the fractal layout (NZ) for the operators that read them."""
    max_streams: int
    """Of a device, which graphs take their share of (hicann/runtime, docs/zh/api_ref/06_stream_management.md)."""
    max_events: int
    """Of a device, one for each task that is updated in a graph (07_event_management.md, aclrtCreateEvent)."""


SOCS = (
    Soc(
        family="Atlas A2",
        names=r"Ascend910B[1-4](C|-1)?",
        has_bfloat16=True,
        has_fused_attention=True,
        has_rotary=True,
        has_expert_operators=True,
        has_token_scales=True,
        has_packed_weights=True,
        has_float8=False,
        needs_fractal=False,
        max_streams=1984,
        max_events=65536,
    ),
    Soc(
        family="Atlas A3",
        names=r"Ascend910_93\d\d",
        has_bfloat16=True,
        has_fused_attention=True,
        has_rotary=True,
        has_expert_operators=True,
        has_token_scales=True,
        has_packed_weights=True,
        has_float8=False,
        needs_fractal=False,
        max_streams=1984,
        max_events=65536,
    ),
    Soc(
        family="Atlas 300I (310P)",
        names=r"Ascend310P\d",
        has_bfloat16=False,
        has_fused_attention=False,
        has_rotary=False,
        has_expert_operators=False,
        has_token_scales=False,
        has_packed_weights=False,
        has_float8=False,
        needs_fractal=True,
        max_streams=1024,
        max_events=1023,
    ),
)


def soc_of(device_name: str) -> Soc:
    """The family of a device.

    Raises:
        ValueError: it is of none that this package knows; the text says which there are.
    """
    for soc in SOCS:
        if re.fullmatch(soc.names, device_name):
            return soc
    choices = ", ".join(f"{soc.family} ({soc.names})" for soc in SOCS)
    raise ValueError(f"device {device_name!r} is of no family that 'ascend' knows; choices: {choices}")
