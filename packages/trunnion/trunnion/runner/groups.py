"""From a model's group layers to groups bound to them, and to the cache groups that the host allocates."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import torch
from torch import nn

from trunnion.contract import CacheGroupSpec, CacheKind, Field, KVCacheSpec, LayerCaches, Limits
from trunnion.interfaces.attention import EncoderSpec, Group, GroupSpec
from trunnion.interfaces.break_points import BreakPoints
from trunnion.interfaces.hardware import Hardware
from trunnion.interfaces.kv_events import KVEventGate
from trunnion.layers.group_layer import GroupLayer


@dataclass
class _Members:
    """The layers of one attention group, and where their caches lie in their cache group."""

    spec: GroupSpec
    layers: list[GroupLayer] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)


class BoundGroups:
    """All groups of a model. Attention groups share a plan; cache groups share a block table.

    Layers with equal specs form an attention group. Attention groups whose caches look the same (kind, window and
    tensors) form a cache group: a difference in scale or query heads does not matter to the host. Groups of encoders
    have no caches, and the host knows nothing of them.
    """

    def __init__(
        self,
        model: nn.Module,
        hardware: Hardware,
        device: torch.device,
        limits: Limits,
        breaks: BreakPoints | None = None,
        gate: KVEventGate | None = None,
    ) -> None:
        layers = [module for module in model.modules() if isinstance(module, GroupLayer)]
        members: dict[GroupSpec, _Members] = {}
        caches: dict[tuple[object, ...], list[GroupLayer]] = {}
        group_of: dict[GroupSpec, int] = {}
        self.on_reference: dict[str, str] = {}
        self._tensors = []
        for layer in layers:
            spec = layer.spec
            entry = members.setdefault(spec, _Members(spec))
            entry.layers.append(layer)
            if spec.kind is None:
                continue
            group_class, _ = hardware.group_class(spec)
            tensors = group_class.cache_tensors(spec, limits.block_size)
            key = (spec.kind, spec.window, tensors)
            if key not in caches:
                caches[key] = []
                self._tensors.append(tensors)
            group_of[spec] = list(caches).index(key)
            entry.rows.append(len(caches[key]))
            caches[key].append(layer)

        self.cache_spec = KVCacheSpec(
            groups=tuple(
                _cache_group(key[0], key[1], key[2], caches[key], limits)  # type: ignore[arg-type]
                for key in caches
            )
        )
        # Cache layers are numbered over all cache groups: where each group's numbers begin.
        begins = [0, *itertools.accumulate(len(group.layers) for group in self.cache_spec.groups)]
        gate = KVEventGate() if gate is None else gate
        self.groups: list[Group] = []
        self._cached: list[tuple[Group, int, list[int]]] = []
        """Groups with caches: which cache group is theirs, and where in it their layers are."""
        self.required_fields = Field.REQUIRED
        self.accepts_prefix_levels = False
        self.needs_whole_prompts = any(isinstance(spec, EncoderSpec) for spec in members)
        for spec, entry in members.items():
            group_class, reason = hardware.group_class(spec)
            if reason is not None:
                self.on_reference[f"{'encoder' if spec.kind is None else spec.kind.value} group"] = reason
            group = group_class(spec, len(entry.layers), device)
            self.groups.append(group)
            if spec.kind is None:
                for index, layer in enumerate(entry.layers):
                    layer.bind(group, index, breaks)
                continue
            begin = begins[group_of[spec]]
            for index, (layer, row) in enumerate(zip(entry.layers, entry.rows, strict=True)):
                layer.bind(group, index, breaks, gate.around(group.run, begin + row))  # type: ignore[attr-defined]
            self._cached.append((group, group_of[spec], entry.rows))
            self.required_fields |= group_class.required_fields(spec)
            self.accepts_prefix_levels |= group_class.accepts_prefix_levels(spec)
            if spec.kind is CacheKind.RECURRENT and limits.max_decode_query_len > 1:
                self.required_fields |= Field.NUM_ACCEPTED

    def bind_kv_cache(self, caches: list[LayerCaches]) -> None:
        """Hand every group the caches of its layers."""
        for group, cache_index, rows in self._cached:
            group.bind_kv_cache(cache_index, [caches[cache_index][row] for row in rows])


def _cache_group(
    kind: CacheKind, window: int | None, tensors: tuple, layers: list[GroupLayer], limits: Limits
) -> CacheGroupSpec:
    if kind is CacheKind.RECURRENT:
        block_size, max_blocks = 0, limits.max_decode_query_len
    else:
        block_size = limits.block_size
        longest = limits.max_model_len
        if window is not None:
            # A chunk's first query still sees window - 1 tokens before it, and the first block may be cut anywhere.
            longest = min(longest, window - 1 + limits.max_num_tokens + block_size)
        max_blocks = -(-longest // block_size)
    return CacheGroupSpec(
        kind=kind,
        layers=tuple(layer.prefix for layer in layers),
        tensors=tensors,
        block_size=block_size,
        max_blocks_per_seq=max_blocks,
        window=window,
    )
