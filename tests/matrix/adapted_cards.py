"""Cards of decoders that have no port: the adapter runs them, as transformers has them."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

ADAPTER = "adapter"
"""The family that these cards stand under."""
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
)
