"""Tiny Mistral 3 configurations for the matrix: text beside a vision tower that is not run."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

_TEXT: dict[str, Any] = {
    "model_type": "mistral",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000000000.0,
    "sliding_window": None,
}
_VISION: dict[str, Any] = {
    "model_type": "pixtral",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "head_dim": 8,
    "image_size": 8,
    "patch_size": 4,
}
_ROPE: dict[str, Any] = {
    "rope_type": "yarn",
    "type": "yarn",
    "rope_theta": 1000000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 8,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.5,
}


def _mistral3(name: str, notes: str, text: dict[str, Any], *, tied: bool, quick: bool = False) -> Card:
    return Card(
        name=f"mistral3-{name}",
        architecture="Mistral3ForConditionalGeneration",
        config={
            "model_type": "mistral3",
            "text_config": _TEXT | text,
            "vision_config": _VISION,
            "image_token_index": 10,
            "tie_word_embeddings": tied,
        },
        quick=quick,
        notes=notes,
    )


CARDS: tuple[Card, ...] = (
    _mistral3("quick", "Mistral Small 3.1's kind of text, names and tower", {}, tied=False, quick=True),
    _mistral3(
        "ministral3",
        "Ministral 3's kind of text, tied as its 3B is",
        {"model_type": "ministral3", "rope_theta": None, "rope_parameters": _ROPE},
        tied=True,
    ),
)
