"""Qwen3.5 checkpoints under each of their prefixes: the text is found, the tower and the head are left out."""

from __future__ import annotations

import pytest

from trunnion.weights.name_map import Ignored, Target
from trunnion_models.qwen3_5.weights import DRAFT_WEIGHT_MAP, WEIGHT_MAP

LAYER = "model.layers.1.linear_attn"


@pytest.mark.parametrize("prefix", ["model", "model.language_model", "language_model.model"])
@pytest.mark.parametrize(
    ("name", "param", "part"),
    [
        ("in_proj_qkv.weight", "in_proj_qkvz.weight", "q+k+v"),
        ("in_proj_z.weight", "in_proj_qkvz.weight", "z"),
        ("in_proj_b.weight", "in_proj_ba.weight", "b"),
        ("in_proj_a.weight", "in_proj_ba.weight", "a"),
        ("conv1d.weight", "conv1d.weight", ""),
        ("A_log", "A_log", ""),
    ],
)
def test_projections_of_a_delta_net_become_two(prefix: str, name: str, param: str, part: str) -> None:
    assert WEIGHT_MAP.resolve(f"{prefix}.layers.1.linear_attn.{name}") == [Target(f"{LAYER}.{param}", part)]


@pytest.mark.parametrize("part", ["q", "k", "v", "q+k+v"])
def test_messages_name_the_tensor_that_the_checkpoint_has(part: str) -> None:
    target = Target(f"{LAYER}.in_proj_qkvz.weight", part)
    assert WEIGHT_MAP.checkpoint_name(target) == f"{LAYER}.in_proj_qkv.weight"


@pytest.mark.parametrize("name", ["lm_head.weight", "language_model.lm_head.weight"])
def test_the_head_may_stand_at_the_top(name: str) -> None:
    assert WEIGHT_MAP.resolve(name) == [Target("lm_head.weight")]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("model.visual.blocks.0.attn.qkv.weight", "only text is run: this port takes no images"),
        ("visual.merger.norm.bias", "only text is run: this port takes no images"),
        ("vision_tower.patch_embed.proj.weight", "only text is run: this port takes no images"),
        ("mtp.layers.0.self_attn.q_proj.weight", "of the draft head"),
        ("mtp.fc.weight", "of the draft head"),
    ],
)
def test_what_is_left_out_has_a_reason(name: str, reason: str) -> None:
    assert WEIGHT_MAP.resolve(name) == Ignored(reason)


@pytest.mark.parametrize(
    ("name", "param", "part"),
    [
        ("mtp.fc.weight", "mtp.fc.weight", ""),
        ("mtp.layers.0.self_attn.q_proj.weight", "mtp.layers.0.self_attn.qkv_proj.weight", "q"),
        ("mtp.layers.0.mlp.up_proj.weight", "mtp.layers.0.mlp.gate_up_proj.weight", "up"),
        ("model.language_model.embed_tokens.weight", "model.embed_tokens.weight", ""),
        ("lm_head.weight", "lm_head.weight", ""),
    ],
)
def test_the_head_that_drafts_has_its_own_and_what_it_shares(name: str, param: str, part: str) -> None:
    assert DRAFT_WEIGHT_MAP.resolve(name) == [Target(param, part)]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("model.language_model.layers.0.linear_attn.in_proj_qkv.weight", "of the decoder that is drafted for"),
        ("model.norm.weight", "of the decoder that is drafted for"),
        ("model.visual.pos_embed.weight", "only text is run: this port takes no images"),
    ],
)
def test_what_the_head_leaves_out_has_a_reason(name: str, reason: str) -> None:
    assert DRAFT_WEIGHT_MAP.resolve(name) == Ignored(reason)
