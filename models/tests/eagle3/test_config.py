"""EAGLE-3: what published configurations resolve to, in all their spellings, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from trunnion.errors import ConfigError, UnsupportedError
from trunnion.weights.name_map import Ignored
from trunnion_models.eagle3.config import Eagle3Config
from trunnion_models.eagle3.weights import WEIGHT_MAP

AUTHORS: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 2048,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 1,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.28.1",
    "use_cache": True,
    "vocab_size": 128256,
    "draft_vocab_size": 32000,
}
"""EAGLE/eagle/traineagle3/config.json"""

SPECULATORS: dict[str, Any] = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "draft_vocab_size": 32000,
    "norm_before_residual": True,
    "target_hidden_size": None,
    "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "x"}},
    "transformer_layer_config": {name: value for name, value in AUTHORS.items() if name != "draft_vocab_size"},
}


def test_the_authors_spelling() -> None:
    config = Eagle3Config.from_hf(AUTHORS)
    assert (config.vocab_size, config.draft_vocab_size, config.hidden_size) == (128256, 32000, 4096)
    assert (config.target_hidden_size, config.num_states, config.head_dim) == (4096, 3, 128)
    assert config.aux_layers(32) == (2, 16, 29)
    assert not config.norm_before_residual and config.max_model_len == 2048


def test_speculators_nest_the_layer() -> None:
    config = Eagle3Config.from_hf(SPECULATORS)
    assert (config.vocab_size, config.draft_vocab_size, config.hidden_size) == (128256, 32000, 4096)
    assert config.norm_before_residual and config.aux_layers(32) == (2, 16, 29)


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({"eagle_aux_hidden_state_layer_ids": [2, 23, 45]}, (2, 23, 45)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 22, 44]}}, (2, 23, 45)),
        ({"eagle_config": {"use_aux_hidden_state": True}}, (2, 24, 45)),
        ({"eagle_config": None, "eagle_aux_hidden_state_layer_ids": None}, (2, 24, 45)),
        (
            {
                "eagle_aux_hidden_state_layer_ids": [2, 23],
                "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 22]},
            },
            (2, 23),
        ),
    ],
    ids=["taken", "made", "no ids", "null", "both"],
)
def test_layers_are_counted_by_what_they_take(changes: dict[str, Any], layers: tuple[int, ...]) -> None:
    """At the top as vLLM reads them, in `eagle_config` as SGLang does: one less."""
    config = Eagle3Config.from_hf(AUTHORS | changes)
    assert config.aux_layers(48) == layers and config.num_states == len(layers)


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a decoder": ({"draft_vocab_size": ...}, ConfigError, "'draft_vocab_size' is missing; is it a draft of EAGLE-3?"),
    "two layers": ({"num_hidden_layers": 2}, UnsupportedError, "num_hidden_layers 2 is not supported; choices: 1"),
    "EAGLE-1": ({"eagle_config": {"use_aux_hidden_state": False}}, UnsupportedError, "use_aux_hidden_state False"),
    "a norm before fc": ({"norm_before_fc": True}, UnsupportedError, "norm_before_fc True is not supported"),
    "a window": ({"layer_types": ["sliding_attention"]}, UnsupportedError, "layer type 'sliding_attention'"),
    "more tokens than there are": ({"draft_vocab_size": 128257}, ConfigError, "128257 is above vocab_size 128256"),
    "ids that are none": ({"eagle_aux_hidden_state_layer_ids": [1, -2]}, ConfigError, r"list of layers, got \[1, -2\]"),
    "another speculator": (
        {"speculators_model_type": "peagle"},
        UnsupportedError,
        "'peagle' is not supported; choices",
    ),
    "ids that contradict": (
        {"eagle_aux_hidden_state_layer_ids": [1], "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1]}},
        ConfigError,
        r"\[1\] is what layers take, and what those of eagle_config make is taken by \[2\]",
    ),
}


@pytest.mark.parametrize(("changes", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_run_is_named(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    config = {name: value for name, value in (AUTHORS | changes).items() if value is not ...}
    with pytest.raises(error, match=message) as caught:
        Eagle3Config.from_hf(config)
    assert "\n" not in str(caught.value)


SPECULATORS_REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no layer": (
        {"transformer_layer_config": None},
        ConfigError,
        "transformer_layer_config must be an object, got None",
    ),
    "another layer": (
        {"transformer_layer_config": {"model_type": "qwen3"}},
        UnsupportedError,
        "model_type 'qwen3' is not supported; choices: 'llama'",
    ),
    "a residual left open": ({"norm_before_residual": None}, ConfigError, "'norm_before_residual' is missing"),
}


@pytest.mark.parametrize(("changes", "error", "message"), SPECULATORS_REFUSED.values(), ids=SPECULATORS_REFUSED)
def test_speculators_that_are_not_run_are_named(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Eagle3Config.from_hf(SPECULATORS | changes)


@pytest.mark.parametrize("layer", ["midlayer", "layers.0", "model.layers.0"])
def test_names(layer: str) -> None:
    """The authors', those of speculators and vLLM."""
    (target,) = WEIGHT_MAP.resolve(f"{layer}.self_attn.k_proj.weight")
    assert target[:2] == ("model.midlayer.self_attn.qkv_proj.weight", "k")
    found = {name: WEIGHT_MAP.resolve(name) for name in ("fc.weight", "norm.weight", "embed_tokens.weight", "d2t")}
    assert {name: [target.param for target in targets] for name, targets in found.items()} == {
        "fc.weight": ["model.fc.weight"],
        "norm.weight": ["model.norm.weight"],
        "embed_tokens.weight": ["model.embed_tokens.weight"],
        "d2t": ["draft_vocabulary.d2t"],
    }
    assert WEIGHT_MAP.resolve("t2d") == Ignored("d2t says the same the other way round")
