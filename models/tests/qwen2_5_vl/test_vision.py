"""The vision tower against transformers: order of windows, ropes and rows, for odd grids and several frames."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from transformers import AutoConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel
from transformers.vision_utils import get_vision_window_index

from trunnion.config import BuildContext
from trunnion.interfaces.collectives import ParallelGroup
from trunnion.interfaces.model import MultiModal
from trunnion.layers.encoder_attention import EncoderAttention
from trunnion.reference import ReferenceHardware
from trunnion_models.qwen2_5_vl.card import CARDS
from trunnion_models.qwen2_5_vl.config import Qwen2_5_VLConfig
from trunnion_models.qwen2_5_vl.model import Qwen2_5_VLForConditionalGeneration
from trunnion_models.qwen2_5_vl.vision import Grid, Qwen2_5_VLVisionTower, window_order

CARD = next(card for card in CARDS if card.quick)
CONFIG = Qwen2_5_VLConfig.from_hf(CARD.config)
GRIDS: list[Grid] = [(1, 2, 2), (1, 4, 4), (1, 2, 14), (1, 10, 6), (1, 26, 2), (3, 6, 10)]


@pytest.mark.parametrize("window_size", [8, 16, 24, 112])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_windows_are_those_of_transformers(grid: Grid, window_size: int) -> None:
    config = dataclasses.replace(CONFIG.vision, window_size=window_size)
    index, bounds = get_vision_window_index(torch.tensor([grid]), 2, window_size, config.patch_size)
    order, lengths = window_order(config, grid)
    assert torch.equal(order, index) and list(lengths) == bounds.diff().tolist()


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_rows_equal_transformers(grid: Grid) -> None:
    settings = dict(CARD.config)
    reference_config = AutoConfig.for_model(settings.pop("model_type"), **settings).vision_config
    torch.manual_seed(3)
    reference = Qwen2_5_VisionTransformerPretrainedModel._from_config(reference_config).eval()
    tower = Qwen2_5_VLVisionTower(CONFIG.vision, context(), "visual")
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.3 if parameter.dim() == 1 else 0.2))
            copy_weight(tower, name, parameter)
    pixels = torch.randn(grid[0] * grid[1] * grid[2], 96)
    with torch.inference_mode():
        expected = reference(pixels, torch.tensor([grid])).pooler_output
        got = tower(pixels, grid)
    assert got.shape == (grid[0] * grid[1] * grid[2] // 4, CONFIG.hidden_size)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def copy_weight(tower: Qwen2_5_VLVisionTower, name: str, parameter: torch.Tensor) -> None:
    """Gate and up projections are one parameter here, gate first."""
    for part, rows in (("gate_proj", slice(0, len(parameter))), ("up_proj", slice(len(parameter), None))):
        if f".{part}." in name:
            tower.get_parameter(name.replace(part, "gate_up_proj"))[rows].copy_(parameter)
            return
    tower.get_parameter(name).copy_(parameter)


def context(size: int = 1) -> BuildContext:
    return BuildContext(hardware=ReferenceHardware(), dtype=torch.float32, parallel=ParallelGroup(size=size))


def test_every_rank_holds_the_whole_tower() -> None:
    """Heads and widths of the published towers do not divide over eight ranks, let alone the ranks of this test."""
    with torch.device("meta"):
        one, five = (Qwen2_5_VLVisionTower(CONFIG.vision, context(size), "visual") for size in (1, 5))
    assert {name: p.shape for name, p in one.named_parameters()} == {n: p.shape for n, p in five.named_parameters()}


def test_the_model_is_multimodal() -> None:
    with torch.device("meta"):
        model = Qwen2_5_VLForConditionalGeneration(CONFIG, context())
    assert isinstance(model, MultiModal)
    assert (model.encoder_patch_dim, model.patches_per_row, model.num_position_axes) == (96, 4, 3)
    assert [model.num_encoder_rows(grid) for grid in GRIDS] == [1, 4, 7, 15, 13, 45]
    for grid in ((1, 3, 2), (1, 2, 5), (0, 2, 2), (1, -2, -2)):
        with pytest.raises(ValueError, match="height and width must be multiples of 2"):
            model.num_encoder_rows(grid)


@pytest.mark.parametrize("lengths", [(5,), (4, 4, 4), (1, 4, 4, 2, 2, 1), (7, 1, 7)], ids=str)
def test_attention_stays_within_its_runs(lengths: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    q, k, v = torch.randn(3, sum(lengths), 2, 8)
    got = EncoderAttention(2, 8)(q, k, v, lengths)
    for query, key, value, out in zip(*(x.split(list(lengths)) for x in (q, k, v, got)), strict=True):
        weights = torch.softmax(torch.einsum("qhd,khd->hqk", query, key) * 8**-0.5, dim=-1)
        torch.testing.assert_close(out, torch.einsum("hqk,khd->qhd", weights, value).flatten(1))
