"""Weights of linear layers in bfloat16, packed once as native products read them, in the place of their rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

import torch
from torch import nn

from trunnion.layers.vocab_embedding import ParallelLMHead
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
    somebody else reads keep them: `keeps_dense_weight`, or memory that somebody else in `models` holds. The embedding
    that a head is tied to reads none: it looks them up in the packed weight from then on, by the head's method.
    """
    if isinstance(native, Absent) or native.isa not in PAYS:
        return "no: " + (native.reason if isinstance(native, Absent) else f"it pays with {', '.join(sorted(PAYS))}")
    holders = _holders(models)
    reasons: Counter[str] = Counter()
    packed_bytes = 0
    for layer in layers:
        owner = _owner(layer)
        weight = owner.get_parameter("weight")
        if is_packed(owner):
            packed_bytes += weight.nbytes
            continue
        reason = why_not_packed(weight)
        if reason is None and (owner.keeps_dense_weight or not _alone(layer, owner, holders)):
            reason = "its rows are read elsewhere"
        if reason is not None:
            reasons[reason] += 1
            continue
        fresh = nn.Parameter(torch.ops.trunnion_cpu.pack_linear(weight.detach()), requires_grad=False)
        fresh.__dict__.update(weight.__dict__)
        layer.weight = owner.weight = fresh
        owner.__dict__[PACKED] = fresh
        if owner is not layer:
            owner.weight_method = layer.method
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


def _owner(layer: nn.Module) -> nn.Module:
    """Whose weight `layer` multiplies with: its own, or that of the embedding that it is tied to."""
    embedding = layer.tied_to if isinstance(layer, ParallelLMHead) else None
    return layer if embedding is None else embedding


def _alone(layer: nn.Module, owner: nn.Module, holders: Mapping[int, list[nn.Module]]) -> bool:
    """Whether `layer` and `owner` hold the weight, and nobody else."""
    found = holders.get(_memory(owner.get_parameter("weight")), [])
    own = {layer, owner}
    return len(found) == len(own) and set(found) == own


def _holders(models: Iterable[nn.Module]) -> Mapping[int, list[nn.Module]]:
    """Memory -> modules that hold it, once for each tensor of theirs in it."""
    found: dict[int, list[nn.Module]] = defaultdict(list)
    for model in models:
        for module in model.modules():
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                found[_memory(tensor)].append(module)
    return found


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
