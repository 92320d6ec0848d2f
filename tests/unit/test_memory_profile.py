"""The reference's memory profile is above what torch's profiler sees of a worst-case step, and not absurdly so."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import trunnion_models
from trunnion import registry
from trunnion.config import BuildContext
from trunnion.contract import BatchCounts, BatchTensors, CacheKind, GroupTensors, KVCacheSpec, Limits
from trunnion.interfaces.attention import StepInputs
from trunnion.interfaces.break_points import BreakPoints
from trunnion.reference import ReferenceHardware
from trunnion.reference.memory_profile import profile_encoder
from trunnion.runner.groups import BoundGroups

FAMILIES = [module.name for module in pkgutil.iter_modules(trunnion_models.__path__) if module.ispkg]
LENGTH = 64
LIMITS = Limits(max_num_tokens=LENGTH, max_num_seqs=1, max_model_len=LENGTH, max_logits_rows=LENGTH, block_size=4)
VERIFYING = dataclasses.replace(LIMITS, max_num_seqs=16, max_decode_query_len=4)
LARGE_STATES = {"linear_key_head_dim": 64, "linear_value_head_dim": 64}


def _ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _longest_step(spec: KVCacheSpec, num_position_axes: int) -> StepInputs:
    """One request that fills every limit."""
    tokens = torch.arange(LENGTH, dtype=torch.int32)
    paged = GroupTensors(
        slot_mapping=tokens + LIMITS.block_size,
        block_table=torch.arange(1, 1 + LENGTH // LIMITS.block_size, dtype=torch.int32)[None],
        kv_start=_ints(0),
    )
    recurrent = GroupTensors(state_indices=_ints(1)[None], has_initial_state=_ints(0))
    tensors = BatchTensors(
        input_ids=tokens,
        positions=tokens if num_position_axes == 1 else tokens[:, None].repeat(1, num_position_axes),
        query_start_loc=_ints(0, LENGTH),
        seq_lens=_ints(LENGTH),
        logits_indices=tokens,
        groups=tuple(recurrent if group.kind is CacheKind.RECURRENT else paged for group in spec.groups),
    )
    return StepInputs(BatchCounts(num_tokens=LENGTH, num_reqs=1, num_logits=LENGTH), tensors, tensors)


def _verifications(spec: KVCacheSpec) -> StepInputs:
    """As many requests as there may be, each with as many drafts."""
    seqs, width = VERIFYING.max_num_seqs, VERIFYING.max_decode_query_len
    blocks = torch.arange(1, 1 + seqs, dtype=torch.int32)
    paged = GroupTensors(
        slot_mapping=(blocks[:, None] * VERIFYING.block_size + torch.arange(width, dtype=torch.int32)).flatten(),
        block_table=torch.nn.functional.pad(blocks[:, None], (0, LENGTH // VERIFYING.block_size - 1)),
        kv_start=torch.zeros(seqs, dtype=torch.int32),
    )
    recurrent = GroupTensors(
        state_indices=torch.arange(1, 1 + seqs * width, dtype=torch.int32).view(seqs, width),
        has_initial_state=torch.ones(seqs, dtype=torch.int32),
        num_accepted=torch.ones(seqs, dtype=torch.int32),
    )
    rows = torch.arange(LENGTH, dtype=torch.int32)
    tensors = BatchTensors(
        input_ids=rows,
        positions=rows % width,
        query_start_loc=torch.arange(0, LENGTH + 1, width, dtype=torch.int32),
        seq_lens=torch.full((seqs,), width, dtype=torch.int32),
        logits_indices=rows,
        groups=tuple(recurrent if group.kind is CacheKind.RECURRENT else paged for group in spec.groups),
    )
    counts = BatchCounts(num_tokens=LENGTH, num_reqs=seqs, num_logits=LENGTH, num_decodes=seqs, decode_query_len=width)
    return StepInputs(counts, tensors, tensors)


def _peak_bytes(run: Any) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        kept = run()
    current = peak = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            current += event.nbytes()
            peak = max(peak, current)
    assert kept is not None
    return peak


CASES = [*((family, LIMITS) for family in FAMILIES), ("qwen3_next", VERIFYING)]


@pytest.mark.parametrize(("family", "limits"), CASES, ids=[*FAMILIES, "qwen3_next-verifying"])
def test_bound_holds_for_the_largest_step(family: str, limits: Limits) -> None:
    card = next(card for card in importlib.import_module(f"trunnion_models.{family}.card").CARDS if card.quick)
    config = card.config if limits is LIMITS else {**card.config, **LARGE_STATES}
    model_class = registry.model_class({**config, "architectures": [card.architecture]})
    hardware = ReferenceHardware()
    ctx = BuildContext(hardware=hardware, dtype=torch.float32, max_model_len=LENGTH)
    model = model_class(model_class.config_class.from_hf(config), ctx)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.02)
    bound = BoundGroups(model, hardware, torch.device("cpu"), limits)
    num_blocks = LENGTH + 1
    bound.bind_kv_cache(
        [
            [{t.name: torch.zeros(num_blocks, *t.shape, dtype=t.dtype) for t in group.tensors} for _ in group.layers]
            for group in bound.cache_spec.groups
        ]
    )
    runner = hardware.create_runner(model, bound.groups, limits, BreakPoints())
    if limits is VERIFYING:
        step = _verifications(bound.cache_spec)
    else:
        step = _longest_step(bound.cache_spec, getattr(model, "num_position_axes", 1))
    bucket = runner.select(step.counts)
    runner.run(step, bucket)
    peak = _peak_bytes(lambda: runner.run(step, bucket))
    promised = hardware.memory_profile(model, limits)
    assert 0 < peak <= promised.activations + promised.workspaces <= 10 * peak


@pytest.mark.parametrize("grid", [(1, 16, 16), (1, 2, 128), (1, 26, 10)], ids=str)
def test_bound_holds_for_an_image_that_fills_the_pool(grid: tuple[int, int, int]) -> None:
    card = next(card for card in importlib.import_module("trunnion_models.qwen2_5_vl.card").CARDS if card.quick)
    model_class = registry.model_class({**card.config, "architectures": [card.architecture]})
    ctx = BuildContext(hardware=ReferenceHardware(), dtype=torch.float32, max_model_len=LENGTH)
    model = model_class(model_class.config_class.from_hf(card.config), ctx)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.02)
    pixels = torch.randn(grid[1] * grid[2], model.encoder_patch_dim)
    with torch.inference_mode():
        model.encode(pixels, grid)
        peak = _peak_bytes(lambda: model.encode(pixels, grid))
    assert 0 < peak <= profile_encoder(model, model.num_encoder_rows(grid)) <= 10 * peak
