"""Weights alone in 4 and 8 bits: what their configs mean, and files beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from trunnion.errors import UnsupportedError
from trunnion.interfaces.quantization import GroupedInt, IntLayout, Scheme
from trunnion.weights.checkpoint import open_checkpoint
from trunnion.weights.quantization_config import read_quantization
from trunnion.weights.quantization_of_layers import QuantizedLayers

from .packed_toys import (
    AWQ,
    GPTQ,
    WEIGHT_MAP,
    compressed,
    scheme_of,
)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (compressed(), GroupedInt(bits=4, group_size=32, has_zero_points=False, layout=IntLayout.COMPRESSED)),
        (compressed(8, None, symmetric=False),
         GroupedInt(bits=8, group_size=None, has_zero_points=True, layout=IntLayout.COMPRESSED)),
        (compressed(actorder="weight"),
         GroupedInt(bits=4, group_size=32, has_zero_points=False, layout=IntLayout.COMPRESSED)),
        (compressed(actorder="group"),
         GroupedInt(bits=4, group_size=32, has_zero_points=False, is_ordered=True, layout=IntLayout.COMPRESSED)),
        (AWQ, GroupedInt(bits=4, group_size=32, has_zero_points=True, layout=IntLayout.AWQ)),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 128, "version": "GEMM"},
         GroupedInt(bits=4, group_size=128, has_zero_points=True, layout=IntLayout.AWQ)),
        (GPTQ, GroupedInt(bits=4, group_size=32, has_zero_points=True, layout=IntLayout.GPTQ)),
        (GPTQ | {"checkpoint_format": "gptq_v2", "desc_act": True},
         GroupedInt(bits=4, group_size=32, has_zero_points=True, is_ordered=True, layout=IntLayout.GPTQ_V2)),
        # One group holds all features, whatever their order.
        (GPTQ | {"group_size": -1, "desc_act": True},
         GroupedInt(bits=4, group_size=None, has_zero_points=True, layout=IntLayout.GPTQ)),
    ],
)  # fmt: skip
def test_schemes(settings: Mapping[str, Any], expected: Scheme) -> None:
    assert scheme_of(settings) == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (compressed(3), "num_bits 3.*choices: 4, 8"),
        (compressed(group_size=48), "group_size 48.*choices: 32, 64"),
        (compressed(strategy="tensor"), "strategy 'tensor'.*choices: 'channel', 'group'"),
        (compressed(type="float"), "type 'float'"),
        (compressed(actorder="random"), "actorder 'random'"),
        (AWQ | {"bits": 3}, "awq: bits 3 is not supported; choices: 4"),
        (AWQ | {"version": "gemv"}, "version 'gemv'.*choices: 'gemm'"),
        (AWQ | {"zero_point": False}, "zero_point False"),
        (AWQ | {"group_size": 100}, "group_size 100"),
        (GPTQ | {"bits": 3}, "gptq: bits 3 is not supported; choices: 4, 8"),
        (GPTQ | {"bits": 2}, "bits 2"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'.*choices: 'gptq', 'gptq_v2'"),
        (GPTQ | {"is_marlin_format": True}, "checkpoint_format 'marlin'"),
        (GPTQ | {"dynamic": {"-:.*gate": {}, "+:.*down": {"bits": 8}}}, "dynamic settings for '\\+:.*down'"),
        (compressed() | {"kv_cache_scheme": {"num_bits": 8, "type": "int", "strategy": "tensor"}},
         "kv_cache_scheme: type 'int'.*choices: 'float'"),
        (compressed() | {"kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "attn_head"}},
         "kv_cache_scheme: strategy 'attn_head'.*choices: 'tensor'"),
        (compressed() | {"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": True}},
         "kv_cache_scheme: dynamic True"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_refused_in_one_line_with_the_choices(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(UnsupportedError, match=expected) as caught:
        read_quantization({"quantization_config": settings})
    assert "\n" not in str(caught.value)


def test_a_cache_scheme_says_that_there_are_scales() -> None:
    settings = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    for scheme, expected in ((None, False), (settings, True)):
        found = read_quantization({"quantization_config": compressed() | {"kv_cache_scheme": scheme}})
        assert found is not None and found.has_cache_scales == expected


@pytest.mark.parametrize("settings", [AWQ, GPTQ], ids=["awq", "gptq"])
def test_tensors_tell_what_is_quantised(settings: dict[str, Any]) -> None:
    """GPTQ has no list of what it leaves out, and AWQ's says nothing of the head."""
    config = read_quantization({"quantization_config": settings})
    assert config is not None
    names = ["lm_head.weight", "mlp.gate.weight", "q_proj.qweight", "q_proj.scales", "k_proj.qweight", "v_proj.qweight"]
    found = QuantizedLayers(config, WEIGHT_MAP, names)
    assert found.scheme("lm_head") is None and found.scheme("mlp.gate") is None
    assert found.scheme("qkv_proj") == scheme_of(settings)
    mixed = QuantizedLayers(config, WEIGHT_MAP, ["q_proj.qweight", "k_proj.weight", "v_proj.qweight"])
    with pytest.raises(UnsupportedError, match=r"qkv_proj is one layer here.*k_proj: unquantised"):
        mixed.scheme("qkv_proj")


SIDECAR = {
    "bits": 4, "group_size": 128, "damp_percent": 0.01, "desc_act": True, "sym": True, "true_sequential": True,
    "model_name_or_path": None, "model_file_base_name": "gptq_model-4bit-128g",
}  # fmt: skip


def folder_with(folder: Path, config: dict[str, Any], **side_files: dict[str, Any]) -> Path:
    save_file({"a": torch.zeros(1)}, folder / "gptq_model-4bit-128g.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    for name, content in side_files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_settings_beside_the_config_are_read(tmp_path: Path) -> None:
    """As in uploads of 2023; a file of tensors may have any name."""
    checkpoint = open_checkpoint(folder_with(tmp_path, {}, quantize_config=SIDECAR))
    found = read_quantization(checkpoint.config)
    assert found is not None and found.rules[0].scheme == GroupedInt(
        bits=4, group_size=128, has_zero_points=True, is_ordered=True, layout=IntLayout.GPTQ
    )
    assert list(checkpoint.source.infos) == ["a"]


def test_awqs_own_file_is_read(tmp_path: Path) -> None:
    settings = {"zero_point": True, "q_group_size": 128, "w_bit": 4, "version": "GEMM"}
    found = read_quantization(open_checkpoint(folder_with(tmp_path, {}, quant_config=settings)).config)
    assert found is not None and found.method == "awq"


def test_a_config_and_a_file_beside_it_must_agree(tmp_path: Path) -> None:
    own = {"quantization_config": GPTQ | {"group_size": 128, "desc_act": True, "checkpoint_format": "gptq_v2"}}
    found = read_quantization(open_checkpoint(folder_with(tmp_path, own, quantize_config=SIDECAR)).config)
    assert found is not None and found.rules[0].scheme.layout is IntLayout.GPTQ_V2  # type: ignore[union-attr]
    (tmp_path / "quantize_config.json").write_text(json.dumps(SIDECAR | {"bits": 8}))
    with pytest.raises(UnsupportedError, match=r"bits is 4 in .*config\.json and 8 in quantize_config\.json"):
        open_checkpoint(tmp_path)
