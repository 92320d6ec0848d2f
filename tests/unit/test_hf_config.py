"""Published `config.json` files resolve to what transformers makes of them, or are refused by name.

`data/published_expected.json` is what transformers 5.24 resolves. 4.57 agrees on these families, but keeps ropes in
`rope_scaling` and `rope_theta`; it knows no `qwen3_5_moe_text`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from trunnion import registry
from trunnion.errors import ConfigError, UnsupportedError
from trunnion.hf_config import (
    bos_token_id,
    checkpoint_dtype,
    eos_token_ids,
    read_config,
    read_generation_config,
    text_config,
)
from trunnion.interfaces.quantization import MXFP4, BlockFP8
from trunnion.weights.quantization_config import read_quantization

DATA = Path(__file__).parent / "data"
EXPECTED: dict[str, dict[str, Any]] = json.loads((DATA / "published_expected.json").read_text())
PUBLISHED = {path.stem: json.loads(path.read_text()) for path in sorted((DATA / "published").glob("*.json"))}
SUPPORTED = [
    "deepseek-r1-fp8-block",
    "deepseek-v2-tiny-2layer",
    "devstral-small-2507-mistral",
    "exaone4-32b-LLLG",
    "gemma2-9b",
    "gemma3-1b-text",
    "glm4.5-moe",
    "gpt-oss-20b",
    "granite-3.3-2b",
    "granite-3b-code-128k-llama-bias",
    "llama-3.2-1b",
    "olmo3.1-32b",
    "phi3-mini-128k-longrope",
    "pygmalion-7b-llama1",
    "qwen3-30b-a3b",
    "qwen3-8b-fp8",
    "qwen3.5-moe-reap-text",
    "smollm3-3b",
    "wizard-vicuna-30b-gptq-sidecar",
    "wizardlm-2-8x22b-mixtral",
]
REFUSED = sorted(set(PUBLISHED) - set(SUPPORTED))


def read_family(name: str) -> Any:
    config = PUBLISHED[name]
    return registry.model_class(config).config_class.from_hf(config)


def test_every_published_config_has_an_expectation() -> None:
    assert set(PUBLISHED) == set(EXPECTED)


@pytest.mark.parametrize("name", SUPPORTED)
def test_a_supported_config_resolves_as_in_transformers(name: str) -> None:
    config, expected, got = PUBLISHED[name], EXPECTED[name], read_family(name)
    assert got.vocab_size == expected["vocab"]
    assert got.hidden_size == expected["hidden"]
    assert got.num_hidden_layers == expected["layers"]
    assert got.num_attention_heads == expected["heads"]
    # None: there is no dense MLP.
    assert getattr(got, "intermediate_size", None) == expected["inter"]
    assert got.tie_word_embeddings == expected["tie_text"]
    # gpt-oss says nothing; its tensors that are not quantised are bfloat16.
    assert checkpoint_dtype(config) == getattr(torch, expected["dtype"].replace("None", "bfloat16"))
    eos = expected["eos"] if isinstance(expected["eos"], list) else [expected["eos"]]
    assert eos_token_ids(config) == tuple(eos)
    if name.startswith("deepseek"):
        assert got.qk_rope_head_dim == expected["head_dim"]
    else:
        # transformers leaves it to the layers where the config does not say.
        assert got.head_dim == (expected["head_dim"] or expected["hidden"] // expected["heads"])
        assert got.num_key_value_heads == expected["kv"]


@pytest.mark.parametrize("name", SUPPORTED)
def test_a_supported_config_has_the_windows_of_transformers(name: str) -> None:
    expected, got = EXPECTED[name], read_family(name)
    single = getattr(got, "sliding_window", None)
    windows = getattr(got, "windows", (single,) * got.num_hidden_layers)
    # "22S/4F/26": 22 sliding layers, 4 full ones, 26 in all. Without types all layers have the window, if there is one.
    sliding = expected["layers"] if expected["window"] is not None else 0
    if expected["lt"]:
        sliding = int(expected["lt"].split("S/")[0])
    assert [window for window in windows if window is not None] == [expected["window"]] * sliding
    if name == "gemma3-1b-text":
        assert [index for index, window in enumerate(windows) if window is None] == [5, 11, 17, 23]


@pytest.mark.parametrize("name", SUPPORTED)
def test_a_supported_config_has_the_ropes_of_transformers(name: str) -> None:
    expected, got = EXPECTED[name]["rope_parameters"], read_family(name)
    ropes = got.ropes if hasattr(got, "ropes") else {"": got.rope}
    for kind, values in (expected if "full_attention" in expected else {"": expected}).items():
        # Of text alone the sections of a rope do not matter.
        for field, value in ((field, value) for field, value in values.items() if not field.startswith("mrope")):
            got_value = getattr(ropes[kind], field, None)
            if str(value).startswith("list"):
                assert len(got_value) == int(value.removeprefix("list")), (kind, field)
            elif field != "type":
                assert got_value == value, (kind, field)


@pytest.mark.parametrize("name", REFUSED)
def test_an_unsupported_config_is_refused_by_name(name: str) -> None:
    config = PUBLISHED[name]
    with pytest.raises(UnsupportedError) as caught:
        registry.model_class(config)
    text = str(caught.value)
    assert config["architectures"][0] in text
    assert config["model_type"] in text
    assert "LlamaForCausalLM" in text
    assert "\n" not in text


def test_quantised_weights_of_a_supported_family_are_read() -> None:
    found = read_quantization(PUBLISHED["qwen3-8b-fp8"])
    assert found is not None and found.scheme_of("model.layers.0.mlp.up_proj") == BlockFP8()
    found = read_quantization(PUBLISHED["gpt-oss-20b"])
    assert found is not None and found.scheme_of("model.layers.23.mlp.experts") == MXFP4()
    left_out = ("model.layers.7.self_attn.q_proj", "model.layers.7.mlp.router", "model.embed_tokens", "lm_head")
    assert [found.scheme_of(name) for name in left_out] == [None] * 4
    for name in SUPPORTED:
        if name != "gpt-oss-20b" and "fp8" not in name:
            assert read_quantization(PUBLISHED[name]) is None


@pytest.mark.parametrize("name", ["llama-3.2-1b", "gemma3-1b-text", "qwen3-8b-fp8", "deepseek-v2-tiny-2layer"])
@pytest.mark.parametrize("field", ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"])
def test_a_missing_field_is_named(name: str, field: str) -> None:
    config = {key: value for key, value in PUBLISHED[name].items() if key != field}
    with pytest.raises(ConfigError, match=field):
        registry.model_class(config).config_class.from_hf(config)


def test_a_window_that_is_switched_off_is_none() -> None:
    config = PUBLISHED["qwen3-8b-fp8"] | {"sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 2}
    family = registry.model_class(config).config_class
    assert set(family.from_hf(config).windows) == {None}
    assert family.from_hf(config | {"use_sliding_window": True}).windows == (None,) * 2 + (4096,) * 34


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"a": 1,}', "\x00"])
def test_a_config_that_is_not_a_json_object_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"config\.json") as caught:
        read_config(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_folder_without_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        read_config(tmp_path)
    (tmp_path / "model-q4.gguf").touch()
    with pytest.raises(ConfigError, match=r"name a GGUF file instead: model-q4\.gguf"):
        read_config(tmp_path)
    with pytest.raises(ConfigError, match="no such model folder"):
        read_config(tmp_path / "elsewhere")


def test_the_generation_config_has_the_last_word_on_ends(tmp_path: Path) -> None:
    assert read_generation_config(tmp_path) == {}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 8, 7], "bos_token_id": 3}')
    generation = read_generation_config(tmp_path)
    assert eos_token_ids({"eos_token_id": 7}, generation) == (7, 8)
    assert eos_token_ids({"eos_token_id": 7}, {"eos_token_id": None}) == (7,)
    assert eos_token_ids({"eos_token_id": 0}) == (0,)
    assert eos_token_ids({}) == ()
    assert bos_token_id({"bos_token_id": 1}, generation) == 3
    assert bos_token_id({"bos_token_id": None}) is None
    with pytest.raises(ConfigError, match="eos_token_id must be a token id"):
        eos_token_ids({"eos_token_id": "</s>"})


def test_the_inner_config_wins_over_the_outer() -> None:
    outer = {"tie_word_embeddings": True, "torch_dtype": "float16", "eos_token_id": 9}
    inner = {"hidden_size": 8, "tie_word_embeddings": False, "dtype": "bfloat16"}
    merged = text_config({**outer, "text_config": inner})
    assert merged["tie_word_embeddings"] is False
    assert checkpoint_dtype({**outer, "text_config": inner}) is torch.bfloat16
    assert eos_token_ids({**outer, "text_config": inner}) == (9,)
    assert text_config({**outer, "text_config": {"hidden_size": 8}})["tie_word_embeddings"] is True
    assert text_config({**outer, "text_config": {**inner, "dtype": None}})["torch_dtype"] == "float16"
    assert text_config({**outer, "text_config": {"eos_token_id": None}})["eos_token_id"] == 9
    assert text_config({**outer, "text_config": {"sliding_window": None}})["sliding_window"] is None
    assert text_config(outer) is outer


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"torch_dtype": "float32"}, torch.float32),
        ({"dtype": "float16", "torch_dtype": "float32"}, torch.float16),
        ({"dtype": None, "torch_dtype": "float32"}, torch.float32),
        ({"torch_dtype": "torch.bfloat16"}, torch.bfloat16),
        ({}, torch.bfloat16),
    ],
)
def test_the_dtype_is_read_in_both_spellings(config: dict[str, Any], expected: torch.dtype) -> None:
    assert checkpoint_dtype(config) is expected


def test_an_unknown_dtype_is_named_with_the_choices() -> None:
    with pytest.raises(ConfigError, match="dtype 'int8' is not supported; choices: bfloat16, float32, float16"):
        checkpoint_dtype({"dtype": "int8"})
