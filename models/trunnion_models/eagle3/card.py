"""Tiny EAGLE-3 drafts, each beside a tiny target, for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

_SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
_DRAFT: dict[str, Any] = _SIZES | {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "num_hidden_layers": 1,
    "intermediate_size": 80,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
}


def _eagle3(
    name: str, notes: str, architecture: str, target: dict[str, Any], draft: dict[str, Any], *, quick: bool = False
) -> Card:
    return Card(
        name=f"eagle3-{name}",
        architecture=architecture,
        config=_SIZES | target,
        draft=True,
        draft_config=draft,
        quick=quick,
        notes=notes,
    )


CARDS: tuple[Card, ...] = (
    _eagle3(
        "draft",
        "few of the target's tokens, states at the usual places, another rope and other heads than the target's",
        "LlamaForCausalLM",
        {"model_type": "llama", "num_hidden_layers": 7},
        _DRAFT | {"draft_vocab_size": 45, "head_dim": 24},
        quick=True,
    ),
    _eagle3(
        "nested",
        "layers named by what they make, the last one among them; all tokens, by the target's own head, which is tied",
        "Qwen3ForCausalLM",
        {"model_type": "qwen3", "num_hidden_layers": 3, "head_dim": 24, "tie_word_embeddings": True},
        _DRAFT
        | {
            "architectures": ["Eagle3LlamaForCausalLM"],
            "draft_vocab_size": 131,
            "tie_word_embeddings": True,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 0, 1], "use_aux_hidden_state": True},
        },
    ),
    _eagle3(
        "speculators",
        "as speculators writes it: nested, layers.0, the residual behind its norm; the embeddings among the states",
        "MistralForCausalLM",
        {"model_type": "mistral", "num_hidden_layers": 2, "head_dim": 24, "sliding_window": 5},
        {
            "architectures": ["Eagle3DraftModel"],
            "speculators_model_type": "eagle3",
            "draft_vocab_size": 45,
            "norm_before_residual": True,
            "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
            "transformer_layer_config": {key: value for key, value in _DRAFT.items() if key != "architectures"},
        },
    ),
    _eagle3(
        "narrow",
        "narrower than its target, so that it embeds by itself, and two states; biases",
        "Qwen2ForCausalLM",
        {"model_type": "qwen2", "num_hidden_layers": 3},
        _DRAFT
        | {
            "hidden_size": 48,
            "target_hidden_size": 64,
            "attention_bias": True,
            "mlp_bias": True,
            "draft_vocab_size": 45,
            "eagle_aux_hidden_state_layer_ids": [3, 1],
        },
    ),
)
