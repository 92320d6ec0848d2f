"""Experts in every layout that published checkpoints have, each loaded by the families that use it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from trunnion.config import BuildContext
from trunnion.errors import WeightsError
from trunnion.interfaces.collectives import ParallelGroup
from trunnion.layers.fused_moe import FusedMoE, Router
from trunnion.reference import ReferenceHardware
from trunnion.weights.loader import load_weights
from trunnion.weights.name_map import WeightMap
from trunnion.weights.safetensors_source import SafetensorsSource
from trunnion_models.gpt_oss.weights import WEIGHT_MAP as GPT_OSS
from trunnion_models.granitemoe.weights import WEIGHT_MAP as GRANITEMOE
from trunnion_models.mixtral.weights import WEIGHT_MAP as MIXTRAL
from trunnion_models.qwen2_moe.weights import WEIGHT_MAP as QWEN2_MOE
from trunnion_models.qwen3_5_moe.weights import WEIGHT_MAP as QWEN3_5_MOE
from trunnion_models.qwen3_moe.weights import WEIGHT_MAP as QWEN3_MOE
from trunnion_models.qwen3_next.weights import WEIGHT_MAP as QWEN3_NEXT

EXPERTS = 4


@dataclass(frozen=True)
class Experts:
    """What a layer's router and experts are, whatever their layout: router [E, H], gate and up [E, I, H], down
    [E, H, I]; and their biases, of families that have any: [E], [E, I] and [E, H]."""

    router: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    router_bias: torch.Tensor
    gate_bias: torch.Tensor
    up_bias: torch.Tensor
    down_bias: torch.Tensor


Layout = Callable[[Experts], dict[str, torch.Tensor]]


def random_experts(hidden: int, intermediate: int) -> Experts:
    torch.manual_seed(0)
    rows = (EXPERTS, intermediate, hidden)
    weights = torch.randn(EXPERTS, hidden), torch.randn(rows), torch.randn(rows), torch.randn(rows).mT
    biases = torch.randn(EXPERTS), torch.randn(rows[:2]), torch.randn(rows[:2]), torch.randn(EXPERTS, hidden)
    return Experts(*weights, *biases)


def per_expert(block: str, gate: str, up: str, down: str) -> Layout:
    def store(experts: Experts) -> dict[str, torch.Tensor]:
        parts = {gate: experts.gate, up: experts.up, down: experts.down}
        single = {f"{block}.experts.{e}.{name}.weight": parts[name][e] for e in range(EXPERTS) for name in parts}
        return {f"{block}.gate.weight": experts.router, **single}

    return store


def stacked(experts: Experts) -> dict[str, torch.Tensor]:
    """As transformers 5 names them; `stacked_transposed` as Qwen3-VL-MoE was published."""
    return {
        "mlp.gate.weight": experts.router,
        "mlp.experts.gate_up_proj": torch.cat((experts.gate, experts.up), dim=1),
        "mlp.experts.down_proj": experts.down,
    }


def stacked_transposed(experts: Experts) -> dict[str, torch.Tensor]:
    return {name: tensor.mT if tensor.dim() == 3 else tensor for name, tensor in stacked(experts).items()}


def granite(experts: Experts) -> dict[str, torch.Tensor]:
    return {
        "block_sparse_moe.router.layer.weight": experts.router,
        "block_sparse_moe.input_linear.weight": torch.cat((experts.gate, experts.up), dim=1),
        "block_sparse_moe.output_linear.weight": experts.down,
    }


def gpt_oss(experts: Experts) -> dict[str, torch.Tensor]:
    """As the versions in bfloat16: rows of gate and up take turns, experts lie transposed."""
    return {
        "mlp.router.weight": experts.router,
        "mlp.router.bias": experts.router_bias,
        "mlp.experts.gate_up_proj": in_turns(experts.gate, experts.up).mT,
        "mlp.experts.gate_up_proj_bias": in_turns(experts.gate_bias, experts.up_bias),
        "mlp.experts.down_proj": experts.down.mT,
        "mlp.experts.down_proj_bias": experts.down_bias,
    }


def in_turns(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """[E, I, ...] and [E, I, ...] -> [E, 2 I, ...]."""
    return torch.stack((gate, up), dim=2).flatten(1, 2)


@dataclass(frozen=True)
class Family:
    """Where a family keeps its experts: the block, the router in it, and what its checkpoints call them."""

    weight_map: WeightMap
    block: str = "mlp"
    router: str = "gate"
    bias: bool = False

    def layer(self, hidden: int, intermediate: int, ctx: BuildContext) -> nn.Module:
        block = nn.ModuleDict()
        block[self.router] = Router(hidden, EXPERTS, bias=self.bias, ctx=ctx, prefix=f"{self.block}.{self.router}")
        prefix = f"{self.block}.experts"
        block["experts"] = FusedMoE(
            EXPERTS, 2, hidden, intermediate, renormalize=True, bias=self.bias, ctx=ctx, prefix=prefix
        )
        return nn.ModuleDict({self.block: block})


FAMILIES = {
    "qwen2_moe": Family(QWEN2_MOE),
    "qwen3_moe": Family(QWEN3_MOE),
    "qwen3_next": Family(QWEN3_NEXT),
    "qwen3_5_moe": Family(QWEN3_5_MOE),
    "mixtral": Family(MIXTRAL, "block_sparse_moe"),
    "granitemoe": Family(GRANITEMOE, "block_sparse_moe", "router"),
    "gpt_oss": Family(GPT_OSS, router="router", bias=True),
}


def save(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """In two files and as layer 0, so that one layer's experts lie in both."""
    names = {name: f"model.layers.0.{name}" for name in tensors}
    weight_map = {}
    for number, half in enumerate((list(names)[::2], list(names)[1::2])):
        file = f"model-{number + 1:05}-of-00002.safetensors"
        save_file({names[name]: tensors[name].contiguous() for name in half}, folder / file)
        weight_map |= {names[name]: file for name in half}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def load(folder: Path, family: Family, hidden: int, intermediate: int, rank: int = 0, size: int = 1) -> nn.Module:
    """The loaded block of layer 0, of one rank of several."""
    parallel = ParallelGroup(rank=rank, size=size)
    ctx = BuildContext(hardware=ReferenceHardware(), dtype=torch.float32, parallel=parallel)
    with torch.device("meta"):
        layer = family.layer(hidden, intermediate, ctx)
        model = nn.ModuleDict({"model": nn.ModuleDict({"layers": nn.ModuleList([layer])})})
    load_weights(model, SafetensorsSource(folder), family.weight_map, dtype=torch.float32, device=torch.device("cpu"))
    return layer[family.block]


QWEN = per_expert("mlp", "gate_proj", "up_proj", "down_proj")
LAYOUTS: dict[str, tuple[str, Layout]] = {
    "qwen3_moe-per-expert": ("qwen3_moe", QWEN),
    "qwen3_moe-stacked": ("qwen3_moe", stacked),
    "qwen3_moe-transposed": ("qwen3_moe", stacked_transposed),
    "qwen2_moe-per-expert": ("qwen2_moe", QWEN),
    "qwen2_moe-stacked": ("qwen2_moe", stacked),
    "qwen3_next-per-expert": ("qwen3_next", QWEN),
    "qwen3_next-stacked": ("qwen3_next", stacked),
    "qwen3_5_moe-per-expert": ("qwen3_5_moe", QWEN),
    "qwen3_5_moe-stacked": ("qwen3_5_moe", stacked),
    "mixtral-per-expert": ("mixtral", per_expert("block_sparse_moe", "w1", "w3", "w2")),
    "mixtral-as-transformers-5-names-it": ("mixtral", stacked),
    "granitemoe-stacked": ("granitemoe", granite),
    "gpt_oss-stacked": ("gpt_oss", gpt_oss),
}
NAMED = {
    name: LAYOUTS[name]
    for name in (
        "qwen3_moe-per-expert",
        "qwen3_5_moe-stacked",
        "mixtral-per-expert",
        "granitemoe-stacked",
        "gpt_oss-stacked",
    )
}
"""Layouts whose names say which way an expert lies."""


def check(loaded: nn.Module, router: str, experts: Experts, own: slice) -> None:
    """`own` are the features of an expert that lie on the rank."""
    assert torch.equal(loaded[router].weight, experts.router)
    if loaded[router].bias is not None:
        assert torch.equal(loaded[router].bias, experts.router_bias)
        both = torch.cat((experts.gate_bias[:, own], experts.up_bias[:, own]), dim=1)
        assert torch.equal(loaded["experts"].w13_bias, both)
        assert torch.equal(loaded["experts"].w2_bias, experts.down_bias)
    assert torch.equal(loaded["experts"].w13, torch.cat((experts.gate[:, own], experts.up[:, own]), dim=1))
    assert torch.equal(loaded["experts"].w2, experts.down[:, :, own])


@pytest.mark.parametrize(("rank", "size"), [(0, 1), (1, 2)], ids=["whole", "second-of-two"])
@pytest.mark.parametrize(("name", "layout"), LAYOUTS.values(), ids=LAYOUTS)
def test_a_layout_fills_each_expert_with_its_own(
    name: str, layout: Layout, rank: int, size: int, tmp_path: Path
) -> None:
    hidden, intermediate = 64, 128
    experts = random_experts(hidden, intermediate)
    save(tmp_path, layout(experts))
    loaded = load(tmp_path, FAMILIES[name], hidden, intermediate, rank, size)
    own = slice(rank * intermediate // size, (rank + 1) * intermediate // size)
    check(loaded, FAMILIES[name].router, experts, own)


@pytest.mark.parametrize(("name", "layout"), NAMED.values(), ids=NAMED)
@pytest.mark.parametrize(("hidden", "intermediate"), [(64, 32), (64, 64)], ids=["H-is-2I", "H-is-I"])
def test_names_say_which_way_a_square_lies(
    name: str, layout: Layout, hidden: int, intermediate: int, tmp_path: Path
) -> None:
    experts = random_experts(hidden, intermediate)
    save(tmp_path, layout(experts))
    loaded = load(tmp_path, FAMILIES[name], hidden, intermediate)
    check(loaded, FAMILIES[name].router, experts, slice(None))


def test_a_stack_that_lies_the_other_way_than_its_name_says_is_refused(tmp_path: Path) -> None:
    tensors = granite(random_experts(64, 128))
    tensors["block_sparse_moe.input_linear.weight"] = tensors["block_sparse_moe.input_linear.weight"].mT
    save(tmp_path, tensors)
    with pytest.raises(WeightsError, match=r"\[4, 64, 256\] \(the model wants \[4, 256, 64\]\)"):
        load(tmp_path, FAMILIES["granitemoe"], 64, 128)


@pytest.mark.parametrize(
    ("hidden", "intermediate", "name"), [(64, 32, "gate_up_proj"), (64, 64, "down_proj")], ids=["H-is-2I", "H-is-I"]
)
@pytest.mark.parametrize("layout", [stacked, stacked_transposed])
def test_a_square_that_names_leave_open_is_refused(
    layout: Layout, hidden: int, intermediate: int, name: str, tmp_path: Path
) -> None:
    save(tmp_path, layout(random_experts(hidden, intermediate)))
    with pytest.raises(WeightsError, match=rf"ambiguous layout: model\.layers\.0\.mlp\.experts\.{name}"):
        load(tmp_path, FAMILIES["qwen3_moe"], hidden, intermediate)


def test_a_stack_that_is_not_there_is_named(tmp_path: Path) -> None:
    tensors = gpt_oss(random_experts(64, 128))
    del tensors["mlp.experts.gate_up_proj"], tensors["mlp.experts.down_proj_bias"]
    save(tmp_path, tensors)
    block = r"model\.layers\.0\.mlp\.experts"
    with pytest.raises(WeightsError, match=rf"2 missing: {block}\.down_proj_bias, {block}\.gate_up_proj$"):
        load(tmp_path, FAMILIES["gpt_oss"], 64, 128)


def test_an_expert_that_is_not_there_is_named(tmp_path: Path) -> None:
    tensors = QWEN(random_experts(64, 128))
    del tensors["mlp.experts.2.up_proj.weight"]
    save(tmp_path, tensors)
    with pytest.raises(WeightsError, match=r"1 missing: model\.layers\.0\.mlp\.experts\.2\.up_proj\.weight"):
        load(tmp_path, FAMILIES["qwen3_moe"], 64, 128)
