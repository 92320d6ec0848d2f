"""`trunnion compare` finds nothing where nothing is wrong, and the module at fault where one is."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from trunnion.cli.compare import compare_models
from trunnion.errors import TrunnionError
from trunnion_models.gemma2.model import Gemma2DecoderLayer
from trunnion_models.llama.model import LlamaAttention
from trunnion_models.qwen3.model import Qwen3Attention

SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
}


def save(model_type: str, folder: Path) -> str:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **SIZES))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.5 if parameter.dim() == 1 else 0.0, 0.2)
    model.save_pretrained(folder)
    return str(folder)


def run(folder: str, **options: Any) -> int:
    given = {"prompt": None, "hardware": "cpu", "dtype": "float32", "port": None, "as_json": False}
    return compare_models(folder, **{**given, "html": None, "save": None, **options})


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "qwen3_moe", "qwen3_next", "stablelm"])
def test_a_port_that_is_right_has_no_difference(
    model_type: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(save(model_type, tmp_path), as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["first_different"] is None
    assert {"layers.0.input_layernorm", "layers.2", "logits"} <= {row["module"] for row in found["modules"]}


def test_norms_of_queries_and_keys_that_are_swapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, build = save("qwen3", tmp_path / "model"), Qwen3Attention.forward

    def swapped(self: Any, *args: Any) -> torch.Tensor:
        self._modules["q_norm"], self._modules["k_norm"] = self._modules["k_norm"], self._modules["q_norm"]
        try:
            return build(self, *args)
        finally:
            self._modules["q_norm"], self._modules["k_norm"] = self._modules["k_norm"], self._modules["q_norm"]

    monkeypatch.setattr(Qwen3Attention, "forward", swapped)
    page, tensors = tmp_path / "depth.html", tmp_path / "both.safetensors"
    assert run(folder, html=page, save=tensors) == 1
    assert "first difference: layers.0.self_attn," in capsys.readouterr().out
    assert "layers.0.self_attn" in page.read_text() and "<svg" in page.read_text()
    assert load_file(tensors)["here"].shape == load_file(tensors)["there"].shape


def test_a_rope_of_another_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, build = save("llama", tmp_path), LlamaAttention.__init__

    def rebased(self: Any, config: Any, rotary_emb: Any, ctx: Any, prefix: str) -> None:
        other = dataclasses.replace(rotary_emb.rope, rope_theta=500.0)
        build(self, config, type(rotary_emb)(other, 16, 64, ctx=ctx), ctx, prefix)

    monkeypatch.setattr(LlamaAttention, "__init__", rebased)
    assert run(folder) == 1
    assert "first difference: layers.0.self_attn," in capsys.readouterr().out


def test_a_residual_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, forward = save("gemma2", tmp_path), Gemma2DecoderLayer.forward

    def forgetful(self: Any, positions: Any, hidden_states: Any, residual: Any) -> Any:
        made, kept = forward(self, positions, hidden_states, residual)
        return made, torch.zeros_like(kept)

    monkeypatch.setattr(Gemma2DecoderLayer, "forward", forgetful)
    assert run(folder) == 1
    assert "first difference: layers.0," in capsys.readouterr().out


def test_a_mistake_of_the_user_is_one_line(tmp_path: Path) -> None:
    for folder, options in ((tmp_path / "nothing", {}), (tmp_path, {"dtype": "int3"})):
        with pytest.raises(TrunnionError) as caught:
            run(str(folder), **options)
        assert "\n" not in str(caught.value)
