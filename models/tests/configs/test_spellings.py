"""Whatever spelling, omission or switch a `config.json` has, it comes to transformers' model or is refused by name.

The configurations are those of the families' quick cards with one thing changed. Where transformers itself refuses,
any answer but a crash will do.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from trunnion import registry
from trunnion.errors import TrunnionError
from trunnion_models.card import Card

from .resolved import Resolved, resolve_here, resolve_there

Config = dict[str, Any]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


def put(**fields: Any) -> Callable[[Config], Config]:
    return lambda config: config | fields


def drop(*names: str) -> Callable[[Config], Config]:
    return lambda config: {key: value for key, value in config.items() if key not in names}


def old_rope(**fields: Any) -> Callable[[Config], Config]:
    """As before `rope_parameters`."""
    return lambda config: drop("rope_parameters")(config) | fields


def all_layers(kind: str) -> Callable[[Config], Config]:
    return lambda config: config | {"layer_types": [kind] * config["num_hidden_layers"], "sliding_window": 7}


CHANGES: dict[str, Callable[[Config], Config]] = {
    "unchanged": put(),
    "unknown-field": put(frobnicate=3),
    "kv-heads-absent": drop("num_key_value_heads"),
    "kv-heads-null": put(num_key_value_heads=None),
    "head-dim-absent": drop("head_dim"),
    "head-dim-null": put(head_dim=None),
    "rope-absent": old_rope(),
    "rope-old-theta": old_rope(rope_theta=5000.0),
    "rope-old-null": old_rope(rope_theta=5000.0, rope_scaling=None),
    "rope-old-linear": old_rope(rope_theta=5000.0, rope_scaling={"rope_type": "linear", "factor": 2.0}),
    "rope-old-dynamic": old_rope(rope_theta=5000.0, rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
    "rope-old-llama3": old_rope(rope_theta=5000.0, rope_scaling=LLAMA3),
    "rope-old-yarn": old_rope(rope_theta=5000.0, rope_scaling=YARN),
    "rope-new-llama3": put(rope_parameters=LLAMA3 | {"rope_theta": 5000.0}),
    "rope-new-yarn": put(rope_parameters=YARN | {"rope_theta": 5000.0}),
    "rope-old-partial": old_rope(rope_theta=5000.0, partial_rotary_factor=0.5),
    "rope-new-partial": put(
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5}
    ),
    "window": put(sliding_window=7),
    "window-null": put(sliding_window=None),
    "window-absent": drop("sliding_window"),
    "window-used": put(use_sliding_window=True, sliding_window=7, max_window_layers=1),
    "layer-types-absent": drop("layer_types"),
    "layer-types-null": put(layer_types=None),
    "layer-types-full": all_layers("full_attention"),
    "layer-types-sliding": all_layers("sliding_attention"),
    "one-layer": put(num_hidden_layers=1),
    "tied": put(tie_word_embeddings=True),
    "untied": put(tie_word_embeddings=False),
    "tie-absent": drop("tie_word_embeddings"),
    "attention-bias": put(attention_bias=True),
    "mlp-bias": put(mlp_bias=True),
    "biases-absent": drop("attention_bias", "mlp_bias"),
    "act-gelu": put(hidden_act="gelu"),
    "activation-gelu": put(hidden_activation="gelu"),
    "eos-list": put(eos_token_id=[3, 5]),
    "dtype": put(dtype="float16"),
    "dtype-old": lambda config: drop("dtype")(config) | {"torch_dtype": "float16"},
    "positions": put(max_position_embeddings=777),
    "positions-absent": drop("max_position_embeddings"),
}
CARDS: dict[str, Card] = {
    family.name: card
    for family in registry.model_families()
    for card in import_module(f"{family.package}.card").CARDS
    if card.quick and not card.draft and card.pooling is None and not card.whole_prompts
}
PARTIAL = frozenset({"glm4", "glm4_moe", "phi3", "qwen3_5", "qwen3_5_moe", "qwen3_next"})
"""Families that may rotate a part of a head; of the others transformers ignores the part, or breaks."""
OWN_ROPE = frozenset({"ministral3", "olmo3", "qwen2_5_vl"})
"""Ropes by layer type, with a scaling of queries or with sections: most other spellings leave something open."""
REFUSED: dict[str, frozenset[str]] = {
    "rope-old-partial": CARDS.keys() - PARTIAL,
    "rope-new-partial": CARDS.keys() - PARTIAL,
    "rope-absent": frozenset({"qwen2_5_vl"}),
    "rope-old-theta": OWN_ROPE - {"ministral3"},
    "rope-old-null": OWN_ROPE - {"ministral3"},
    "rope-old-linear": OWN_ROPE,
    "rope-old-dynamic": OWN_ROPE,
    "rope-old-llama3": OWN_ROPE,
    "rope-old-yarn": OWN_ROPE,
    "rope-new-llama3": OWN_ROPE | {"gemma3"},
    "rope-new-yarn": OWN_ROPE | {"gemma3"},
    "window-null": frozenset({"cohere2", "exaone4", "gemma2", "gemma3", "gpt_oss", "ministral", "olmo3", "qwen2"}),
    "layer-types-full": frozenset({"ministral3", "mistral", "mistral3"}),
    "layer-types-sliding": frozenset({"qwen2_5_vl", "qwen2_moe", "qwen3", "qwen3_5", "qwen3_5_moe", "smollm3"}),
    "attention-bias": frozenset({"phi3"}),
    "mlp-bias": frozenset({"deepseek_v2", "phi3"}),
    "act-gelu": CARDS.keys() - {"gemma2", "gemma3"},
    "activation-gelu": frozenset({"gemma2", "gemma3"}),
}
"""What families refuse though transformers takes it: strict, what is taken must leave the list."""


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("family", CARDS)
def test_a_change_comes_to_the_same_model_or_is_refused_by_name(family: str, change: str, tmp_path: Path) -> None:
    config = changed(CARDS[family], change)
    try:
        here: Resolved | str = resolve_here(config)
    except TrunnionError as error:
        here = str(error)
    try:
        there = resolve_there(config, tmp_path)
    except Exception:
        # Whatever it is, transformers does not run this: an answer or a refusal will do.
        assert change != "unchanged"
        return
    refused = family in REFUSED.get(change, ())
    assert isinstance(here, str) == refused, f"{family} {change}: {here}"
    if isinstance(here, str):
        assert "\n" not in here and len(here) < 400
    else:
        assert here == there


def changed(card: Card, change: str) -> Config:
    """The card's `config.json` with one change, of its text where that is nested."""
    saved = json.loads(json.dumps(AutoConfig.for_model(**card.config).to_dict(), default=str))
    config: Config = saved | {"architectures": [card.architecture]}
    if "text_config" not in config:
        return CHANGES[change](config)
    return config | {"text_config": CHANGES[change](config["text_config"])}
