"""gpt-oss checkpoints as they are around: experts in MXFP4, as published, or in bfloat16, transposed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from trunnion.checkup.checkup import CheckOptions, check_checkpoint
from trunnion.config import BuildContext
from trunnion.errors import UnsupportedError, WeightsError
from trunnion.interfaces.collectives import ParallelGroup
from trunnion.reference import ReferenceHardware
from trunnion.weights.checkpoint import open_checkpoint
from trunnion.weights.loader import load_weights
from trunnion.weights.quantization_config import read_quantization
from trunnion.weights.quantization_of_layers import QuantizedLayers
from trunnion.weights.report import WeightReport
from trunnion_models.gpt_oss.card import CARDS
from trunnion_models.gpt_oss.model import GptOssForCausalLM

EXPERTS, LAYERS, HIDDEN = 4, 2, 64
SIZES = {"H-is-not-I": 96, "H-is-I": HIDDEN, "H-is-2I": 32}
"""Intermediate sizes."""
MXFP4 = next(dict(card.quantization) for card in CARDS if card.quantization)
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Stored:
    """A checkpoint's configuration and tensors, and its experts in bfloat16, transposed: stacks by name."""

    config: dict[str, Any]
    tensors: Tensors
    stacks: Tensors


def in_bfloat16(intermediate: int) -> Stored:
    """Layout of the versions in bfloat16, which is that of transformers."""
    card = dict(next(card.config for card in CARDS if card.quick))
    config = card | {"intermediate_size": intermediate, "num_local_experts": EXPERTS, "hidden_size": HIDDEN}
    settings = {key: value for key, value in config.items() if key != "model_type"}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt_oss", **settings))
    tensors = {name: torch.randn_like(tensor).bfloat16() for name, tensor in model.state_dict().items()}
    stacks = {name: tensor for name, tensor in tensors.items() if name.endswith(("gate_up_proj", "down_proj"))}
    return Stored(config, tensors, stacks)


def in_mxfp4(intermediate: int) -> Stored:
    """Layout as published: bytes and scales are random, and what they mean is what transformers makes of them."""
    plain = in_bfloat16(intermediate)
    tensors, stacks = {name: plain.tensors[name] for name in plain.tensors.keys() - plain.stacks.keys()}, {}
    for name, stack in plain.stacks.items():
        blocks = torch.randint(0, 256, (EXPERTS, stack.shape[2], stack.shape[1] // 32, 16), dtype=torch.uint8)
        scales = torch.randint(110, 130, blocks.shape[:-1], dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        stacks[name] = convert_moe_packed_tensors(blocks, scales)
    return Stored(plain.config | {"quantization_config": MXFP4}, tensors, stacks)


LAYOUTS: dict[str, Callable[[int], Stored]] = {"bfloat16": in_bfloat16, "mxfp4": in_mxfp4}


def save(folder: Path, stored: Stored) -> None:
    """In three files that are counted from 0 to 2, blocks and scales apart, beside a folder of other names."""
    (folder / "config.json").write_text(json.dumps({"architectures": ["GptOssForCausalLM"], **stored.config}))
    places = {name: 2 if name.endswith("_scales") else number % 2 for number, name in enumerate(sorted(stored.tensors))}
    weight_map = {name: f"model-{place:05}-of-00002.safetensors" for name, place in places.items()}
    for file in set(weight_map.values()):
        own = {name: tensor.contiguous() for name, tensor in stored.tensors.items() if weight_map[name] == file}
        save_file(own, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "original").mkdir()
    save_file({"block.0.mlp.mlp1_weight.blocks": torch.zeros(1)}, folder / "original" / "model.safetensors")


def load(
    folder: Path, rank: int = 0, size: int = 1, dtype: torch.dtype = torch.bfloat16
) -> tuple[GptOssForCausalLM, WeightReport]:
    checkpoint = open_checkpoint(folder)
    config, weight_map = GptOssForCausalLM.config_class.from_hf(checkpoint.config), GptOssForCausalLM.weight_map
    found = read_quantization(checkpoint.config)
    ctx = BuildContext(
        hardware=ReferenceHardware(),
        dtype=dtype,
        parallel=ParallelGroup(rank=rank, size=size),
        quantization=None if found is None else QuantizedLayers(found, weight_map, checkpoint.source.infos),
        max_model_len=16,
    )
    with torch.device("meta"):
        model = GptOssForCausalLM(config, ctx)
    report = load_weights(model, checkpoint.source, weight_map, dtype=dtype, device=torch.device("cpu"))
    return model, report


@pytest.mark.parametrize(("rank", "size"), [(0, 1), (0, 2), (1, 2)], ids=["whole", "first-of-two", "second-of-two"])
@pytest.mark.parametrize("intermediate", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_expert_has_its_own_rows(layout: str, intermediate: int, rank: int, size: int, tmp_path: Path) -> None:
    """Those of gate and up, which take turns, and of a rank its share, which may lie within a block."""
    stored = LAYOUTS[layout](intermediate)
    save(tmp_path, stored)
    model, _ = load(tmp_path, rank, size)
    own = slice(rank * intermediate // size, (rank + 1) * intermediate // size)
    for index in range(LAYERS):
        block, experts = f"model.layers.{index}.mlp.experts", model.model.layers[index].mlp.experts
        gate_up, down = stored.stacks[f"{block}.gate_up_proj"].mT, stored.stacks[f"{block}.down_proj"].mT
        assert torch.equal(experts.w13, torch.cat((gate_up[:, 0::2][:, own], gate_up[:, 1::2][:, own]), dim=1))
        assert torch.equal(experts.w2, down[:, :, own])
        bias = stored.tensors[f"{block}.gate_up_proj_bias"]
        assert torch.equal(experts.w13_bias, torch.cat((bias[:, 0::2][:, own], bias[:, 1::2][:, own]), dim=1))
        assert torch.equal(experts.w2_bias, stored.tensors[f"{block}.down_proj_bias"])
        sinks = stored.tensors[f"model.layers.{index}.self_attn.sinks"].float()
        assert torch.equal(model.model.layers[index].self_attn.attn.sinks, sinks.chunk(size)[rank])


def test_the_report_says_what_is_held_of_four_bits(tmp_path: Path) -> None:
    save(tmp_path, in_mxfp4(96))
    _, report = load(tmp_path)
    assert f"weights: {2 * LAYERS} tensors stored as MXFP4, loaded as bfloat16" in report.lines()
    stored = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert 0.9 * stored < report.bytes_read < stored < report.bytes_loaded


def test_a_check_of_the_folder_says_so_before(tmp_path: Path) -> None:
    save(tmp_path, in_mxfp4(96))
    report = check_checkpoint(tmp_path, CheckOptions(hardware=ReferenceHardware()))
    assert report.refusals == []
    (row,) = (row for row in report.quantization if row.scheme != "unquantised")
    assert (row.layers, row.count) == ("model.layers.*.mlp.experts", LAYERS)
    assert "MXFP4" in row.scheme and "held in the model's dtype" in row.scheme


def test_a_model_in_float32_holds_the_same_values(tmp_path: Path) -> None:
    stored = in_mxfp4(96)
    save(tmp_path, stored)
    model, _ = load(tmp_path, dtype=torch.float32)
    name = "model.layers.1.mlp.experts.down_proj"
    assert torch.equal(model.model.layers[1].mlp.experts.w2, stored.stacks[name].mT.float())


def test_stacks_in_bfloat16_are_read_whatever_the_config_says(tmp_path: Path) -> None:
    """A conversion that left the settings in place: names tell."""
    stored = in_bfloat16(96)
    save(tmp_path, Stored(stored.config | {"quantization_config": MXFP4}, stored.tensors, stored.stacks))
    model, report = load(tmp_path)
    assert torch.equal(model.model.layers[0].mlp.experts.w2, stored.stacks["model.layers.0.mlp.experts.down_proj"].mT)
    assert not any("MXFP4" in line for line in report.lines())


EXPERTS_0 = "model.layers.0.mlp.experts"
BROKEN: dict[str, tuple[Callable[[Tensors], Tensors], type[Exception], str]] = {
    "no-scales": (
        lambda tensors: {name: tensor for name, tensor in tensors.items() if name != f"{EXPERTS_0}.down_proj_scales"},
        WeightsError,
        rf"{EXPERTS_0}\.down_proj_blocks has no scales: {EXPERTS_0}\.down_proj_scales is missing",
    ),
    "no-blocks": (
        lambda tensors: {name: tensor for name, tensor in tensors.items() if name != f"{EXPERTS_0}.down_proj_blocks"},
        WeightsError,
        rf"{EXPERTS_0}\.down_proj_scales has no blocks: {EXPERTS_0}\.down_proj_blocks is missing",
    ),
    "scales-of-another-shape": (
        lambda tensors: tensors | {f"{EXPERTS_0}.down_proj_scales": torch.zeros(EXPERTS, 2, dtype=torch.uint8)},
        WeightsError,
        r"U8 \[4, 64, 3, 16\] and .*_scales U8 \[4, 2\] are not 16 bytes of U8 for each scale",
    ),
    "a-scale-that-is-not-finite": (
        lambda tensors: (
            tensors | {f"{EXPERTS_0}.down_proj_scales": torch.full((EXPERTS, 64, 3), 255, dtype=torch.uint8)}
        ),
        WeightsError,
        rf"{EXPERTS_0}\.down_proj_blocks: a scale of MXFP4 is stored as 255; choices: 0 \.\.\. 252",
    ),
    "one-of-two-in-blocks": (
        lambda tensors: {
            **{name: tensor for name, tensor in tensors.items() if not name.startswith(f"{EXPERTS_0}.down_proj_")},
            f"{EXPERTS_0}.down_proj": torch.zeros(EXPERTS, 96, 64),
            f"{EXPERTS_0}.down_proj_bias": torch.zeros(EXPERTS, 64),
        },
        WeightsError,
        rf"{EXPERTS_0}\.down_proj \(F32 for uint8: unquantised\?\)",
    ),
    "blocks-of-another-size": (
        lambda tensors: (
            tensors
            | {
                f"{EXPERTS_0}.down_proj_blocks": torch.zeros(EXPERTS, 64, 2, 16, dtype=torch.uint8),
                f"{EXPERTS_0}.down_proj_scales": torch.zeros(EXPERTS, 64, 2, dtype=torch.uint8),
            }
        ),
        WeightsError,
        r"down_proj_blocks \[4, 64, 2, 17\] \(the model wants \[4, 64, 3, 17\]\)",
    ),
}


@pytest.mark.parametrize(("change", "error", "text"), BROKEN.values(), ids=BROKEN)
def test_a_broken_checkpoint_is_named(
    change: Callable[[Tensors], Tensors], error: type[Exception], text: str, tmp_path: Path
) -> None:
    stored = in_mxfp4(96)
    save(tmp_path, Stored(stored.config, change(stored.tensors), {}))
    with pytest.raises(error, match=text):
        load(tmp_path)


def test_features_that_fill_no_blocks_are_named(tmp_path: Path) -> None:
    stored = in_mxfp4(96)
    save(tmp_path, Stored(stored.config | {"intermediate_size": 40}, stored.tensors, {}))
    with pytest.raises(UnsupportedError, match=r"experts\.w2\[0\.down\]: in_features 40 do not fill blocks of MXFP4"):
        load(tmp_path)


def test_blocks_that_the_config_leaves_out_are_named(tmp_path: Path) -> None:
    stored = in_mxfp4(96)
    settings = MXFP4 | {"modules_to_not_convert": ["model.layers.*.mlp"]}
    save(tmp_path, Stored(stored.config | {"quantization_config": settings}, stored.tensors, {}))
    with pytest.raises(WeightsError, match=r"gate_up_proj_blocks \(MXFP4 for bfloat16: quantised\?\)"):
        load(tmp_path)
