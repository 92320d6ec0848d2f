"""Tiny Phi-3 configurations for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

_BASE: dict[str, Any] = {
    "model_type": "phi3",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    # By default outside of the vocabulary.
    "pad_token_id": 0,
}

_EIGHT_BITS = {"num_bits": 8, "type": "int", "symmetric": True, "group_size": None}
_W8A8: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": _EIGHT_BITS | {"strategy": "channel", "dynamic": False},
            "input_activations": _EIGHT_BITS | {"strategy": "token", "dynamic": True},
        }
    },
    "ignore": ["re:.*layers\\.0\\.self_attn\\.qkv_proj", "lm_head"],
}


def _phi3(name: str, notes: str, *, host: dict[str, Any] | None = None, **changes: Any) -> Card:
    """`host` are the fields of Card that say what the host does; `changes` go to the configuration."""
    return Card(
        name=f"phi3-{name}", architecture="Phi3ForCausalLM", config=_BASE | changes, notes=notes, **(host or {})
    )


def _longrope(original: int, pairs: int, spelling: str = "rope_type") -> dict[str, Any]:
    """LongRoPE over `pairs` rotated pairs with the original length where Phi-3 has it."""
    scaling = {
        spelling: "longrope",
        "short_factor": [1.0 + 0.1 * index for index in range(pairs)],
        "long_factor": [1.5 + 0.4 * index for index in range(pairs)],
    }
    return {"original_max_position_embeddings": original, "rope_scaling": scaling, "rope_theta": 10000.0}


CARDS: tuple[Card, ...] = (
    _phi3(
        "quick",
        "as Phi-4-mini: long factors over three quarters of a head, grouped queries, tied",
        host={"quick": True},
        partial_rotary_factor=0.75,
        tie_word_embeddings=True,
        **_longrope(16, 6),
    ),
    _phi3(
        "as-published",
        "as Phi-3-mini-128k: as many KV heads as query heads, the older spelling, a window longer than any request",
        num_key_value_heads=4,
        sliding_window=128,
        **_longrope(16, 8, "type"),
    ),
    _phi3(
        "longrope-short",
        "no request longer than the original length: short factors, cos and sin scaled nevertheless",
        host={"max_model_len": 32},
        **_longrope(32, 8),
    ),
    _phi3(
        "window",
        "as Phi-3-mini-4k: a plain rope, a window that leaves blocks behind",
        host={"seq_lens": (61, 9, 40), "block_size": 3},
        sliding_window=11,
    ),
    _phi3(
        "head-dim",
        "a head size of its own, one KV head, odd parts in a fused tensor",
        head_dim=20,
        num_key_value_heads=1,
    ),
    _phi3(
        "w8a8",
        "scales per row of fused tensors, one of them left out by its published name",
        host={"quantization": _W8A8},
        hidden_size=160,
        intermediate_size=256,
        head_dim=64,
    ),
)
