"""What checkpoints call the modules of a decoder, and what ports here call them."""

from __future__ import annotations

import re
from collections.abc import Mapping

ATTENTION = ("self_attn", "attn", "attention", "self_attention", "attention.self")
MLP = ("mlp", "feed_forward", "ffn", "ff", "block_sparse_moe", "moe")
EXPERTS = "experts"
SHARED_EXPERTS = ("shared_expert", "shared_experts", "shared_mlp")

Names = Mapping[str, tuple[str, ...]]
"""What ports call a module -> what checkpoints do, its own name among them."""

ATTENTION_NAMES: Names = {
    "q_proj": ("q_proj", "wq", "query", "query_proj", "q_lin"),
    "k_proj": ("k_proj", "wk", "key", "key_proj", "k_lin"),
    "v_proj": ("v_proj", "wv", "value", "value_proj", "v_lin"),
    "o_proj": ("o_proj", "wo", "out_proj", "dense", "c_proj", "out_lin"),
    "qkv_proj": ("qkv_proj", "query_key_value", "Wqkv", "wqkv", "c_attn", "qkv", "W_pack"),
    "q_norm": ("q_norm", "q_layernorm", "query_norm", "query_layernorm", "q_ln"),
    "k_norm": ("k_norm", "k_layernorm", "key_norm", "key_layernorm", "k_ln"),
}
MLP_NAMES: Names = {
    "gate_proj": ("gate_proj", "w1", "gate", "linear_gate"),
    "up_proj": ("up_proj", "w3", "up"),
    "down_proj": ("down_proj", "w2", "down"),
    "gate_up_proj": ("gate_up_proj", "gate_and_up_proj", "w12"),
}
ROUTER_NAMES = ("gate", "router", "gate.wg", "router.layer")
NORM_NAMES: Names = {
    "input_layernorm": ("input_layernorm", "attention_norm", "ln_1", "norm1", "attn_norm", "pre_attention_layernorm"),
    "post_attention_layernorm": (
        "post_attention_layernorm",
        "ffn_norm",
        "ln_2",
        "norm2",
        "mlp_norm",
        "pre_mlp_layernorm",
    ),
    "pre_feedforward_layernorm": ("pre_feedforward_layernorm",),
    "post_feedforward_layernorm": ("post_feedforward_layernorm",),
}
OUTER_NAMES: Names = {
    "embed_tokens": ("embed_tokens", "wte", "word_embeddings", "tok_embeddings", "embedding", "embed_in"),
    "norm": ("norm", "ln_f", "final_layernorm", "final_norm", "norm_f"),
    "lm_head": ("lm_head", "output", "embed_out", "output_layer"),
}
"""Modules around the layers: the head stands outside of `model`."""

FIELD_NAMES: Names = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads"),
    "num_key_value_heads": ("num_key_value_heads", "n_kv_heads", "num_kv_heads", "n_head_kv"),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim", "feed_forward_size"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"),
    "rms_norm_eps": ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon"),
    "hidden_act": ("hidden_act", "hidden_activation", "activation_function"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_k"),
}
"""Fields that a scaffold needs; it calls them by the first of their names."""

ROPE_FIELDS = frozenset(
    {
        "attention_factor", "beta_fast", "beta_slow", "factor", "high_freq_factor", "long_factor", "low_freq_factor",
        "mscale", "mscale_all_dim", "original_max_position_embeddings", "partial_rotary_factor", "rope_theta",
        "rope_type", "short_factor", "truncate", "type",
    }
)  # fmt: skip
"""What `read_rope` reads of a rope; it passes over others, as transformers does."""

KINDS: Mapping[str, str] = {
    r"kv_a_proj_with_mqa|kv_b_proj": "latent attention: MLAAttention of trunnion.layers.mla, as in deepseek_v2",
    r"A_log|dt_bias|conv1d|in_proj_(qkvz|ba|qkv|z)": "a recurrent state: trunnion.layers.recurrent, as in qwen3_next",
    r"sinks": "sinks: an argument of Attention, as in gpt_oss",
    r"self_attn\.(g_proj|gate_proj)": "a gate on what attention returns, as in qwen3_next",
}
"""What tensors that a scaffold does not know probably are, by a part of their names, and where there is one."""

TOWERS = re.compile(r"vision|visual|multi_modal|image|audio")
"""In the names of what stands beside the decoder of a model that does not only read."""

ACTIVATIONS: Mapping[str, str] = {
    "silu": "SiluAndMul",
    "swish": "SiluAndMul",
    "gelu_pytorch_tanh": "GeluTanhAndMul",
    "gelu_new": "GeluTanhAndMul",
}
"""Activation of a gated MLP -> the class in `trunnion.layers.activation`."""

BOOKKEEPING = frozenset(
    {
        "_name_or_path", "architectures", "attention_dropout", "auto_map", "bos_token_id", "chunk_size_feed_forward",
        "dtype", "embd_pdrop", "eos_token_id", "hidden_dropout", "hidden_dropout_prob", "initializer_range",
        "mlp_dropout", "model_type", "output_attentions", "output_hidden_states", "output_router_logits",
        "pad_token_id", "pretraining_tp", "problem_type", "quantization_config", "resid_pdrop", "return_dict",
        "rope_parameters", "rope_scaling", "rope_theta", "router_aux_loss_coef", "router_jitter_noise",
        "sep_token_id", "tokenizer_class", "torch_dtype", "transformers_version", "use_cache", "id2label",
        "label2id", "is_decoder", "is_encoder_decoder", "max_window_layers", "use_sliding_window",
        "partial_rotary_factor", "original_max_position_embeddings",
    }
)  # fmt: skip
"""Fields that change no result, or that `read_rope` and the windows read."""


def known_name(names: Names, published: str) -> str | None:
    """What ports call the module that a checkpoint calls `published`; None if it is none of them."""
    return next((own for own, aliases in names.items() if published in aliases), None)
