"""DeepSeek-V3: what its configuration leaves out, what R1's resolves to, and routing that cannot be or is not done."""

from __future__ import annotations

from typing import Any

import pytest

from trunnion.errors import ConfigError, UnsupportedError
from trunnion.rope import yarn_softmax_scale_multiplier
from trunnion_models.deepseek_v3.config import DeepseekV3Config

BASE: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "moe_intermediate_size": 24,
    "n_routed_experts": 32,
    "num_experts_per_tok": 3,
}

DEEPSEEK_R1: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {
        "AutoConfig": "configuration_deepseek.DeepseekV3Config",
        "AutoModel": "modeling_deepseek.DeepseekV3Model",
        "AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM",
    },
    "aux_loss_alpha": 0.001,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "ep_size": 1,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "initializer_range": 0.02,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "pretraining_tp": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    },
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "transformers_version": "4.46.3",
    "use_cache": True,
    "v_head_dim": 128,
    "vocab_size": 129280,
}


def test_defaults_are_those_of_the_family() -> None:
    config = DeepseekV3Config.from_hf(BASE)
    assert (config.n_group, config.topk_group, config.n_shared_experts) == (8, 4, 1)
    assert config.routed_scaling_factor == 2.5 and config.norm_topk_prob
    assert (config.first_k_dense_replace, config.q_lora_rank) == (3, 1536)
    assert config.rope_interleave and not config.attention_bias and not config.tie_word_embeddings
    assert config.rope.rope_theta == 10000.0 and config.max_position_embeddings == 4096
    assert config.num_nextn_predict_layers == 1


def test_a_published_configuration_means_what_transformers_makes_of_it() -> None:
    config = DeepseekV3Config.from_hf(DEEPSEEK_R1)
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (129280, 7168, 18432)
    assert (config.num_hidden_layers, config.num_attention_heads) == (61, 128)
    assert (config.q_lora_rank, config.kv_lora_rank) == (1536, 512)
    assert (config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim) == (128, 64, 128)
    assert (config.n_routed_experts, config.num_experts_per_tok, config.n_group, config.topk_group) == (256, 8, 8, 4)
    rope = config.rope
    assert (rope.rope_type, rope.rope_theta, rope.factor) == ("yarn", 10000, 40)
    assert (rope.beta_fast, rope.beta_slow, rope.mscale, rope.mscale_all_dim) == (32, 1, 1.0, 1.0)
    assert rope.original_max_position_embeddings == 4096
    # (0.1 ln 40 + 1) ** 2
    assert yarn_softmax_scale_multiplier(rope) == pytest.approx(1.8738542)
    assert config.max_model_len == 163840


def test_queries_may_be_projected_at_once() -> None:
    assert DeepseekV3Config.from_hf(BASE | {"q_lora_rank": None}).q_lora_rank is None


def test_no_head_is_no_head() -> None:
    assert DeepseekV3Config.from_hf(BASE | {"num_nextn_predict_layers": 0}).num_nextn_predict_layers == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_group": 3}, "32 experts cannot be routed within 4 of 3 groups"),
        ({"n_group": 5}, "32 experts cannot be routed within 4 of 5 groups"),
        ({"n_group": 32}, "groups of two experts or more"),
        ({"num_experts_per_tok": 17}, "num_experts_per_tok 17 is above the experts in 4 of 8 groups of 4"),
        ({"kv_lora_rank": None}, "'kv_lora_rank' is missing"),
    ],
    ids=["too-many-groups", "uneven", "groups-of-one", "experts", "missing"],
)
def test_routing_that_cannot_be_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DeepseekV3Config.from_hf(BASE | changes)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"scoring_func": "softmax"},
        {"topk_method": "group_limited_greedy"},
        {"moe_layer_freq": 2},
        {"num_nextn_predict_layers": 2},
        {"hidden_act": "gelu"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_is_not_done_is_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=next(iter(changes))):
        DeepseekV3Config.from_hf(BASE | changes)
