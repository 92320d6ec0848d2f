"""Persistent inputs of an executor: two sets of lent staging, and one set of device inputs at fixed addresses."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from trunnion.contract import (
    COUNT_FIELDS,
    BatchCounts,
    BatchTensors,
    Field,
    ForwardBatch,
    KVCacheSpec,
    Limits,
    Staging,
)
from trunnion.errors import BatchRefused
from trunnion.interfaces.attention import StepInputs
from trunnion.interfaces.runner import Bucket, Mode
from trunnion.runner.field_layout import (
    FieldLayout,
    Padding,
    assemble,
    field_layouts,
    is_there,
    iterate_fields,
    used_rows,
)
from trunnion.runner.hidden_states import HiddenStates

_ALIGNMENT = 16
"""int32 elements: fields start on 64-byte boundaries."""


NUM_BUFFER_SETS = 2
"""Steps that may be in flight: the host fills one set while the other's step runs."""


class FieldBlock:
    """All fields of a batch in one flat int32 block: a copy of the block's head copies every field but the tables."""

    def __init__(
        self, layouts: list[FieldLayout], num_groups: int, device: torch.device, *, pinned: bool = False
    ) -> None:
        self.layouts = layouts
        offsets, end = [], 0
        self.head_end = 0
        for layout in layouts:
            offsets.append(end)
            end += -(-layout.numel // _ALIGNMENT) * _ALIGNMENT
            if not (layout.is_table or layout.is_host_only):
                self.head_end = end
        self.storage = torch.zeros(end, dtype=torch.int32, device=device, pin_memory=pinned)
        self.fields = {
            layout.name: self.storage[offset : offset + layout.numel].view(layout.shape)
            for layout, offset in zip(layouts, offsets, strict=True)
        }
        self.tensors = assemble(self.fields, num_groups)


class BufferSet(FieldBlock):
    """Lent staging of one step in flight: int64 `counts`, int32 fields, and float32 output rows.

    With device staging the output rows lie on the device.

    On a device that is the host, an eager runner's groups and model read these very tensors.
    """

    def __init__(self, layouts: list[FieldLayout], num_groups: int, output_rows: torch.Tensor, *, pinned: bool) -> None:
        super().__init__(layouts, num_groups, torch.device("cpu"), pinned=pinned)
        self._arrays = {name: field.numpy() for name, field in self.fields.items()}
        self.counts = torch.zeros(len(COUNT_FIELDS), dtype=torch.int64)
        self._counts_view = memoryview(self.counts.numpy())
        self.output_rows = output_rows

    def read_counts(self) -> BatchCounts:
        """The integers that the host wrote to `counts`."""
        return BatchCounts(*self._counts_view)

    def pad(self, counts: BatchCounts, bucket: Bucket) -> None:
        """Fill the rows between the step's counts and the bucket by each field's policy."""
        for layout in self.layouts:
            if layout.padding is Padding.KEEP:
                continue
            used, wanted = used_rows(layout, counts), used_rows(layout, bucket)
            if wanted <= used:
                continue
            rows = self._arrays[layout.name]
            if layout.padding is Padding.REPEAT:
                rows[used:wanted] = rows[used - 1]
            else:
                rows[used:wanted] = -1 if layout.padding is Padding.SENTINEL else 0

    def shares_blocks(self, counts: BatchCounts) -> bool:
        """Whether one of the step's prefix levels says that requests share anything."""
        return bool(self._arrays["prefix_lens"][: counts.num_prefixes].any())

    def used_indices(self, name: str, counts: BatchCounts) -> int:
        """How many entries of a `kv_indices` field the step uses, by its row pointers."""
        pointers: np.ndarray = self._arrays[name.replace("kv_indices", "kv_indptr")]
        return int(pointers[counts.num_reqs])

    def adopt(self, batch: ForwardBatch) -> None:
        """Copy a batch that lies in the host's own tensors; fields that are the lent ones cost nothing.

        Raises:
            BatchRefused: a field is missing, not int32, not contiguous, on another device, or shorter than the counts.
        """
        offered = dict(iterate_fields(batch.tensors))
        wanted = [layout.name for layout in self.layouts if is_there(layout, batch.counts)]
        missing = [name for name in wanted if name not in offered]
        if missing:
            raise BatchRefused(f"{missing[0]}: the field is required and missing")
        plan = [
            (self.fields[name], *_checked_rows(name, offered[name], self.fields[name], batch.counts))
            for name in wanted
            if offered[name].data_ptr() != self.fields[name].data_ptr()
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
    layout = FieldLayout(name=name, shape=tuple(field.shape))
    if tensor.dim() == 2 and tensor.shape[1] != field.shape[1] and not layout.is_table:
        raise BatchRefused(f"{name}: has {tensor.shape[1]} columns, expected {field.shape[1]}")
    if tensor.dim() == 2 and tensor.shape[1] > field.shape[1]:
        raise BatchRefused(f"{name}: has {tensor.shape[1]} columns, the limits allow {field.shape[1]}")
    return tensor, rows


def _rows(name: str, tensor: torch.Tensor, counts: BatchCounts) -> int:
    """How many leading rows of an offered tensor one step uses."""
    layout = FieldLayout(name=name, shape=tuple(tensor.shape))
    # The CSR row pointers say how much of kv_indices counts.
    return int(tensor.shape[0]) if layout.leaf == "kv_indices" else used_rows(layout, counts)


Rows = tuple[int, int, int, int, int]
"""Tokens, requests, logits rows, ranges of requests that share leading blocks, and 1 if there are types of tokens."""


class InputBuffers:
    """Every persistent input of an executor.

    With `static` inputs there is one more block, on the device, that captured graphs read: the host's rows are padded
    to the bucket and uploaded there, in one piece and the used rows of each table. Without, on a device that is the
    host, a step reads the lent tensors themselves. Views are kept, so that a steady step creates no tensor.
    """

    def __init__(
        self,
        limits: Limits,
        spec: KVCacheSpec,
        required: Field,
        output_width: int,
        device: torch.device,
        *,
        static: bool,
        on_host: bool,
        num_position_axes: int = 1,
        prefix_levels: bool = False,
        token_types: bool = False,
        hidden_states: HiddenStates | None = None,
        target_states: torch.Tensor | None = None,
        encoder_pool: torch.Tensor | None = None,
        staging: Staging = Staging.HOST,
        kept_views: int = 64,
    ) -> None:
        optional = {"prefix_levels": prefix_levels, "token_types": token_types}
        layouts = field_layouts(limits, spec, required, num_position_axes, **optional)
        self._num_groups = len(spec.groups)
        self._encoder_pool = encoder_pool
        self._target_states = target_states
        self._kept_views = kept_views
        self.hidden_states = hidden_states
        pinned, rows = not on_host, limits.max_logits_rows
        self.sampled_ids: torch.Tensor | None = None
        """[max_logits_rows] int32 on the device, written by the host between steps; None with host staging."""
        outputs: dict[str, Any] = {"pin_memory": pinned}
        if staging is Staging.DEVICE:
            self.sampled_ids = torch.zeros(rows, dtype=torch.int32, device=device)
            outputs = {"device": device}
        self.sets = [
            BufferSet(layouts, self._num_groups, torch.zeros(rows, output_width, **outputs), pinned=pinned)
            for _ in range(NUM_BUFFER_SETS)
        ]
        needs_device = static or not on_host
        on_device = [layout for layout in layouts if not layout.is_host_only]
        self.device_block = FieldBlock(on_device, self._num_groups, device) if needs_device else None
        self._views: dict[tuple[int, Rows], BatchTensors] = {}
        self._outputs: dict[tuple[int, int], torch.Tensor] = {}

    def stage(self, buffer_set: int, counts: BatchCounts, bucket: Bucket) -> StepInputs:
        """The step in `buffer_set`, padded to `bucket` and uploaded."""
        lent, hidden = self.sets[buffer_set], None
        if self.hidden_states is not None:
            hidden = self.hidden_states.first(bucket.num_tokens)
        host_rows = counts.num_tokens, counts.num_reqs, counts.num_logits, counts.num_prefixes, counts.has_token_types
        host = self._cut(buffer_set, lent, host_rows)
        if self.device_block is None:
            return self._step(counts, host, host, hidden, in_graph=False)
        lent.pad(counts, bucket)
        self._upload(lent, self.device_block, counts, bucket)
        # Types are there in any case, at their address: a step without them has padding for them.
        device = self._cut(-1, self.device_block, (bucket.num_tokens, bucket.num_reqs, bucket.num_logits, 0, 1))
        return self._step(counts, host, device, hidden, in_graph=bucket.mode is Mode.FULL)

    def _step(
        self,
        counts: BatchCounts,
        host: BatchTensors,
        device: BatchTensors,
        hidden: torch.Tensor | None,
        *,
        in_graph: bool,
    ) -> StepInputs:
        pool, sampled, states = self._encoder_pool, self.sampled_ids, self._target_states
        return StepInputs(counts, host, device, in_graph, hidden, pool, sampled, states)

    def output_rows(self, buffer_set: int, rows: int) -> torch.Tensor:
        """The set's output rows `[0, rows)`."""
        found = self._outputs.get((buffer_set, rows))
        if found is None:
            found = self._outputs[buffer_set, rows] = self.sets[buffer_set].output_rows[:rows]
        return found

    @staticmethod
    def _upload(lent: BufferSet, block: FieldBlock, counts: BatchCounts, bucket: Bucket) -> None:
        end = block.head_end
        block.storage[:end].copy_(lent.storage[:end], non_blocking=True)
        for layout in block.layouts:
            if layout.is_table:
                is_csr = layout.leaf == "kv_indices"
                rows = lent.used_indices(layout.name, counts) if is_csr else used_rows(layout, bucket)
                block.fields[layout.name][:rows].copy_(lent.fields[layout.name][:rows], non_blocking=True)

    def _cut(self, owner: int, block: FieldBlock, rows: Rows) -> BatchTensors:
        """The block's tensors cut to `rows`, the oldest of `kept_views` forgotten."""
        found = self._views.get((owner, rows))
        if found is None:
            if len(self._views) >= self._kept_views:
                self._views.pop(next(iter(self._views)))
            names = ("num_tokens", "num_reqs", "num_logits", "num_prefixes", "has_token_types")
            counts = BatchCounts(**dict(zip(names, rows, strict=True)))
            fields = {
                layout.name: block.fields[layout.name][: used_rows(layout, counts)]
                for layout in block.layouts
                if is_there(layout, counts)
            }
            found = self._views[owner, rows] = assemble(fields, self._num_groups)
        return found
