"""The reference's memory profile is above what torch's profiler sees of a worst-case step, and not absurdly so."""

from __future__ import annotations

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


@pytest.mark.parametrize("family", FAMILIES)
def test_bound_holds_for_the_longest_step(family: str) -> None:
    card = next(card for card in importlib.import_module(f"trunnion_models.{family}.card").CARDS if card.quick)
    model_class = registry.model_class({**card.config, "architectures": [card.architecture]})
    hardware = ReferenceHardware()
    ctx = BuildContext(hardware=hardware, dtype=torch.float32, max_model_len=LENGTH)
    model = model_class(model_class.config_class.from_hf(card.config), ctx)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.02)
    bound = BoundGroups(model, hardware, torch.device("cpu"), LIMITS)
    num_blocks = LENGTH // LIMITS.block_size + 1
    bound.bind_kv_cache(
        [
            [{t.name: torch.zeros(num_blocks, *t.shape, dtype=t.dtype) for t in group.tensors} for _ in group.layers]
            for group in bound.cache_spec.groups
        ]
    )
    runner = hardware.create_runner(model, bound.groups, LIMITS, BreakPoints())
    step = _longest_step(bound.cache_spec, getattr(model, "num_position_axes", 1))
    bucket = runner.select(step.counts)
    runner.run(step, bucket)
    peak = _peak_bytes(lambda: runner.run(step, bucket))
    promised = hardware.memory_profile(model, LENGTH, LENGTH)
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
