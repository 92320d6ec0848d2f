"""Weights of linear layers in bfloat16, packed once as native products read them, in the place of their rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from trunnion_cpu.native import Absent, Native

TILE = 16
"""Features side by side."""
PAIR = 2
"""Values of a feature side by side."""
PACKED = "packed_weight"
"""Attribute of a layer: its parameter whose data is packed. A reload brings another one."""
PAYS = frozenset({"avx512_bf16"})
"""Instruction sets for which a packed weight is no slower for any number of rows."""


def is_packed(layer: nn.Module) -> bool:
    """Whether `layer.weight` is packed: [N, K] by its shape, [N / 16, K / 2, 16, 2] by its values."""
    return layer.__dict__.get(PACKED) is layer.weight


def why_not_packed(weight: torch.Tensor) -> str | None:
    """Why a weight [N, K] is not packed, or None."""
    if weight.dtype != torch.bfloat16:
        return f"{weight.dtype} is not bfloat16"
    if weight.shape[0] % TILE or weight.shape[1] % PAIR or not weight.numel():
        return f"a weight of {list(weight.shape)} is not made of tiles of {TILE} by {PAIR}"
    if not weight.is_cpu or not weight.is_contiguous():
        return "the weight is no dense piece of the host's memory"
    return None


def pack(layers: Iterable[nn.Module], models: Iterable[nn.Module], native: Native | Absent) -> str:
    """Pack `weight` of those of `layers` that alone hold it, one after the other; one line that says what was done.

    A packed weight is a parameter of its own, of the same shape and placements, and the rows go. Layers whose rows
    somebody else reads keep them: `keeps_dense_weight`, or memory that somebody else in `models` holds.
    """
    if isinstance(native, Absent) or native.isa not in PAYS:
        return "no: " + (native.reason if isinstance(native, Absent) else f"it pays with {', '.join(sorted(PAYS))}")
    holders = Counter(_memory(tensor) for tensor in _held(models))
    reasons: Counter[str] = Counter()
    packed_bytes = 0
    for layer in layers:
        weight = layer.get_parameter("weight")
        if is_packed(layer):
            packed_bytes += weight.nbytes
            continue
        reason = why_not_packed(weight)
        if reason is None and (layer.keeps_dense_weight or holders[_memory(weight)] != 1):
            reason = "its rows are read elsewhere"
        if reason is not None:
            reasons[reason] += 1
            continue
        fresh = nn.Parameter(torch.ops.trunnion_cpu.pack_linear(weight.detach()), requires_grad=False)
        fresh.__dict__.update(weight.__dict__)
        layer.weight = fresh
        layer.__dict__[PACKED] = fresh
        packed_bytes += fresh.nbytes
    kept = "".join(f"; {count} kept: {reason}" for reason, count in sorted(reasons.items()))
    return f"{packed_bytes:,} bytes{kept}"


def repack(layer: nn.Module) -> None:
    """Pack what a reload has brought, where the first one lies. A layer that was never packed is left alone."""
    before: nn.Parameter | None = layer.__dict__.get(PACKED)
    loaded = layer.get_parameter("weight")
    if before is None or before is loaded:
        return
    before.data.copy_(torch.ops.trunnion_cpu.pack_linear(loaded.detach()))
    loaded.data = before.data
    layer.__dict__[PACKED] = loaded


def _held(models: Iterable[nn.Module]) -> Iterator[torch.Tensor]:
    """What modules hold, once for each that does."""
    for model in models:
        for module in model.modules():
            yield from module.parameters(recurse=False)
            yield from module.buffers(recurse=False)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
