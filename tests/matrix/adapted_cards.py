"""Cards of decoders that have no port: the adapter runs them, as transformers has them."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

ADAPTER = "adapter"
"""The family that these cards stand under."""
PER_REQUEST = ("OlmoHybridForCausalLM", "BambaForCausalLM", "JambaForCausalLM", "GPTNeoForCausalLM", "BloomForCausalLM")
"""Architectures some of whose modules run once per request: no full graphs, and no verification of drafts."""
ONE_RANK = {
    "adapter-bloom": "no plan, and projections of other names",
    "adapter-gpt2": "neither a plan nor projections that are linears",
    "adapter-stablelm": "each head has a norm of its own",
}
"""Cards that are refused on several ranks, and why."""
_SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def _adapted(architecture: str, model_type: str, notes: str, *, quick: bool = False, **fields: Any) -> Card:
    return Card(
        name=f"adapter-{model_type}",
        architecture=architecture,
        config={"model_type": model_type, **fields},
        quick=quick,
        notes=notes,
    )


ADAPTED: tuple[Card, ...] = (
    _adapted(
        "StableLmForCausalLM",
        "stablelm",
        "a part of each head is rotated, LayerNorm with bias, norms over heads",
        quick=True,
        partial_rotary_factor=0.5,
        use_qkv_bias=True,
        qk_layernorm=True,
        **_SIZES,
    ),
    _adapted(
        "OlmoeForCausalLM",
        "olmoe",
        "experts on this repository's operator, norms over all heads",
        quick=True,
        num_experts=8,
        num_experts_per_tok=3,
        **_SIZES,
    ),
    _adapted("Starcoder2ForCausalLM", "starcoder2", "a window on every layer, biases", sliding_window=6, **_SIZES),
    _adapted("Ernie4_5ForCausalLM", "ernie4_5", "pairs that are rotated lie side by side", head_dim=24, **_SIZES),
    _adapted("NemotronForCausalLM", "nemotron", "squared ReLU without a gate, norms from 1 on", **_SIZES),
    _adapted("SeedOssForCausalLM", "seed_oss", "biases of queries, keys and values", head_dim=24, **_SIZES),
    _adapted("PhiForCausalLM", "phi", "attention and MLP side by side, a bias of the head", **_SIZES),
    _adapted(
        "GPTNeoXForCausalLM",
        "gpt_neox",
        "fused and interleaved queries, keys and values",
        **{name: value for name, value in _SIZES.items() if name != "num_key_value_heads"},
    ),
    _adapted(
        "GPT2LMHeadModel",
        "gpt2",
        "learned positions, transposed weights, names of its own",
        vocab_size=131,
        n_embd=64,
        n_inner=96,
        n_layer=2,
        n_head=4,
        n_positions=64,
    ),
    _adapted(
        "BartForCausalLM",
        "bart",
        "a decoder that takes no positions: its table of them is told",
        quick=True,
        vocab_size=131,
        d_model=64,
        decoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=96,
        max_position_embeddings=64,
    ),
    _adapted(
        "OlmoHybridForCausalLM",
        "olmo_hybrid",
        "gated delta nets run per request, attention flat",
        quick=True,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_num_key_heads=4,
        linear_num_value_heads=4,
        layer_types=["linear_attention", "full_attention"],
        pad_token_id=0,
        **_SIZES,
    ),
    _adapted(
        "YoutuForCausalLM",
        "youtu",
        "latents are cached, and not the keys and values made of them",
        kv_lora_rank=32,
        q_lora_rank=24,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
        **_SIZES | {"num_key_value_heads": 4},
    ),
    _adapted(
        "BambaForCausalLM",
        "bamba",
        "Mamba-2 runs per request, attention flat",
        mamba_n_heads=8,
        mamba_d_head=16,
        mamba_d_state=8,
        mamba_n_groups=1,
        attn_layer_indices=[1],
        **_SIZES,
    ),
    _adapted(
        "JambaForCausalLM",
        "jamba",
        "Mamba-1 runs per request, and token by token where one goes on",
        mamba_d_state=8,
        mamba_dt_rank=8,
        attn_layer_offset=1,
        attn_layer_period=2,
        expert_layer_offset=1,
        expert_layer_period=2,
        num_experts=4,
        num_experts_per_tok=2,
        **_SIZES,
    ),
    _adapted(
        "GPTNeoForCausalLM",
        "gpt_neo",
        "a mask as a tensor in attention of its own, with a window on every other layer",
        vocab_size=131,
        hidden_size=64,
        intermediate_size=96,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=6,
        max_position_embeddings=64,
    ),
    _adapted(
        "BloomForCausalLM",
        "bloom",
        "a bias of scores by distance: the decoder runs per request",
        vocab_size=131,
        hidden_size=64,
        n_layer=2,
        n_head=4,
    ),
)
