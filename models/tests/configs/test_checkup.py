"""`trunnion check` says of published configurations, without weights, what transformers makes of them on meta."""

from __future__ import annotations

import json
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from trunnion.checkup.checkup import NO_WEIGHTS, CheckOptions, check_checkpoint
from trunnion.reference import ReferenceHardware
from trunnion.weights.quantization_config import READERS

from .test_published import PUBLISHED, REFUSED

FOLDER = Path(__file__).parent / "published"
SECONDS = 5.0
BIASES_THAT_ARE_BUFFERS = {"deepseek-r1-fp8-block": 58 * 256, "glm4.5-moe": 89 * 160}
"""Of routers, which are no parameters in transformers."""
ADAPTABLE = ("lfm2-1.2b-unsupported",)
"""A decoder of transformers, which the adapter runs."""
EXPECTED = tomllib.loads((Path(__file__).parent / "expected_checks.toml").read_text())
BY_HAND = {
    "llama-3.2-1b": 16 * 2 * 8 * 64 * 2,
    "gemma2-9b": 42 * 2 * 8 * 256 * 4,
    "deepseek-r1-fp8-block": 61 * (512 + 64) * 2,
    "glm4.5-moe": 92 * 2 * 8 * 128 * 2,
    "gpt-oss-20b": 24 * 2 * 8 * 64 * 2,
    "lfm2-1.2b-unsupported": 6 * 2 * 8 * 64 * 2,
}
"""Bytes of a token in all caches, from what the models' cards say: layers, keys and values, heads, features of each,
bytes of a number (Gemma 2 was published in float32); DeepSeek's latent attention keeps 512 and 64 that rotate."""
LATENT = ("deepseek-r1-fp8-block", "deepseek-v2-tiny-2layer")


def _check(name: str) -> Any:
    return check_checkpoint(FOLDER / f"{name}.json", CheckOptions(hardware=ReferenceHardware()))


def _config_there(name: str, folder: Path) -> Any:
    config = {key: value for key, value in PUBLISHED[name].items() if key != "quantization_config"}
    (folder / "config.json").write_text(json.dumps(config))
    return AutoConfig.from_pretrained(folder).get_text_config()


def _dtype(config: Any) -> str:
    inner = config.get("text_config", config)
    return str(inner.get("dtype") or inner.get("torch_dtype") or "bfloat16")


@pytest.mark.parametrize("name", sorted(PUBLISHED.keys() - REFUSED.keys()))
def test_a_published_config_is_checked_in_seconds(name: str, tmp_path: Path) -> None:
    begin = time.process_time()
    report = _check(name)
    assert time.process_time() - begin < SECONDS
    assert NO_WEIGHTS in report.notes
    method = PUBLISHED[name].get("quantization_config", {}).get("quant_method")
    if method is not None and method not in READERS:
        assert [f"quant_method {method!r}" in reason for reason in report.refusals] == [True]
        return
    assert report.refusals == []
    there = _config_there(name, tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(there, dtype=torch.bfloat16)
    assert report.parameters == model.num_parameters() + BIASES_THAT_ARE_BUFFERS.get(name, 0)
    assert report.groups is not None
    attention = [group for group in report.groups if group.kind != "recurrent"]
    kinds = getattr(there, "layer_types", None) or ["full_attention"] * there.num_hidden_layers
    assert sum(group.layers for group in attention) == len(kinds) - kinds.count("linear_attention")
    if name in LATENT:
        per_layer = there.kv_lora_rank + there.qk_rope_head_dim
    else:
        head_dim = getattr(there, "head_dim", None) or there.hidden_size // there.num_attention_heads
        per_layer = 2 * head_dim * there.num_key_value_heads
    itemsize = getattr(torch, _dtype(PUBLISHED[name])).itemsize
    for group in attention:
        assert group.bytes_per_token == group.layers * per_layer * itemsize
    quantised = [row for row in report.quantization if row.scheme != "unquantised"]
    assert bool(quantised) == ("quantization_config" in PUBLISHED[name])


@pytest.mark.parametrize("name", sorted({*REFUSED} - {*ADAPTABLE}))
def test_a_family_that_is_not_there_is_refused(name: str) -> None:
    report = _check(name)
    assert (report.parameters, report.runs) == (None, False)
    (reason,) = report.refusals
    assert report.way is None and reason.startswith(f"unknown architecture '{REFUSED[name]}'")


@pytest.mark.parametrize("name", ADAPTABLE)
def test_a_family_that_is_not_there_runs_on_the_adapter(name: str) -> None:
    report = _check(name)
    assert (report.way, report.runs) == ("adapter", True)
    assert any(note.startswith("adapter: split, 10 of 16 mixers run once per request") for note in report.notes)
    (state,) = [group for group in report.groups or () if group.kind == "recurrent"]
    # Ten convolutions over three tokens of 2048 features, in bfloat16.
    assert state.bytes_per_request == 10 * 3 * 2048 * 2


def test_every_published_config_is_expected_to_do_something() -> None:
    assert EXPECTED.keys() == PUBLISHED.keys()
    assert BY_HAND.keys() <= EXPECTED.keys()


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_what_is_said_is_what_is_expected(name: str) -> None:
    begin = time.process_time()
    report = _check(name)
    assert time.process_time() - begin < SECONDS
    expected = dict(EXPECTED[name])
    refused = expected.pop("refused", [])
    assert len(report.refusals) == len(refused)
    assert all(said.startswith(line) for said, line in zip(report.refusals, refused, strict=True)), report.refusals
    found: dict[str, Any] = {"way": report.way or "refused"}
    if report.family is not None:
        found["family"] = report.family
    if report.groups is not None and report.memory is not None:
        groups = [
            {
                "kind": group.kind,
                "layers": group.layers,
                "window": group.window or 0,
                "bytes_per_token": group.bytes_per_token,
            }
            for group in report.groups
        ]
        found |= {"parameters": report.parameters, "groups": groups, "weights": report.weight_bytes}
        found |= {"caches": report.memory.caches, "memory": report.memory.total}
    assert found == expected


@pytest.mark.parametrize("name", BY_HAND)
def test_bytes_of_a_token_are_those_computed_by_hand(name: str) -> None:
    report = _check(name)
    assert report.groups is not None
    assert sum(group.bytes_per_token for group in report.groups) == BY_HAND[name]
