"""A tiny configuration of any model type of transformers: its own default with small numbers in known places."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

LAYERS = 4
"""Enough for every kind of layer of a hybrid to come once."""
SIZES: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size", "dim", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "decoder_ffn_dim", "encoder_ffn_dim"), 96),
    **dict.fromkeys(("ffn_hidden_size", "inner_dim", "dense_intermediate_size", "expert_ffn_hidden_size"), 96),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), LAYERS),
    **dict.fromkeys(("encoder_layers",), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_head_kv"), 2),
    **dict.fromkeys(("vocab_size",), 131),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "seq_length"), 64),
    **dict.fromkeys(("head_dim", "attention_head_dim", "d_kv", "v_head_dim", "qk_nope_head_dim"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim", "rope_head_dim"), 8),
    "qk_head_dim": 24,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 8),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk", "num_experts_per_token", "top_k_experts"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_intermediate_size"), 32),
    **dict.fromkeys(("shared_intermediate_size", "moe_shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "num_shared_experts"), 1),
    "first_k_dense_replace": 1,
    "sliding_window": 6,
    "attention_chunk_size": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 8),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim"), 16),
    **dict.fromkeys(("mamba_d_state", "ssm_state_size", "state_size"), 8),
    "mamba_n_groups": 1,
    "index_head_dim": 16,
    "index_n_heads": 16,
    "index_topk": 8,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 131,
    "num_kv_shared_layers": 0,
    "max_window_layers": 2,
}
"""Field -> what it becomes, where a configuration has it as a number."""
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "padding_idx", "sep_token_id")
PER_LAYER = ("layer_types", "mlp_layer_types", "layers_block_type", "no_rope_layers", "indexer_types")
OVERRIDES: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 6},
    "gptj": {"rotary_dim": 8},
    "codegen": {"rotary_dim": 8},
    "moshi": {"audio_vocab_size": 131},
}
"""What a model type needs beside that."""


def tiny_config(model_type: str) -> PretrainedConfig:
    """Its text's, where a tower stands beside it; whatever transformers raises for numbers that do not fit."""
    config_class = CONFIG_MAPPING[model_type]
    default = config_class()
    text = default.get_text_config(decoder=True)
    given = text.to_dict()
    changes = _changes(given) | OVERRIDES.get(model_type, {})
    if given.get("kv_lora_rank"):
        # Latent attention expands to as many keys as queries, and calls the rotated part a head.
        changes |= {"num_key_value_heads": SIZES["num_attention_heads"], "head_dim": SIZES["qk_rope_head_dim"]}
        changes = {name: value for name, value in changes.items() if name in given}
    missing = {name for name in ("num_key_value_heads", "head_dim", "num_experts_per_tok") if name in given}
    changes |= {name: SIZES[name] for name in missing if given[name] is None and name not in changes}
    if "is_decoder" in given:
        changes["is_decoder"] = True
    if text is default:
        return config_class(**changes)
    return type(text)(**changes)


def _changes(config: dict[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for name, value in config.items():
        if name in SIZES and isinstance(value, int) and not isinstance(value, bool) and value > 0:
            changes[name] = SIZES[name]
        elif name in TOKENS and (isinstance(value, list) or (isinstance(value, int) and value >= SIZES["vocab_size"])):
            changes[name] = 1
        elif name in PER_LAYER and isinstance(value, list):
            changes[name] = _each_kind(value)
    return changes


def _each_kind(values: list[Any]) -> list[Any]:
    """As many layers, with every kind that there is as soon as the published order allows."""
    kinds = list(dict.fromkeys(values))
    return (values if {*values[:LAYERS]} == {*kinds} else (kinds * LAYERS))[:LAYERS]
