"""Tiny Gemma 3 text configurations for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

_BASE: dict[str, Any] = {
    "model_type": "gemma3_text",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "query_pre_attn_scalar": 20,
    "max_position_embeddings": 64,
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
    },
}
_VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}


def _gemma3(name: str, notes: str, *, quick: bool = False, **changes: Any) -> Card:
    return Card(
        name=f"gemma3-{name}", architecture="Gemma3ForCausalLM", config=_BASE | changes, quick=quick, notes=notes
    )


CARDS: tuple[Card, ...] = (
    _gemma3("quick", "windows between full layers, a rope for each, scaled tied embeddings", quick=True),
    _gemma3("untied", "own head, soft-capped logits", tie_word_embeddings=False, final_logit_softcapping=3.0),
    Card(
        name="gemma3-as-published",
        architecture="Gemma3ForCausalLM",
        config={key: value for key, value in _BASE.items() if key not in ("layer_types", "rope_parameters")}
        | {
            "sliding_window_pattern": 3,
            "rope_theta": 1000000,
            "rope_local_base_freq": 100,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        seq_lens=(61, 2, 40),
        block_size=3,
        notes="the older spelling: a pattern in place of layer types, two bases in place of two ropes",
    ),
    _gemma3("window-40", "a window longer than every sequence", sliding_window=40),
    _gemma3("window-1", "a query that sees itself only", sliding_window=1),
    _gemma3("mqa", "one KV head, biases", num_key_value_heads=1, attention_bias=True),
    Card(
        name="gemma3-beside-a-tower",
        architecture="Gemma3ForConditionalGeneration",
        config={
            "model_type": "gemma3",
            "text_config": _BASE,
            "vision_config": _VISION,
            "mm_tokens_per_image": 4,
            "image_token_index": 130,
        },
        notes="text under its own prefix, beside tensors that are not run",
    ),
    _gemma3(
        "wide",
        "windows, norms and two ropes in a shape that vendors' kernels take; a softmax scale of its own",
        head_dim=64,
    ),
)
