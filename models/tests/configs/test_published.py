"""Configurations as they were published come to the same model as in transformers, or are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from trunnion import registry
from trunnion.errors import UnsupportedError

from .resolved import resolve_here, resolve_there

PUBLISHED = {path.stem: json.loads(path.read_text()) for path in sorted(Path(__file__).parent.glob("published/*.json"))}
REFUSED = {
    "lfm2-1.2b-unsupported": "Lfm2ForCausalLM",
    "qwen2-vl-7b-mrope": "Qwen2VLForConditionalGeneration",
}
"""Files whose architecture no family has."""
ARCHITECTURES = {name for family in registry.model_families() for name in family.architectures}
ELSEWHERE = sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()} - ARCHITECTURES)
"""Causal models that transformers has and this repository has not."""


@pytest.mark.parametrize("name", sorted(PUBLISHED.keys() - REFUSED.keys()))
def test_a_published_config_comes_to_the_same_model(name: str, tmp_path: Path) -> None:
    config: dict[str, Any] = PUBLISHED[name]
    assert resolve_here(config) == resolve_there(config, tmp_path)


@pytest.mark.parametrize("name", REFUSED)
def test_a_family_that_is_not_there_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"unknown architecture '{REFUSED[name]}'.*supported: ") as caught:
        resolve_here(PUBLISHED[name])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("architecture", ELSEWHERE)
def test_every_other_causal_model_is_refused_by_name(architecture: str) -> None:
    with pytest.raises(UnsupportedError, match=f"unknown architecture '{architecture}'"):
        resolve_here({"architectures": [architecture], "model_type": "other", "vocab_size": 10})
