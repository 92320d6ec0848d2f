"""Layers of this repository stand where they are shown to compute what transformers' modules do, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from trunnion.adapter.swaps import GatedMLP, Swaps
from trunnion.config import BuildContext
from trunnion.layers.linear import ReplicatedLinear
from trunnion.layers.norm import RMSNorm
from trunnion.reference import ReferenceHardware

from .test_adapter import load, save
from .tiny_configs import tiny_config


def random_model(model_type: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(4)
    module = AutoModelForCausalLM.from_config(tiny_config(model_type), attn_implementation="eager").to(dtype).eval()
    for parameter in module.parameters():
        parameter.requires_grad_(False).normal_(0.0, 0.2)
    return module


def swapped(model: nn.Module, dtype: torch.dtype = torch.float32) -> Swaps:
    swaps = Swaps(model, BuildContext(hardware=ReferenceHardware(), dtype=dtype))
    swaps.install()
    return swaps


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("model_type", "unit_offset"), [("llama", False), ("gemma", True)])
def test_a_model_computes_the_same_on_our_layers(model_type: str, unit_offset: bool, dtype: torch.dtype) -> None:
    model = random_model(model_type, dtype)
    ids = torch.arange(3, 12)[None]
    before = model(input_ids=ids, use_cache=False).logits
    types = [type(each) for each in model.modules()]
    swaps = swapped(model.get_decoder(), dtype)
    norms = [each for each in model.modules() if isinstance(each, RMSNorm)]
    assert len(norms) == 9 and {norm.unit_offset for norm in norms} == {unit_offset}
    assert sum(isinstance(each, ReplicatedLinear) for each in model.modules()) > 16
    after = model(input_ids=ids, use_cache=False).logits
    # A product of gate and up together may be summed in another order.
    assert (after - before).abs().max() <= (1e-6 if dtype == torch.float32 else 0.03) * before.abs().max()
    swaps.remove()
    assert [type(each) for each in model.modules()] == types
    assert torch.equal(model(input_ids=ids, use_cache=False).logits, before)


def test_theirs_and_ours_share_their_weights() -> None:
    model = random_model("helium")
    names = ("model.layers.0.input_layernorm", "model.layers.0.self_attn.q_proj", "model.layers.0.mlp")
    norm, linear, mlp = (model.get_submodule(name) for name in names)
    swapped(model.get_decoder())
    ours = [model.get_submodule(name) for name in names]
    assert [type(each) for each in ours] == [RMSNorm, ReplicatedLinear, GatedMLP]
    assert ours[0].weight is norm.weight and ours[1].weight is linear.weight
    fused = ours[2].gate_up_proj.weight
    gate, up = fused.split(fused.shape[0] // 2)
    assert gate.data_ptr() == mlp.gate_proj.weight.data_ptr() and up.data_ptr() == mlp.up_proj.weight.data_ptr()


class Norm(nn.Module):
    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(16) + 0.5)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, (16,), self.weight, self.eps)


class NormOfAnotherEpsilon(Norm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, (16,), self.weight, 10 * self.eps)


class NormOfAMean(Norm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x - x.mean(-1, keepdim=True))


class NormOfASum(Norm):
    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x)


class MLP(nn.Module):
    scale = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(16, 24, bias=False), nn.Linear(16, 24, bias=False)
        self.down_proj = nn.Linear(24, 16, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x)) * self.scale


class ScaledMLP(MLP):
    scale = 1.01


class MLPOfTheOtherGate(MLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.up_proj(x)) * self.gate_proj(x))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (Norm(), RMSNorm),
        (NormOfAnotherEpsilon(), None),
        (NormOfAMean(), None),
        (NormOfASum(), None),
        (nn.LayerNorm(16, bias=False), None),
        (MLP(), GatedMLP),
        (ScaledMLP(), None),
        (MLPOfTheOtherGate(), None),
        (nn.Linear(16, 8), ReplicatedLinear),
        (nn.Embedding(16, 8), None),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, nn.Module) else "",
)
def test_what_only_looks_alike_stays(theirs: nn.Module, ours: type[nn.Module] | None) -> None:
    model = nn.Sequential(theirs)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    swapped(model)
    assert type(model[0]) is (type(theirs) if ours is None else ours)


def test_the_load_says_what_was_swapped(tmp_path: Path) -> None:
    executor = load(save("helium", tmp_path))
    line = "adapter: this repository's layers in the place of transformers': 4 GatedMLP, 9 RMSNorm, 16 ReplicatedLinear"
    assert line in executor.weight_report.notes
    assert any(isinstance(each, GatedMLP) for each in executor.model.modules())
    executor.close()
