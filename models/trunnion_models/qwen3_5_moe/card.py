"""Tiny Qwen3.5-MoE configurations for the matrix: the text alone, and beside a vision tower that is not run."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card
from trunnion_models.qwen3_5.card import BASE, beside_a_tower

_SPARSE: dict[str, Any] = BASE | {
    "model_type": "qwen3_5_moe_text",
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    # A choice of few, which rounding leaves as it is: a recurrent state carries another one to all later tokens.
    "num_experts": 6,
    "num_experts_per_tok": 2,
}
_SHORT = (15, 7, 11)


def _qwen3_5_moe(
    name: str,
    notes: str,
    *,
    quick: bool = False,
    draft: bool = False,
    seq_lens: tuple[int, ...] = (23, 9, 14),
    **changes: Any,
) -> Card:
    return Card(
        name=f"qwen3_5_moe-{name}",
        architecture="Qwen3_5MoeForCausalLM",
        config=_SPARSE | changes,
        quick=quick,
        draft=draft,
        seq_lens=seq_lens,
        notes=notes,
    )


CARDS: tuple[Card, ...] = (
    _qwen3_5_moe("quick", "Qwen3.5's layers with experts in each and a gated shared one", quick=True),
    _qwen3_5_moe(
        "linear-only", "no attention layer: a model with states and no blocks", layer_types=["linear_attention"] * 4
    ),
    _qwen3_5_moe(
        "many-experts",
        "many experts without tokens, several KV heads, a short convolution, a wider rope, tied",
        num_experts=24,
        num_experts_per_tok=2,
        num_key_value_heads=4,
        linear_conv_kernel_dim=2,
        rope_parameters=BASE["rope_parameters"] | {"partial_rotary_factor": 0.5, "mrope_section": [2, 2, 2]},
        tie_word_embeddings=True,
        seq_lens=_SHORT,
    ),
    _qwen3_5_moe("draft", "the head for multi-token prediction, with experts of its own", quick=True, draft=True),
    _qwen3_5_moe(
        "draft-tied",
        "a head whose target ties its own: what is shared is one tensor; a wider rope",
        draft=True,
        rope_parameters=BASE["rope_parameters"] | {"partial_rotary_factor": 0.5, "mrope_section": [2, 2, 2]},
        tie_word_embeddings=True,
    ),
    Card(
        name="qwen3_5_moe-beside-a-tower",
        architecture="Qwen3_5MoeForConditionalGeneration",
        config=beside_a_tower("qwen3_5_moe", _SPARSE),
        seq_lens=_SHORT,
        notes="text of a checkpoint with a tower: its names, its tensors left out",
    ),
)
