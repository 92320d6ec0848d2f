"""Tiny Qwen3.5 configurations for the matrix: the text alone, and beside a vision tower that is not run."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

BASE: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    # Large, as in Qwen3-Next's cards, and larger: here and there a head's output is nearer to zero.
    "rms_norm_eps": 1e-2,
    "max_position_embeddings": 64,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [1, 1, 1],
    },
    "tie_word_embeddings": False,
    "mtp_num_hidden_layers": 1,
}
_DENSE: dict[str, Any] = BASE | {"model_type": "qwen3_5_text", "intermediate_size": 96}


def beside_a_tower(model_type: str, text: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a checkpoint that has `text` and a vision tower."""
    vision = {
        "model_type": f"{model_type}_vision",
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_heads": 2,
        "out_hidden_size": text["hidden_size"],
        "patch_size": 4,
        "num_position_embeddings": 16,
    }
    return {
        "model_type": model_type,
        "text_config": text,
        "vision_config": vision,
        "image_token_id": 10,
        "video_token_id": 11,
        "vision_start_token_id": 12,
        "vision_end_token_id": 13,
        "tie_word_embeddings": text["tie_word_embeddings"],
    }


def _qwen3_5(name: str, notes: str, *, quick: bool = False, draft: bool = False, **changes: Any) -> Card:
    return Card(
        name=f"qwen3_5-{name}",
        architecture="Qwen3_5ForCausalLM",
        config=_DENSE | changes,
        quick=quick,
        draft=draft,
        notes=notes,
    )


CARDS: tuple[Card, ...] = (
    _qwen3_5("quick", "projections of delta nets one by one, gated attention, partial rope with sections", quick=True),
    _qwen3_5(
        "linear-only", "no attention layer: a model with states and no blocks", layer_types=["linear_attention"] * 4
    ),
    _qwen3_5(
        "kernel-2",
        "a short convolution, as many k-heads as v-heads, several KV heads, tied, a wider rope in the older spelling",
        linear_conv_kernel_dim=2,
        linear_num_key_heads=4,
        num_key_value_heads=4,
        full_attention_interval=2,
        attention_bias=True,
        rope_parameters=None,
        partial_rotary_factor=0.5,
        tie_word_embeddings=True,
    ),
    _qwen3_5("draft", "the head for multi-token prediction, on the decoder's hidden states", quick=True, draft=True),
    Card(
        name="qwen3_5-fp8-blocks",
        architecture="Qwen3_5ForCausalLM",
        config=_DENSE
        | {
            "hidden_size": 160,
            "intermediate_size": 320,
            "head_dim": 64,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 40,
        },
        quantization={
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": [
                f"model.layers.{index}.linear_attn.in_proj_{part}" for index in range(3) for part in "ab"
            ],
        },
        notes="FP8 in blocks: three parts of a projection are one in the checkpoint, its last block cut short",
    ),
    Card(
        name="qwen3_5-beside-a-tower",
        architecture="Qwen3_5ForConditionalGeneration",
        config=beside_a_tower("qwen3_5", _DENSE),
        notes="text of a checkpoint with a tower: its names, its tensors left out",
    ),
)
