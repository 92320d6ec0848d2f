"""A tiny configuration of any model type of transformers: its own default with small numbers in known places."""

from __future__ import annotations

from typing import Any

from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

LAYERS = 4
"""Enough for every kind of layer of a hybrid to come once."""
SIZES: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size", "dim", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("hidden_size_global",), 64),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "decoder_ffn_dim", "encoder_ffn_dim"), 96),
    **dict.fromkeys(("ffn_hidden_size", "inner_dim", "dense_intermediate_size", "expert_ffn_hidden_size"), 96),
    **dict.fromkeys(("feed_forward_size",), 96),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), LAYERS),
    **dict.fromkeys(("encoder_layers", "num_blocks"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "swa_num_attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads", "swa_num_key_value_heads"), 2),
    **dict.fromkeys(("vocab_size", "unpadded_vocab_size", "encoder_hash_byte_group_vocab"), 131),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "seq_length"), 64),
    **dict.fromkeys(("max_seq_len", "max_source_positions", "max_target_positions"), 64),
    **dict.fromkeys(("head_dim", "attention_head_dim", "d_kv", "v_head_dim", "qk_nope_head_dim", "swa_head_dim"), 16),
    **dict.fromkeys(("global_head_dim", "attention_head_size"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim", "rope_head_dim"), 8),
    "qk_head_dim": 24,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 8),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk", "num_experts_per_token", "top_k_experts"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_intermediate_size"), 32),
    **dict.fromkeys(("shared_intermediate_size", "moe_shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("shared_experts_intermediate_size",), 32),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "num_shared_experts"), 1),
    "first_k_dense_replace": 1,
    **dict.fromkeys(("sliding_window", "sliding_window_size"), 6),
    "attention_chunk_size": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 8),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim"), 16),
    **dict.fromkeys(("mamba_d_state", "ssm_state_size", "state_size"), 8),
    "mamba_d_ssm": 128,
    "mamba_n_groups": 1,
    "index_head_dim": 16,
    "index_n_heads": 16,
    "index_topk": 8,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 131,
    "num_kv_shared_layers": 0,
    "max_window_layers": 2,
}
"""Field -> what it becomes, where a configuration has it as a larger number."""
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "padding_idx", "sep_token_id")
PER_LAYER = ("layer_types", "mlp_layer_types", "layers_block_type", "no_rope_layers", "indexer_types")
UNSET = ("num_key_value_heads", "head_dim", "num_experts_per_tok", "n_routed_experts", "n_shared_experts")
"""Fields whose default is None although the model needs a number."""
_DOTS3_WINDOW = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 24}
_DOTS3 = {"per_layer_config": {2: _DOTS3_WINDOW, 3: _DOTS3_WINDOW}}
_QWEN4 = {
    "eos_token_id": 1,
    "hc_lowrank": 8,
    "indexer_budget": 8,
    "indexer_compress_ratio": 2,
    "indexer_head_dim": 16,
    "indexer_kv_heads": 1,
    "indexer_n_heads": 4,
    "ngram_vocab_size_base": 131,
    "ple_embed_dim": 32,
    "ple_layer_ids": [1],
}
OVERRIDES: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"layer_group_size": 2},
    "codegen": {"rotary_dim": 8},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": {
            kind: {"rope_theta": 10000.0, "rope_type": "default", "mrope_section": [4, 2, 2]}
            for kind in ("sliding_attention", "full_attention")
        },
    },
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8}},
    "dots3_note": _DOTS3,
    "dots3_note_text": _DOTS3,
    "falcon_h1": {"mamba_d_head": 16},
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 6},
    "gptj": {"rotary_dim": 8},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "mllama": {"text_config": {"cross_attention_layers": [1]}},
    "moshi": {"audio_vocab_size": 131},
    "qwen4_exp": _QWEN4,
    "qwen4_exp_text": _QWEN4,
    "reformer": {
        "is_decoder": True,
        "attn_layers": ["local"] * LAYERS,
        "local_attn_chunk_length": 4,
        "axial_pos_shape": [8, 8],
        "axial_pos_embds_dim": [16, 48],
    },
    "xlm": {"emb_dim": 64, "causal": True},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
    },
}
"""What a model type needs beside that; a dictionary is of a configuration within."""


def tiny_config(model_type: str) -> PretrainedConfig:
    """Its text's, where the same class runs it without what stands beside; whatever transformers raises for numbers
    that do not fit."""
    config_class = CONFIG_MAPPING[model_type]
    overrides = OVERRIDES.get(model_type, {})
    default = config_class(**{name: value for name, value in overrides.items() if name in config_class.sub_configs})
    text = default.get_text_config(decoder=True)
    classes = AutoModelForCausalLM._model_mapping
    if type(text) is not config_class and type(text) in classes and classes[type(text)] is classes[config_class]:
        return _tiny(text, overrides.get("text_config", overrides))
    return _tiny(default, overrides)


def _tiny(config: PretrainedConfig, overrides: dict[str, Any]) -> PretrainedConfig:
    given = config.to_dict()
    changes = _changes(given, {own: alias for alias, own in config.attribute_map.items()})
    changes |= {name: SIZES[name] for name in UNSET if name in given and given[name] is None}
    if "is_decoder" in given:
        changes["is_decoder"] = True
    changes |= overrides
    for name, part in vars(config).items():
        if isinstance(part, PretrainedConfig):
            changes[name] = _tiny(part, overrides.get(name, {}))
    return type(config)(**changes)


def _changes(config: dict[str, Any], aliases: dict[str, str]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for name, value in config.items():
        known = name if name in SIZES else aliases.get(name, name)
        if known in SIZES and isinstance(value, int) and not isinstance(value, bool) and value > 0:
            changes[name] = min(SIZES[known], value)
        elif name in TOKENS and (isinstance(value, list) or (isinstance(value, int) and value >= SIZES["vocab_size"])):
            changes[name] = 1
        elif name in PER_LAYER and isinstance(value, list):
            changes[name] = _each_kind(value)
    if config.get("kv_lora_rank"):
        # Latent attention expands to as many keys as queries, and calls the rotated part a head.
        changes |= {"num_key_value_heads": SIZES["num_attention_heads"], "head_dim": SIZES["qk_rope_head_dim"]}
        changes = {name: value for name, value in changes.items() if name in config}
    return changes


def _each_kind(values: list[Any]) -> list[Any]:
    """As many layers, with every kind that there is as soon as the published order allows."""
    kinds = list(dict.fromkeys(values))
    return (values if {*values[:LAYERS]} == {*kinds} else (kinds * LAYERS))[:LAYERS]
