"""Where the tensors of a GLM-4-MoE checkpoint go: some to the decoder, some to the head that drafts for it."""

from __future__ import annotations

import dataclasses

from trunnion.weights.name_map import COMMON_IGNORE, ExpertRule, Rules, WeightMap
from trunnion_models.deepseek_v3.weights import DRAFT_IGNORE, DRAFT_RENAME

SARVAM_NAMES: Rules = (
    (r"^model\.word_embeddings", "model.embed_tokens"),
    (r"attention", "self_attn"),
    (r"self_attn\.dense", "self_attn.o_proj"),
    (r"self_attn\.query_layernorm", "self_attn.q_norm"),
    (r"self_attn\.key_layernorm", "self_attn.k_norm"),
    (r"mlp\.gate\.expert_bias", "mlp.gate.e_score_correction_bias"),
)
"""Sarvam's mixtures of experts are GLM-4-MoE's under other names, their projections fused."""

WEIGHT_MAP = WeightMap(
    rename=SARVAM_NAMES,
    experts=(ExpertRule(block="mlp.experts"),),
    fuse={
        "qkv_proj": {"q": "q_proj", "k": "k_proj", "v": "v_proj", "q+k+v": "query_key_value"},
        "gate_up_proj": {"gate": "gate_proj", "up": "up_proj"},
    },
    ignore=(*COMMON_IGNORE, (r"^model\.layers\.<num_hidden_layers>", "of the draft head")),
)

DRAFT_WEIGHT_MAP = dataclasses.replace(WEIGHT_MAP, ignore=DRAFT_IGNORE, rename=DRAFT_RENAME)
