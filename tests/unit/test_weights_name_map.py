"""Names of checkpoints in the wild and the parameter parts they fill."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from trunnion.weights.name_map import COMMON_IGNORE, ExpertRule, Ignored, Refused, Target, WeightMap

DENSE = WeightMap(
    fuse={
        "qkv_proj": {"q": "q_proj", "k": "k_proj", "v": "v_proj"},
        "gate_up_proj": {"gate": "gate_proj", "up": "up_proj"},
    }
)
SPARSE = WeightMap(
    experts=(ExpertRule(),),
    fuse={"gate_up_proj": {"gate": "gate_proj", "up": "up_proj"}},
    ignore=(*COMMON_IGNORE, (r"^mtp", "multi-token prediction is not run")),
)
MIXTRAL = WeightMap(experts=(ExpertRule(block="block_sparse_moe.experts", gate="w1", up="w3", down="w2"),))
CUT = WeightMap(cut={"qkv_proj": ("q", "k", "v"), "gate_up_proj": ("gate", "up")})
LAYER = "model.layers.3"


@pytest.mark.parametrize(
    ("weight_map", "name", "param", "part"),
    [
        (DENSE, f"{LAYER}.self_attn.q_proj.weight", f"{LAYER}.self_attn.qkv_proj.weight", "q"),
        (DENSE, f"{LAYER}.self_attn.v_proj.bias", f"{LAYER}.self_attn.qkv_proj.bias", "v"),
        (DENSE, f"{LAYER}.mlp.up_proj.weight", f"{LAYER}.mlp.gate_up_proj.weight", "up"),
        (DENSE, f"{LAYER}.self_attn.o_proj.weight", f"{LAYER}.self_attn.o_proj.weight", ""),
        (DENSE, "lm_head.weight", "lm_head.weight", ""),
        (DENSE, "layers.3.mlp.down_proj.weight", f"{LAYER}.mlp.down_proj.weight", ""),
        (DENSE, "embed_tokens.weight", "model.embed_tokens.weight", ""),
        (DENSE, "norm.weight", "model.norm.weight", ""),
        (DENSE, "language_model.model.layers.3.input_layernorm.weight", f"{LAYER}.input_layernorm.weight", ""),
        (DENSE, "language_model.lm_head.weight", "lm_head.weight", ""),
        (DENSE, "model.language_model.layers.3.self_attn.k_proj.weight", f"{LAYER}.self_attn.qkv_proj.weight", "k"),
        (DENSE, "_orig_mod.model.norm.weight", "model.norm.weight", ""),
        # A substring rule swallowed this one.
        (DENSE, "model.gate_projections.3", "model.gate_projections.3", ""),
        (DENSE, "model.my_q_proj.weight", "model.my_q_proj.weight", ""),
        (SPARSE, f"{LAYER}.mlp.experts.11.gate_proj.weight", f"{LAYER}.mlp.experts.w13", "11.gate"),
        (SPARSE, f"{LAYER}.mlp.experts.0.up_proj.weight", f"{LAYER}.mlp.experts.w13", "0.up"),
        (SPARSE, f"{LAYER}.mlp.experts.7.down_proj.weight", f"{LAYER}.mlp.experts.w2", "7.down"),
        (SPARSE, f"{LAYER}.mlp.experts.gate_up_proj", f"{LAYER}.mlp.experts.w13", "*.gate_up"),
        (SPARSE, f"{LAYER}.mlp.experts.down_proj", f"{LAYER}.mlp.experts.w2", "*.down"),
        (SPARSE, f"{LAYER}.mlp.shared_experts.up_proj.weight", f"{LAYER}.mlp.shared_experts.gate_up_proj.weight", "up"),
        (SPARSE, f"{LAYER}.mlp.gate.weight", f"{LAYER}.mlp.gate.weight", ""),
        (MIXTRAL, f"{LAYER}.block_sparse_moe.experts.1.w1.weight", f"{LAYER}.block_sparse_moe.experts.w13", "1.gate"),
        (MIXTRAL, f"{LAYER}.block_sparse_moe.experts.1.w3.weight", f"{LAYER}.block_sparse_moe.experts.w13", "1.up"),
        (MIXTRAL, f"{LAYER}.block_sparse_moe.experts.1.w2.weight", f"{LAYER}.block_sparse_moe.experts.w2", "1.down"),
        (CUT, f"{LAYER}.self_attn.qkv_proj.weight", f"{LAYER}.self_attn.qkv_proj.weight", "q+k+v"),
        (CUT, f"{LAYER}.mlp.gate_up_proj.weight_scale", f"{LAYER}.mlp.gate_up_proj.weight_scale", "gate+up"),
        (CUT, f"{LAYER}.mlp.my_gate_up_proj.weight", f"{LAYER}.mlp.my_gate_up_proj.weight", ""),
    ],
)
def test_a_tensor_goes_to_its_parameter(weight_map: WeightMap, name: str, param: str, part: str) -> None:
    assert weight_map.resolve(name) == [Target(param, part)]


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.rotary_emb.inv_freq", "layers.0.self_attn.rotary_emb.inv_freq"]
)
def test_leftovers_of_old_exporters_are_ignored_with_a_reason(name: str) -> None:
    assert DENSE.resolve(name) == Ignored("computed from the config's rope")


def test_a_familys_own_rule_ignores_with_its_reason() -> None:
    assert SPARSE.resolve("mtp.layers.0.mlp.gate.weight") == Ignored("multi-token prediction is not run")
    assert isinstance(SPARSE.resolve("model.mtp_layers.0.input_proj.weight"), list)


def test_a_rule_may_name_a_field_of_the_configuration() -> None:
    heads = WeightMap(ignore=((r"^model\.layers\.<num_hidden_layers>", "of the draft head"),))
    found = heads.for_config(SimpleNamespace(num_hidden_layers=2))
    assert found.resolve("model.layers.2.enorm.weight") == Ignored("of the draft head")
    for index in (1, 20, 12):
        assert isinstance(found.resolve(f"model.layers.{index}.enorm.weight"), list)


@pytest.mark.parametrize(
    "name",
    [
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
        "base_model.model.lm_head.weight",
        "model.layers.0.self_attn.q_proj.base_layer.weight",
    ],
)
def test_adapter_leftovers_refuse_the_checkpoint(name: str) -> None:
    resolved = DENSE.resolve(name)
    assert isinstance(resolved, Refused)
    assert "merge" in resolved.reason


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.3.self_attn.q_proj.weight",
        "model.layers.3.self_attn.o_proj.weight",
        "model.layers.3.mlp.gate_proj.bias",
        "lm_head.weight",
    ],
)
def test_messages_name_tensors_as_the_checkpoint_does(name: str) -> None:
    resolved = DENSE.resolve(name)
    assert isinstance(resolved, list)
    assert [DENSE.checkpoint_name(target) for target in resolved] == [name]


@pytest.mark.parametrize("part", ["k", "q+k+v"])
def test_messages_name_a_fused_tensor_by_its_one_name(part: str) -> None:
    name = "model.layers.3.self_attn.qkv_proj.weight"
    assert CUT.checkpoint_name(Target(name, part)) == name


def test_messages_name_an_experts_tensor_as_the_checkpoint_does() -> None:
    name = "model.layers.3.mlp.experts.11.gate_proj.weight"
    resolved = SPARSE.resolve(name)
    assert isinstance(resolved, list)
    assert [SPARSE.checkpoint_name(target) for target in resolved] == [name]
