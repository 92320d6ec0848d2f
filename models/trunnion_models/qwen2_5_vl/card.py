"""Tiny Qwen2.5-VL configurations for the matrix."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from trunnion_models.card import Card, CardImage

IMAGE_TOKEN = 120
_TEXT: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
}
_VISION: dict[str, Any] = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_heads": 2,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "window_size": 16,
    "out_hidden_size": 64,
    "fullatt_block_indexes": [1],
}
_TOKENS: dict[str, Any] = {
    "image_token_id": IMAGE_TOKEN,
    "video_token_id": 121,
    "vision_start_token_id": 122,
    "vision_end_token_id": 123,
}


_NOTHING: Mapping[str, Any] = MappingProxyType({})


def _flat(text: Mapping[str, Any] = _NOTHING, vision: Mapping[str, Any] = _NOTHING, **outer: Any) -> dict[str, Any]:
    """As published: the text's fields at the top."""
    return {"model_type": "qwen2_5_vl", **_TEXT, **text, "vision_config": _VISION | vision, **_TOKENS, **outer}


def _nested(text: Mapping[str, Any] = _NOTHING, **outer: Any) -> dict[str, Any]:
    """As transformers saves since 4.52."""
    inner = {"model_type": "qwen2_5_vl_text", **_TEXT, **text}
    return {"model_type": "qwen2_5_vl", "text_config": inner, "vision_config": _VISION, **_TOKENS, **outer}


def _card(name: str, config: dict[str, Any], notes: str, *images: CardImage, quick: bool = False) -> Card:
    return Card(
        name=f"qwen2_5_vl-{name}",
        architecture="Qwen2_5_VLForConditionalGeneration",
        config=config,
        images=images,
        quick=quick,
        notes=notes,
    )


CARDS: tuple[Card, ...] = (
    _card(
        "quick",
        _flat(),
        "the published spelling; an image of several windows, two of uneven ones, a text",
        CardImage(sequence=0, first_token=3, grid=(1, 8, 4)),
        CardImage(sequence=2, first_token=1, grid=(1, 2, 6)),
        CardImage(sequence=2, first_token=6, grid=(1, 6, 4)),
        quick=True,
    ),
    _card(
        "nested",
        _nested({"rope_scaling": {"rope_type": "default", "mrope_section": [1, 2, 1, 2, 1, 1]}}),
        "the newer spelling; sections in turn twice; an image near the start, another at the very end",
        CardImage(sequence=0, first_token=1, grid=(1, 10, 6)),
        CardImage(sequence=1, first_token=5, grid=(1, 4, 4)),
    ),
    _card(
        "tied-outside",
        _nested({"tie_word_embeddings": False}, tie_word_embeddings=True),
        "the outer tie flag wins over the inner",
        CardImage(sequence=1, first_token=1, grid=(1, 4, 6)),
    ),
    _card(
        "tied-inside",
        _nested({"tie_word_embeddings": True}, tie_word_embeddings=False),
        "saved before transformers 5: the tie flag is the text's",
        CardImage(sequence=1, first_token=1, grid=(1, 6, 2)),
    ),
    _card(
        "yarn",
        _flat(
            {
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 16,
                    "mrope_section": [2, 3, 3],
                }
            }
        ),
        "stretched for long contexts",
        CardImage(sequence=0, first_token=2, grid=(1, 4, 8)),
    ),
    _card(
        "window-attention-only",
        _flat(vision={"fullatt_block_indexes": [], "window_size": 8, "num_heads": 1}),
        "no block sees the whole image; windows of one square",
        CardImage(sequence=0, first_token=2, grid=(1, 6, 6)),
    ),
)
