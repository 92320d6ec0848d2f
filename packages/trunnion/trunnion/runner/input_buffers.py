"""Persistent inputs of an executor: one flat int32 block per buffer set, every field a view at a fixed address."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from trunnion.contract import (
    COUNT_FIELDS,
    BatchCounts,
    BatchTensors,
    CacheKind,
    Field,
    ForwardBatch,
    GroupTensors,
    KVCacheSpec,
    Limits,
)
from trunnion.errors import BatchRefused

_ALIGNMENT = 16
"""int32 elements: fields start on 64-byte boundaries."""


@dataclass(frozen=True, kw_only=True)
class FieldLayout:
    """One field of a buffer set: its name as the host is told when it is refused, its capacity and row length."""

    name: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count


def field_layouts(limits: Limits, spec: KVCacheSpec, required: Field) -> list[FieldLayout]:
    """All int32 fields of a batch at capacity, in the order they lie in memory."""
    tokens, seqs = limits.max_num_tokens, limits.max_num_seqs
    shapes: dict[str, tuple[int, ...]] = {
        "input_ids": (tokens,),
        "positions": (tokens,),
        "query_start_loc": (seqs + 1,),
        "seq_lens": (seqs,),
        "logits_indices": (limits.max_logits_rows,),
    }
    for index, group in enumerate(spec.groups):
        prefix = f"groups[{index}]."
        if group.kind is CacheKind.RECURRENT:
            shapes[prefix + "state_indices"] = (seqs,)
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
    return [FieldLayout(name=name, shape=shape) for name, shape in shapes.items()]


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
    for name in ("input_ids", "positions", "query_start_loc", "seq_lens", "logits_indices"):
        yield name, getattr(tensors, name)
    for index, group in enumerate(tensors.groups):
        for name in GroupTensors.__dataclass_fields__:
            tensor = getattr(group, name)
            if tensor is not None:
                yield f"groups[{index}].{name}", tensor


class BufferSet:
    """Lent staging of one step in flight: int64 `counts`, int32 fields, and float32 output rows.

    On a device that is the host, groups and model read these very tensors.
    """

    def __init__(self, limits: Limits, spec: KVCacheSpec, required: Field, vocab_size: int) -> None:
        layouts = field_layouts(limits, spec, required)
        offsets, end = [], 0
        for layout in layouts:
            offsets.append(end)
            end += -(-layout.numel // _ALIGNMENT) * _ALIGNMENT
        self.storage = torch.zeros(end, dtype=torch.int32)
        self.fields = {
            layout.name: self.storage[offset : offset + layout.numel].view(layout.shape)
            for layout, offset in zip(layouts, offsets, strict=True)
        }
        self.tensors = assemble(self.fields, len(spec.groups))
        self.counts = torch.zeros(len(COUNT_FIELDS), dtype=torch.int64)
        self._counts_view = memoryview(self.counts.numpy())
        self.logits = torch.zeros(limits.max_logits_rows, vocab_size, dtype=torch.float32)

    def read_counts(self) -> BatchCounts:
        """The integers that the host wrote to `counts`."""
        return BatchCounts(*self._counts_view)

    def adopt(self, batch: ForwardBatch) -> None:
        """Copy a batch that lies in the host's own tensors; fields that are the lent ones cost nothing.

        Raises:
            BatchRefused: a field is missing, not int32, not contiguous, on another device, or shorter than the counts.
        """
        offered = dict(iterate_fields(batch.tensors))
        missing = [name for name in self.fields if name not in offered]
        if missing:
            raise BatchRefused(f"{missing[0]}: the field is required and missing")
        plan = [
            (field, *_checked_rows(name, offered[name], field, batch.counts))
            for name, field in self.fields.items()
            if offered[name].data_ptr() != field.data_ptr()
        ]
        for field, source, rows in plan:
            target = field[:rows]
            if field.dim() == 2:
                target.zero_()
                target = target[:, : source.shape[1]]
            target.copy_(source[:rows])


def _checked_rows(
    name: str, tensor: torch.Tensor, field: torch.Tensor, counts: BatchCounts
) -> tuple[torch.Tensor, int]:
    """The offered tensor and the rows of it that the step uses."""
    if tensor.dtype != torch.int32:
        raise BatchRefused(f"{name}: dtype {tensor.dtype} is not torch.int32")
    if tensor.device != field.device:
        raise BatchRefused(f"{name}: lies on {tensor.device}, expected {field.device}")
    if tensor.dim() != field.dim():
        raise BatchRefused(f"{name}: has {tensor.dim()} dimensions, expected {field.dim()}")
    if not tensor.is_contiguous():
        raise BatchRefused(f"{name}: strides {tensor.stride()} are not contiguous")
    rows = _rows(name, tensor, counts)
    if not rows <= tensor.shape[0]:
        raise BatchRefused(f"{name}: has {tensor.shape[0]} rows, the step needs {rows}")
    if rows > field.shape[0]:
        raise BatchRefused(f"{name}: needs {rows} rows, the limits allow {field.shape[0]}")
    if tensor.dim() == 2 and tensor.shape[1] > field.shape[1]:
        raise BatchRefused(f"{name}: has {tensor.shape[1]} columns, the limits allow {field.shape[1]}")
    return tensor, rows


def _rows(name: str, tensor: torch.Tensor, counts: BatchCounts) -> int:
    """How many leading rows of a field one step uses."""
    leaf = name.rpartition(".")[2]
    if leaf in ("input_ids", "positions", "slot_mapping"):
        return counts.num_tokens
    if leaf in ("query_start_loc", "kv_indptr"):
        return counts.num_reqs + 1
    if leaf == "logits_indices":
        return counts.num_logits
    if leaf == "kv_indices":
        # As long as the offered tensor: the CSR row pointers say how much of it counts.
        return int(tensor.shape[0])
    return counts.num_reqs


class StepViews:
    """Views of a buffer set cut to a step's counts, kept so that a steady step creates no tensor at the boundary."""

    def __init__(self, buffers: BufferSet, num_groups: int, capacity: int = 64) -> None:
        self._buffers = buffers
        self._num_groups = num_groups
        self._capacity = capacity
        self._cut: dict[tuple[int, int, int], tuple[BatchTensors, torch.Tensor]] = {}

    def cut(self, counts: BatchCounts) -> tuple[BatchTensors, torch.Tensor]:
        """The set's tensors cut to `counts`, and its logits rows [N, vocab_size]."""
        key = (counts.num_tokens, counts.num_reqs, counts.num_logits)
        found = self._cut.get(key)
        if found is None:
            if len(self._cut) >= self._capacity:
                self._cut.pop(next(iter(self._cut)))
            fields = {
                name: field if name.endswith("kv_indices") else field[: _rows(name, field, counts)]
                for name, field in self._buffers.fields.items()
            }
            found = assemble(fields, self._num_groups), self._buffers.logits[: counts.num_logits]
            self._cut[key] = found
        return found
