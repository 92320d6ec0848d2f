"""Pooling models: how a folder says that it is one, which class runs it, and what its head makes of a row."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from trunnion import registry
from trunnion.config import BuildContext, ExecutorConfig, PoolingConfig
from trunnion.contract import Limits, OutputKind
from trunnion.errors import ConfigError, UnsupportedError
from trunnion.interfaces.model import CausalLM, PoolingModel, output_head, output_kind
from trunnion.layers.pooling import LastTokenPooling, SequencePooling, mean_so_far, rows_of_first_tokens
from trunnion.pooling import read_pooling
from trunnion.reference.hardware import ReferenceHardware
from trunnion.runner.model_executor import ModelExecutor
from trunnion_models.qwen3.config import Qwen3Config
from trunnion_models.qwen3.model import Qwen3ForCausalLM
from trunnion_models.qwen3.pooling import Qwen3Embedding

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 31,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 32,
    "dtype": "float32",
}
LIMITS = Limits(max_num_tokens=8, max_num_seqs=2, max_model_len=16, max_logits_rows=2, block_size=4)
LAST_TOKEN = {"pooling_mode_cls_token": False, "pooling_mode_lasttoken": True, "include_prompt": True}


class ToyHardware(ReferenceHardware):
    name, device_type = "toy", "cpu"


def write_modules(
    folder: Path, *names: str, pooling: Any = LAST_TOKEN, prefix: str = "sentence_transformers.models"
) -> None:
    modules = [
        {"idx": index, "name": str(index), "path": f"{index}_{name}" if index else "", "type": f"{prefix}.{name}"}
        for index, name in enumerate(names)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def test_a_folder_without_modules_is_a_language_model(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) is None


@pytest.mark.parametrize("prefix", ["sentence_transformers.models", "sentence_transformers.other.modules"])
@pytest.mark.parametrize("pooling", [LAST_TOKEN, {"pooling_mode": "lasttoken"}, {"pooling_mode": ["lasttoken"]}])
def test_last_token_pooling_in_old_and_new_spelling(tmp_path: Path, prefix: str, pooling: dict[str, Any]) -> None:
    write_modules(tmp_path, "Transformer", "Pooling", pooling=pooling, prefix=prefix)
    assert read_pooling(tmp_path) == PoolingConfig(normalize=False)
    write_modules(tmp_path, "Transformer", "Pooling", "Normalize", pooling=pooling, prefix=prefix)
    assert read_pooling(tmp_path) == PoolingConfig(normalize=True)


@pytest.mark.parametrize(
    ("pooling", "named"),
    [
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_cls_token": True, "pooling_mode_lasttoken": True}, "cls and lasttoken"),
        ({"pooling_mode": "weightedmean"}, "weightedmean"),
        ({"pooling_mode": ["lasttoken", "max"]}, "lasttoken and max"),
        ({}, "none"),
    ],
)
def test_other_pooling_modes_are_refused_by_name(tmp_path: Path, pooling: dict[str, Any], named: str) -> None:
    write_modules(tmp_path, "Transformer", "Pooling", pooling=pooling)
    with pytest.raises(
        UnsupportedError, match=rf"pooling mode {named} is not supported; choices: lasttoken, cls, mean$"
    ):
        read_pooling(tmp_path)


@pytest.mark.parametrize(("flag", "mode"), [("pooling_mode_cls_token", "cls"), ("pooling_mode_mean_tokens", "mean")])
def test_pooling_of_encoders(tmp_path: Path, flag: str, mode: str) -> None:
    write_modules(tmp_path, "Transformer", "Pooling", pooling={flag: True, "pooling_mode_lasttoken": False})
    assert read_pooling(tmp_path) == PoolingConfig(mode=mode, normalize=False)


def test_a_decoder_pools_its_last_token_and_an_encoder_does_not() -> None:
    ctx = BuildContext(hardware=ReferenceHardware(), dtype=torch.float32)
    with pytest.raises(UnsupportedError, match=r"pooling mode mean of a decoder is not supported; choices: lasttoken$"):
        LastTokenPooling(ctx=replace(ctx, pooling=PoolingConfig(mode="mean", normalize=True)))
    with pytest.raises(UnsupportedError, match=r"mode lasttoken of an encoder is not supported; choices: cls, mean$"):
        SequencePooling(ctx=replace(ctx, pooling=PoolingConfig(normalize=True)))


def test_sequences_pool_their_own_rows_only() -> None:
    hidden = torch.arange(12.0).view(6, 2)
    positions = torch.tensor([0, 1, 2, 0, 0, 1], dtype=torch.int32)
    lasts = [2, 3, 5]
    assert rows_of_first_tokens(hidden, positions)[lasts].equal(hidden[[0, 3, 4]])
    expected = torch.stack([hidden[:3].mean(0), hidden[3], hidden[4:].mean(0)])
    assert torch.allclose(mean_so_far(hidden, positions)[lasts], expected)
    # A neighbour that is not finite stays where it is.
    hidden[3] = torch.nan
    assert torch.allclose(mean_so_far(hidden, positions)[[2, 5]], expected[[0, 2]])


@pytest.mark.parametrize("names", [("Transformer",), ("Transformer", "Pooling", "Dense"), ("Pooling", "Transformer")])
def test_other_modules_are_refused_by_name(tmp_path: Path, names: tuple[str, ...]) -> None:
    write_modules(tmp_path, *names)
    with pytest.raises(UnsupportedError, match=f"modules {', '.join(names)} are not supported"):
        read_pooling(tmp_path)


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '[{"type": "Transformer"}]'])
def test_broken_modules_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises((ConfigError, UnsupportedError), match=r"modules\.json"):
        read_pooling(tmp_path)


def test_a_pooling_module_without_configuration_is_named(tmp_path: Path) -> None:
    write_modules(tmp_path, "Transformer", "Pooling")
    (tmp_path / "1_Pooling" / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"1_Pooling/config\.json: the pooling module has no config\.json"):
        read_pooling(tmp_path)


def test_files_decide_which_class_runs_an_architecture() -> None:
    assert registry.model_class(CONFIG) is Qwen3ForCausalLM
    assert registry.model_class(CONFIG, pooling=True) is Qwen3Embedding
    headless = CONFIG | {"architectures": ["Qwen3Model"]}
    assert registry.model_class(headless, pooling=True) is Qwen3Embedding
    with pytest.raises(
        UnsupportedError, match=r"'Qwen3Model' has no language-model head, and there is no modules\.json"
    ):
        registry.model_class(headless)
    with pytest.raises(UnsupportedError, match=r"of a pooling model \(modules\.json\).*supported: .*Qwen3Model"):
        registry.model_class({"architectures": ["LlamaForCausalLM"]}, pooling=True)


def build(model: type[torch.nn.Module], pooling: PoolingConfig | None) -> torch.nn.Module:
    ctx = BuildContext(hardware=ToyHardware(), dtype=torch.float32, pooling=pooling)
    with torch.device("meta"):
        return model(Qwen3Config.from_hf(CONFIG), ctx)


def test_a_model_follows_one_protocol() -> None:
    pools, speaks = build(Qwen3Embedding, PoolingConfig(normalize=True)), build(Qwen3ForCausalLM, None)
    assert isinstance(pools, PoolingModel) and not isinstance(pools, CausalLM)
    assert isinstance(speaks, CausalLM) and not isinstance(speaks, PoolingModel)
    assert (output_kind(pools), output_kind(speaks)) == (OutputKind.POOLED, OutputKind.LOGITS)
    assert output_head(pools) == pools.pool and output_head(speaks) == speaks.compute_logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pooled_rows_have_length_one_if_asked(dtype: torch.dtype) -> None:
    hidden = torch.randn(7, 33, generator=torch.Generator().manual_seed(0)).mul(50).to(dtype)
    hidden[3] = 0
    ctx = BuildContext(hardware=ToyHardware(), dtype=dtype, pooling=PoolingConfig(normalize=True))
    rows = LastTokenPooling(ctx=ctx)(hidden)
    assert rows.dtype == torch.float32
    lengths = torch.linalg.vector_norm(rows, dim=-1)
    torch.testing.assert_close(lengths, torch.ones(7).index_fill(0, torch.tensor([3]), 0))
    raw = BuildContext(hardware=ToyHardware(), dtype=dtype, pooling=PoolingConfig(normalize=False))
    assert torch.equal(LastTokenPooling(ctx=raw)(hidden), hidden.float())


def save_checkpoint(folder: Path, *, prefix: str, head: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    shapes = {
        "embed_tokens.weight": (31, 16),
        "layers.0.self_attn.q_proj.weight": (16, 16),
        "layers.0.self_attn.k_proj.weight": (8, 16),
        "layers.0.self_attn.v_proj.weight": (8, 16),
        "layers.0.self_attn.o_proj.weight": (16, 16),
        "layers.0.self_attn.q_norm.weight": (8,),
        "layers.0.self_attn.k_norm.weight": (8,),
        "layers.0.mlp.gate_proj.weight": (24, 16),
        "layers.0.mlp.up_proj.weight": (24, 16),
        "layers.0.mlp.down_proj.weight": (16, 24),
        "layers.0.input_layernorm.weight": (16,),
        "layers.0.post_attention_layernorm.weight": (16,),
        "norm.weight": (16,),
    }
    tensors = {prefix + name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    if head:
        tensors["lm_head.weight"] = torch.randn(31, 16, generator=generator)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    write_modules(folder, "Transformer", "Pooling", "Normalize")


def test_checkpoints_with_and_without_prefix_and_head_are_the_same_model(tmp_path: Path) -> None:
    states = []
    for prefix, head in (("", False), ("model.", False), ("model.", True)):
        folder = tmp_path / f"{prefix}{head}"
        save_checkpoint(folder, prefix=prefix, head=head)
        executor = ModelExecutor.create(ExecutorConfig(model=folder, hardware="cpu", limits=LIMITS))
        assert (executor.output_kind, executor.output_width, executor.vocab_size) == (OutputKind.POOLED, 16, 31)
        assert executor.weight_report.ignored == (
            {"a pooling model makes no logits": ("lm_head.weight",)} if head else {}
        )
        assert executor.input_buffers()[1].output_rows.shape == (2, 16)
        states.append(executor.model.state_dict())
    for state in states[1:]:
        assert all(torch.equal(state[name], tensor) for name, tensor in states[0].items())
