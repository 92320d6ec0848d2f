"""Qwen3.5-MoE checkpoints in the layouts that are around: each gives the weights of the plain one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from trunnion.config import BuildContext
from trunnion.errors import WeightsError
from trunnion.reference import ReferenceHardware
from trunnion.weights.loader import load_weights
from trunnion.weights.report import WeightReport
from trunnion.weights.safetensors_source import SafetensorsSource
from trunnion_models.qwen3_5_moe.card import CARDS
from trunnion_models.qwen3_5_moe.model import Qwen3_5MoeForCausalLM

TEXT = dict(next(card.config for card in CARDS if card.quick))
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def stacked() -> Tensors:
    """As transformers 5 holds them: experts stacked, the text alone."""
    settings = {key: value for key, value in TEXT.items() if key != "model_type"}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(TEXT["model_type"], **settings))
    return {name: torch.randn_like(tensor) for name, tensor in model.state_dict().items()}


def one_by_one(tensors: Tensors) -> Tensors:
    """One tensor per expert, as the release in bfloat16 has them."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        block = name.rpartition(".")[0]
        if name.endswith("experts.gate_up_proj"):
            for expert, (gate, up) in enumerate(pair.chunk(2) for pair in tensor):
                found |= {f"{block}.{expert}.gate_proj.weight": gate, f"{block}.{expert}.up_proj.weight": up}
        elif name.endswith("experts.down_proj"):
            found |= {f"{block}.{expert}.down_proj.weight": down for expert, down in enumerate(tensor)}
        else:
            found[name] = tensor
    return found


def beside_a_tower(tensors: Tensors) -> Tensors:
    """Names of transformers 5: the text inside the model, the head at the top; with a tower and a head that drafts."""
    found = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    found["model.visual.blocks.0.attn.qkv.weight"] = torch.zeros(4, 4)
    found["mtp.fc.weight"] = torch.zeros(64, 128)
    return found


def language_model_first(tensors: Tensors) -> Tensors:
    return {f"language_model.{name}": tensor for name, tensor in tensors.items()}


LAYOUTS: dict[str, Callable[[Tensors], Tensors]] = {
    "one-by-one": one_by_one,
    "beside-a-tower": beside_a_tower,
    "beside-a-tower-one-by-one": lambda tensors: one_by_one(beside_a_tower(tensors)),
    "language-model-first": language_model_first,
}


def load(folder: Path, tensors: Tensors) -> tuple[Qwen3_5MoeForCausalLM, WeightReport]:
    """With the configuration of the text alone, whatever the names in the checkpoint are."""
    folder.mkdir(exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    ctx = BuildContext(hardware=ReferenceHardware(), dtype=torch.float32, max_model_len=16)
    with torch.device("meta"):
        model = Qwen3_5MoeForCausalLM(Qwen3_5MoeForCausalLM.config_class.from_hf(TEXT), ctx)
    source = SafetensorsSource(folder)
    report = load_weights(model, source, model.weight_map, dtype=torch.float32, device=torch.device("cpu"))
    return model, report


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_gives_the_same_weights(layout: str, stacked: Tensors, tmp_path: Path) -> None:
    plain, _ = load(tmp_path / "plain", stacked)
    model, report = load(tmp_path / "other", LAYOUTS[layout](stacked))
    expected = dict(plain.named_parameters())
    found = dict(model.named_parameters())
    assert found.keys() == expected.keys()
    assert [name for name, parameter in found.items() if not torch.equal(parameter, expected[name])] == []
    left_out = sorted(name for names in report.ignored.values() for name in names)
    wanted = ["model.visual.blocks.0.attn.qkv.weight", "mtp.fc.weight"] if "tower" in layout else []
    assert left_out == wanted


def test_projections_are_those_of_the_checkpoint(stacked: Tensors, tmp_path: Path) -> None:
    model, _ = load(tmp_path, stacked)
    net, name = model.model.layers[0].linear_attn, "model.layers.0.linear_attn.in_proj"
    assert torch.equal(net.in_proj_qkvz.weight, torch.cat([stacked[f"{name}_{part}.weight"] for part in ("qkv", "z")]))
    assert torch.equal(net.in_proj_ba.weight, torch.cat([stacked[f"{name}_{part}.weight"] for part in "ba"]))


def test_what_is_missing_is_named_as_the_checkpoint_would(stacked: Tensors, tmp_path: Path) -> None:
    name = "model.layers.0.linear_attn.in_proj_qkv.weight"
    with pytest.raises(WeightsError, match=rf"1 missing: {name}"):
        load(tmp_path, {key: tensor for key, tensor in stacked.items() if key != name})


def test_a_stack_that_lies_the_other_way_is_refused(stacked: Tensors, tmp_path: Path) -> None:
    name = "model.layers.0.mlp.experts.gate_up_proj"
    with pytest.raises(WeightsError, match=r"\[6, 64, 48\] \(the model wants \[6, 48, 64\]\)"):
        load(tmp_path, stacked | {name: stacked[name].mT})
