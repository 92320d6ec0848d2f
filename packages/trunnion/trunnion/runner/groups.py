"""From a model's group layers to groups bound to them, and to the cache groups that the host allocates."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import torch
from torch import nn

from trunnion.contract import CacheGroupSpec, CacheKind, Field, KVCacheSpec, LayerCaches, Limits
from trunnion.errors import UnsupportedError
from trunnion.interfaces.attention import EncoderSpec, Group, GroupSpec
from trunnion.interfaces.break_points import BreakPoints
from trunnion.interfaces.hardware import Hardware
from trunnion.interfaces.kv_events import KVEventGate
from trunnion.layers.group_layer import GroupLayer


@dataclass
class GroupMembers:
    """The layers of one attention group, what runs them, and where their caches lie in their cache group."""

    spec: GroupSpec
    group_class: type[Group]
    on_reference: str | None
    """Why the class is the reference's; None: it is the package's own."""
    cache_group: int | None = None
    """Which of `GroupLayout.cache_spec`'s; None: the layers cache nothing."""
    layers: list[GroupLayer] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class GroupLayout:
    """How a model's layers form groups.

    Layers with equal specs form an attention group. Attention groups whose caches look the same (kind, window and
    tensors) form a cache group: a difference in scale or query heads does not matter to the host. Groups of encoders
    have no caches, and the host knows nothing of them.
    """

    members: tuple[GroupMembers, ...]
    cache_spec: KVCacheSpec

    @property
    def needs_whole_prompts(self) -> bool:
        """Whether tokens see those after them."""
        return any(isinstance(entry.spec, EncoderSpec) for entry in self.members)


def lay_out_groups(model: nn.Module, hardware: Hardware, limits: Limits) -> GroupLayout:
    """The groups that `model` has on `hardware`; nothing is made or bound, so that the model may lie on meta.

    Raises:
        UnsupportedError: `limits` ask for the verification of drafts, which a group cannot do.
    """
    members: dict[GroupSpec, GroupMembers] = {}
    caches: dict[tuple[object, ...], list[GroupLayer]] = {}
    groups: list[CacheGroupSpec] = []
    for layer in (module for module in model.modules() if isinstance(module, GroupLayer)):
        spec = layer.spec
        if spec not in members:
            members[spec] = GroupMembers(spec, *hardware.group_class(spec))
            _check_verification(members[spec], layer.prefix, limits)
        entry = members[spec]
        entry.layers.append(layer)
        if spec.kind is None:
            continue
        key = (spec.kind, spec.window, entry.group_class.cache_tensors(spec, limits.block_size))
        entry.cache_group = list(caches).index(key) if key in caches else len(caches)
        own = caches.setdefault(key, [])
        entry.rows.append(len(own))
        own.append(layer)
    for (kind, window, tensors), layers in caches.items():
        groups.append(_cache_group(kind, window, tensors, layers, limits))  # type: ignore[arg-type]
    return GroupLayout(members=tuple(members.values()), cache_spec=KVCacheSpec(groups=tuple(groups)))


class BoundGroups:
    """All groups of a model. Attention groups share a plan; cache groups share a block table: see `GroupLayout`."""

    def __init__(
        self,
        model: nn.Module,
        hardware: Hardware,
        device: torch.device,
        limits: Limits,
        breaks: BreakPoints | None = None,
        gate: KVEventGate | None = None,
    ) -> None:
        layout = lay_out_groups(model, hardware, limits)
        self.cache_spec = layout.cache_spec
        self.on_reference: dict[str, str] = {}
        # Cache layers are numbered over all cache groups: where each group's numbers begin.
        begins = [0, *itertools.accumulate(len(group.layers) for group in self.cache_spec.groups)]
        gate = KVEventGate() if gate is None else gate
        self.groups: list[Group] = []
        self._cached: list[tuple[Group, int, list[int]]] = []
        """Groups with caches: which cache group is theirs, and where in it their layers are."""
        self.required_fields = Field.REQUIRED
        self.accepts_prefix_levels = False
        self.needs_whole_prompts = layout.needs_whole_prompts
        for entry in layout.members:
            spec, group_class = entry.spec, entry.group_class
            if entry.on_reference is not None:
                kind = "encoder" if spec.kind is None else spec.kind.value
                self.on_reference[f"{kind} group"] = entry.on_reference
            group = group_class(spec, len(entry.layers), device)
            self.groups.append(group)
            if entry.cache_group is None:
                for index, layer in enumerate(entry.layers):
                    layer.bind(group, index, breaks)
                continue
            begin = begins[entry.cache_group]
            for index, (layer, row) in enumerate(zip(entry.layers, entry.rows, strict=True)):
                layer.bind(group, index, breaks, gate.around(group.run, begin + row))  # type: ignore[attr-defined]
            self._cached.append((group, entry.cache_group, entry.rows))
            self.required_fields |= group_class.required_fields(spec)
            self.accepts_prefix_levels |= group_class.accepts_prefix_levels(spec)
            if spec.kind is CacheKind.RECURRENT and limits.max_decode_query_len > 1:
                self.required_fields |= Field.NUM_ACCEPTED

    def bind_kv_cache(self, caches: list[LayerCaches]) -> None:
        """Hand every group the caches of its layers."""
        for group, cache_index, rows in self._cached:
            group.bind_kv_cache(cache_index, [caches[cache_index][row] for row in rows])


def _check_verification(entry: GroupMembers, prefix: str, limits: Limits) -> None:
    reason = entry.group_class.why_no_verification(entry.spec)
    if reason is not None and limits.max_decode_query_len > 1:
        raise UnsupportedError(
            f"{prefix}: max_decode_query_len is {limits.max_decode_query_len}, at most 1 is possible: {reason}"
        )


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
