"""Staging, padding and upload: what a captured graph finds at its fixed addresses."""

from __future__ import annotations

import pytest
import torch

from trunnion.contract import BatchCounts, CacheGroupSpec, CacheKind, Field, KVCacheSpec, Limits
from trunnion.runner.buckets import Bucket, Mode
from trunnion.runner.field_layout import POLICIES, field_layouts
from trunnion.runner.input_buffers import InputBuffers

LIMITS = Limits(max_num_tokens=12, max_num_seqs=4, max_model_len=16, max_logits_rows=6, block_size=4)
SPEC = KVCacheSpec(
    groups=(
        CacheGroupSpec(kind=CacheKind.FULL, layers=("a",), tensors=(), block_size=4, max_blocks_per_seq=4),
        CacheGroupSpec(kind=CacheKind.RECURRENT, layers=("b",), tensors=(), block_size=0, max_blocks_per_seq=1),
    )
)
ALL = Field.KV_CSR | Field.NUM_ACCEPTED | Field.HIDDEN_INDICES | Field.ENCODER_INDICES
JUNK = -777


def _buffers(*, static: bool = True) -> InputBuffers:
    optional = {"prefix_levels": True, "token_types": True}
    return InputBuffers(LIMITS, SPEC, ALL, 5, torch.device("cpu"), static=static, on_host=True, **optional)


def _fill(buffers: InputBuffers, buffer_set: int, counts: BatchCounts, value: int) -> None:
    """As a host would: rows of the step, junk behind them."""
    lent = buffers.sets[buffer_set]
    lent.storage.fill_(JUNK)
    for field in lent.fields.values():
        field[: counts.num_tokens] = value
    lent.fields["query_start_loc"][: counts.num_reqs + 1] = torch.arange(counts.num_reqs + 1, dtype=torch.int32)
    lent.fields["groups[0].kv_indptr"][: counts.num_reqs + 1] = torch.arange(counts.num_reqs + 1, dtype=torch.int32)


def test_every_field_has_a_policy() -> None:
    layouts = field_layouts(LIMITS, SPEC, ALL, prefix_levels=True, token_types=True)
    assert {layout.leaf for layout in layouts} == set(POLICIES)
    without = field_layouts(LIMITS, SPEC, ALL)
    optional = {layout.leaf for layout in layouts if layout not in without}
    assert optional == {*(x.leaf for x in layouts if x.is_host_only), "token_type_ids"}


@pytest.mark.parametrize("static", [True, False])
def test_types_of_tokens_are_zero_in_a_step_without_them(static: bool) -> None:
    """At the same address as those of a step with them; absent where the step reads the lent tensors."""
    buffers = _buffers(static=static)
    typed = BatchCounts(num_tokens=3, num_reqs=3, num_logits=1, has_token_types=1)
    plain = BatchCounts(num_tokens=3, num_reqs=3, num_logits=1)
    bucket = Bucket(mode=Mode.PIECEWISE, num_tokens=4, num_reqs=3, num_logits=2)
    _fill(buffers, 0, typed, 1)
    _fill(buffers, 1, plain, JUNK)
    first = buffers.stage(0, typed, bucket)
    assert first.host.token_type_ids.tolist() == [1, 1, 1]
    assert first.device.token_type_ids.tolist() == ([1, 1, 1, 0] if static else [1, 1, 1])
    address = first.device.token_type_ids.data_ptr()
    second = buffers.stage(1, plain, bucket)
    assert second.host.token_type_ids is None
    if not static:
        assert second.device.token_type_ids is None
        return
    assert second.device.token_type_ids.tolist() == [0, 0, 0, 0]
    assert second.device.token_type_ids.data_ptr() == address
    assert buffers.stage(1, plain, bucket).device is second.device, "views are kept"


@pytest.mark.parametrize("static", [True, False])
def test_prefix_levels_stay_with_the_host(static: bool) -> None:
    """Cut to the step's ranges, absent in a step without any, and not in the device's block."""
    buffers = _buffers(static=static)
    counts = BatchCounts(num_tokens=3, num_reqs=3, num_logits=1, num_prefixes=2)
    _fill(buffers, 0, counts, 9)
    lent = buffers.sets[0].fields
    lent["prefix_indptr"][:3] = torch.tensor([0, 2, 3], dtype=torch.int32)
    lent["prefix_lens"][:2] = torch.tensor([8, 0], dtype=torch.int32)
    bucket = Bucket(mode=Mode.PIECEWISE, num_tokens=4, num_reqs=3, num_logits=2)
    step = buffers.stage(0, counts, bucket)
    assert step.host.prefix_indptr.tolist() == [0, 2, 3] and step.host.prefix_lens.tolist() == [8, 0]
    if static:
        assert step.device.prefix_indptr is None and step.device.prefix_lens is None
        assert not any(layout.is_host_only for layout in buffers.device_block.layouts)
    assert buffers.stage(0, counts, bucket).host is step.host, "views are kept"
    without = BatchCounts(num_tokens=3, num_reqs=3, num_logits=1)
    host = buffers.stage(0, without, bucket).host
    assert host.prefix_indptr is None and host.prefix_lens is None
    assert host.seq_lens.data_ptr() == step.host.seq_lens.data_ptr()


def test_padding_rows_hold_what_their_policy_says() -> None:
    """Three requests in a bucket of four, five tokens in eight."""
    buffers = _buffers()
    counts = BatchCounts(num_tokens=5, num_reqs=3, num_logits=3)
    _fill(buffers, 0, counts, 9)
    device = buffers.stage(0, counts, Bucket(mode=Mode.FULL, num_tokens=8, num_reqs=4, num_logits=6)).device
    assert device.input_ids.tolist() == [9] * 5 + [0] * 3
    assert device.positions.tolist() == [9] * 5 + [0] * 3
    assert device.query_start_loc.tolist() == [0, 1, 2, 3, 3]
    assert device.seq_lens.tolist()[3:] == [0]
    assert device.logits_indices.tolist()[3:] == [0, 0, 0]
    full, recurrent = device.groups
    assert full.slot_mapping.tolist() == [9] * 5 + [-1] * 3
    assert full.block_table[3].tolist() == [0, 0, 0, 0]
    assert full.kv_start.tolist()[3:] == [0]
    assert full.kv_indptr.tolist() == [0, 1, 2, 3, 3]
    assert recurrent.state_indices.tolist()[3:] == [[0]]
    assert recurrent.has_initial_state.tolist()[3:] == [0]


def test_a_smaller_step_leaves_nothing_of_the_larger_one() -> None:
    """Eight rows, then five: rows five to seven are padding again."""
    buffers = _buffers()
    bucket = Bucket(mode=Mode.PIECEWISE, num_tokens=8, num_reqs=4, num_logits=4)
    large, small = (
        BatchCounts(num_tokens=8, num_reqs=4, num_logits=4),
        BatchCounts(num_tokens=5, num_reqs=2, num_logits=1),
    )
    _fill(buffers, 0, large, 9)
    buffers.stage(0, large, bucket)
    _fill(buffers, 1, small, 7)
    device = buffers.stage(1, small, bucket).device
    assert device.input_ids.tolist() == [7] * 5 + [0] * 3
    assert device.groups[0].slot_mapping.tolist() == [7] * 5 + [-1] * 3
    assert device.seq_lens.tolist()[2:] == [0, 0]
    assert (device.groups[0].block_table[2:] == 0).all()


def test_both_sets_go_to_the_same_device_addresses() -> None:
    buffers = _buffers()
    counts = BatchCounts(num_tokens=4, num_reqs=4, num_logits=4)
    bucket = Bucket(mode=Mode.FULL, num_tokens=4, num_reqs=4, num_logits=4)
    _fill(buffers, 0, counts, 1)
    _fill(buffers, 1, counts, 2)
    first = buffers.stage(0, counts, bucket)
    address = first.device.input_ids.data_ptr()
    second = buffers.stage(1, counts, bucket)
    assert second.device.input_ids.data_ptr() == address != second.host.input_ids.data_ptr()
    assert second.device.input_ids.tolist() == [2] * 4
    assert first.host.input_ids.tolist() == [1] * 4, "the other set's staging is untouched"
    assert second.device is buffers.stage(1, counts, bucket).device, "views are kept"


def test_without_static_inputs_a_step_reads_the_lent_tensors() -> None:
    buffers = _buffers(static=False)
    counts = BatchCounts(num_tokens=4, num_reqs=2, num_logits=1)
    _fill(buffers, 0, counts, 3)
    step = buffers.stage(0, counts, Bucket.exact(counts))
    assert step.device is step.host
    assert step.device.input_ids.data_ptr() == buffers.sets[0].fields["input_ids"].data_ptr()
    assert buffers.sets[0].fields["input_ids"][4] == JUNK, "nothing is padded"


@pytest.mark.parametrize("rows", [1, 3, 6])
def test_output_rows_are_cut_once(rows: int) -> None:
    buffers = _buffers()
    assert buffers.output_rows(0, rows) is buffers.output_rows(0, rows)
    assert buffers.output_rows(0, rows).shape == (rows, 5)
    assert buffers.output_rows(0, rows).data_ptr() == buffers.sets[0].output_rows.data_ptr()
