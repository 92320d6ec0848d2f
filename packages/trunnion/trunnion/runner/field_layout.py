"""What a step's fields are called, how large they are, which rows a step uses, and what the others are padded with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import torch

from trunnion.contract import BatchCounts, BatchTensors, CacheKind, Field, GroupTensors, KVCacheSpec, Limits
from trunnion.interfaces.runner import Bucket


class Padding(Enum):
    """What the rows between a step's counts and its bucket hold."""

    ZERO = "zero"
    """Token 0, position 0, type 0, no cached tokens, block 0 and state 0: all of them reserved or harmless."""
    SENTINEL = "sentinel"
    """-1: nothing is written."""
    REPEAT = "repeat"
    """The last row again: a request without tokens."""
    KEEP = "keep"
    """Whatever was there: nothing reads it."""


POLICIES = {
    "input_ids": Padding.ZERO,
    "positions": Padding.ZERO,
    "query_start_loc": Padding.REPEAT,
    "seq_lens": Padding.ZERO,
    "logits_indices": Padding.ZERO,
    "hidden_indices": Padding.ZERO,
    "encoder_indices": Padding.SENTINEL,
    "prefix_indptr": Padding.KEEP,
    "prefix_lens": Padding.KEEP,
    "token_type_ids": Padding.ZERO,
    "slot_mapping": Padding.SENTINEL,
    "block_table": Padding.ZERO,
    "kv_start": Padding.ZERO,
    "kv_indptr": Padding.REPEAT,
    "kv_indices": Padding.KEEP,
    "kv_last_page_len": Padding.ZERO,
    "state_indices": Padding.ZERO,
    "has_initial_state": Padding.ZERO,
    "num_accepted": Padding.ZERO,
}
"""Every field of a batch has a policy; one that is not listed cannot be laid out."""


@dataclass(frozen=True, kw_only=True)
class FieldLayout:
    """One field of a buffer set: its name as the host is told when it is refused, its capacity and row length."""

    name: str
    shape: tuple[int, ...]

    @property
    def leaf(self) -> str:
        """The field's name within its group."""
        return self.name.rpartition(".")[2]

    @property
    def padding(self) -> Padding:
        return POLICIES[self.leaf]

    @property
    def is_table(self) -> bool:
        """Fields that are long at capacity and short in use: they are uploaded by rows, the others in one piece."""
        return self.leaf in ("block_table", "kv_indices")

    @property
    def is_host_only(self) -> bool:
        """Fields that groups read while they plan, and nothing on the device does."""
        return self.leaf in PREFIX_LEVELS

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count


def field_layouts(
    limits: Limits,
    spec: KVCacheSpec,
    required: Field,
    num_position_axes: int = 1,
    *,
    prefix_levels: bool = False,
    token_types: bool = False,
) -> list[FieldLayout]:
    """All int32 fields of a batch at capacity, in the order they lie in memory: tables, then the host's own, last."""
    tokens, seqs = limits.max_num_tokens, limits.max_num_seqs
    shapes: dict[str, tuple[int, ...]] = {
        "input_ids": (tokens,),
        "positions": (tokens,) if num_position_axes == 1 else (tokens, num_position_axes),
        "query_start_loc": (seqs + 1,),
        "seq_lens": (seqs,),
        "logits_indices": (limits.max_logits_rows,),
    }
    if Field.HIDDEN_INDICES in required:
        shapes["hidden_indices"] = (tokens,)
    if Field.ENCODER_INDICES in required:
        shapes["encoder_indices"] = (tokens,)
    if prefix_levels:
        shapes["prefix_indptr"] = (seqs + 1,)
        shapes["prefix_lens"] = (seqs,)
    if token_types:
        shapes["token_type_ids"] = (tokens,)
    for index, group in enumerate(spec.groups):
        prefix = f"groups[{index}]."
        if group.kind is CacheKind.RECURRENT:
            shapes[prefix + "state_indices"] = (seqs, group.max_blocks_per_seq)
            shapes[prefix + "has_initial_state"] = (seqs,)
            if Field.NUM_ACCEPTED in required:
                shapes[prefix + "num_accepted"] = (seqs,)
            continue
        shapes[prefix + "slot_mapping"] = (tokens,)
        shapes[prefix + "block_table"] = (seqs, group.max_blocks_per_seq)
        shapes[prefix + "kv_start"] = (seqs,)
        if Field.KV_CSR in required:
            shapes[prefix + "kv_indptr"] = (seqs + 1,)
            shapes[prefix + "kv_indices"] = (seqs * group.max_blocks_per_seq,)
            shapes[prefix + "kv_last_page_len"] = (seqs,)
    layouts = [FieldLayout(name=name, shape=shape) for name, shape in shapes.items()]
    return sorted(layouts, key=lambda layout: (layout.is_host_only, layout.is_table))


def assemble(fields: dict[str, torch.Tensor], num_groups: int) -> BatchTensors:
    """`BatchTensors` from a flat mapping of field names."""
    groups = []
    for index in range(num_groups):
        prefix = f"groups[{index}]."
        names = (name for name in fields if name.startswith(prefix))
        groups.append(GroupTensors(**{name[len(prefix) :]: fields[name] for name in names}))
    common = {name: tensor for name, tensor in fields.items() if not name.startswith("groups[")}
    return BatchTensors(**common, groups=tuple(groups))


def iterate_fields(tensors: BatchTensors) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor that is there, with the name the host knows it by."""
    for name in BatchTensors.__dataclass_fields__:
        tensor = getattr(tensors, name)
        if name != "groups" and tensor is not None:
            yield name, tensor
    for index, group in enumerate(tensors.groups):
        for name in GroupTensors.__dataclass_fields__:
            tensor = getattr(group, name)
            if tensor is not None:
                yield f"groups[{index}].{name}", tensor


def is_there(layout: FieldLayout, counts: BatchCounts) -> bool:
    """Whether a step with `counts` brings the field."""
    if layout.is_host_only:
        return counts.num_prefixes > 0
    return layout.leaf != TOKEN_TYPES or counts.has_token_types == 1


def used_rows(layout: FieldLayout, counts: BatchCounts | Bucket) -> int:
    """How many leading rows of a field a step, or a bucket, uses; all of `kv_indices`, none of what is not there."""
    leaf = layout.leaf
    if layout.is_host_only:
        assert isinstance(counts, BatchCounts), "a bucket pads nothing of the host's own"
        return counts.num_prefixes + (leaf == "prefix_indptr")
    if leaf == TOKEN_TYPES and isinstance(counts, BatchCounts) and not is_there(layout, counts):
        return 0
    if leaf in PER_TOKEN:
        return counts.num_tokens
    if leaf in ("query_start_loc", "kv_indptr"):
        return counts.num_reqs + 1
    if leaf == "logits_indices":
        return counts.num_logits
    if leaf == "kv_indices":
        return layout.shape[0]
    return counts.num_reqs


TOKEN_TYPES = "token_type_ids"
"""The field of a step that may be without it though the model takes it."""

PER_TOKEN = ("input_ids", "positions", "hidden_indices", "encoder_indices", TOKEN_TYPES, "slot_mapping")
"""Fields with a row for each token of the step."""

PREFIX_LEVELS = ("prefix_indptr", "prefix_lens")
"""Fields with a row for each range of requests that share leading blocks, or one more."""
