"""Latent attention without a port: the cache holds latents, and the self-test sees where that is not what it means."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trunnion.adapter.latent import LatentAttention
from trunnion.contract import CacheKind

from .sweep import PASSED, try_type
from .test_split import load
from .tiny_configs import tiny_config

TYPES = ("youtu", "glm4_moe_lite", "minicpm3")


@pytest.mark.parametrize("model_type", TYPES)
def test_latents_are_cached_and_not_keys_and_values(model_type: str, tmp_path: Path) -> None:
    executor = load(model_type, tmp_path)
    config = tiny_config(model_type)
    (group,) = executor.kv_cache_spec().groups
    assert group.kind is CacheKind.MLA and len(group.layers) == config.num_hidden_layers
    latent = config.kv_lora_rank + config.qk_rope_head_dim
    assert group.bytes_per_block == config.num_hidden_layers * group.block_size * latent * 4
    said = (
        f"adapter: flat, all requests of a step in one row of tokens, {config.num_hidden_layers} layers cache latents"
    )
    assert said in executor.weight_report.notes
    executor.close()


@pytest.mark.parametrize("model_type", TYPES)
def test_they_mean_what_transformers_makes_of_them(model_type: str) -> None:
    outcome = try_type(model_type)
    assert outcome.outcome == PASSED and outcome.detail.startswith("adapter flat"), outcome


def test_where_they_mean_something_else_they_are_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the layer that was found by its shape were another."""
    take = LatentAttention.take_weight
    monkeypatch.setattr(LatentAttention, "take_weight", lambda self, weight: take(self, torch.zeros_like(weight)))
    executor = load("youtu", tmp_path)
    assert {group.kind for group in executor.kv_cache_spec().groups} == {CacheKind.FULL}
    (line,) = [line for line in executor.weight_report.notes if line.startswith("adapter: flat")]
    assert "latent attention caches keys and values expanded (flat: the self-test is off by" in line
    executor.close()
