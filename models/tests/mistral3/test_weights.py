"""Mistral 3's text is found under each of its prefixes; the tower's tensors are left out, and the report says why."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from trunnion.config import BuildContext
from trunnion.errors import WeightsError
from trunnion.reference import ReferenceHardware
from trunnion.weights.loader import load_weights
from trunnion.weights.report import WeightReport
from trunnion.weights.safetensors_source import SafetensorsSource
from trunnion_models.mistral3.config import Mistral3Config
from trunnion_models.mistral3.model import Mistral3ForConditionalGeneration
from trunnion_models.mistral3.weights import NO_IMAGES

VOCAB, HIDDEN, HEAD_DIM = 64, 16, 8
CONFIG = {
    "model_type": "mistral3",
    "text_config": {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 32,
    },
}
LAYER = "layers.0"
LAYOUTS = {
    # Published; and saved by transformers since 4.52.
    "language_model.model": ("language_model.model.", "language_model.lm_head", ""),
    "model.language_model": ("model.language_model.", "lm_head", "model."),
}


def tensors(prefix: str, head: str, outer: str) -> dict[str, torch.Tensor]:
    shapes = {
        f"{prefix}embed_tokens.weight": (VOCAB, HIDDEN),
        f"{prefix}norm.weight": (HIDDEN,),
        f"{prefix}{LAYER}.input_layernorm.weight": (HIDDEN,),
        f"{prefix}{LAYER}.post_attention_layernorm.weight": (HIDDEN,),
        f"{prefix}{LAYER}.self_attn.q_proj.weight": (2 * HEAD_DIM, HIDDEN),
        f"{prefix}{LAYER}.self_attn.k_proj.weight": (HEAD_DIM, HIDDEN),
        f"{prefix}{LAYER}.self_attn.v_proj.weight": (HEAD_DIM, HIDDEN),
        f"{prefix}{LAYER}.self_attn.o_proj.weight": (HIDDEN, 2 * HEAD_DIM),
        f"{prefix}{LAYER}.mlp.gate_proj.weight": (24, HIDDEN),
        f"{prefix}{LAYER}.mlp.up_proj.weight": (24, HIDDEN),
        f"{prefix}{LAYER}.mlp.down_proj.weight": (HIDDEN, 24),
        f"{head}.weight": (VOCAB, HIDDEN),
        f"{outer}vision_tower.transformer.layers.0.attention.q_proj.weight": (4, 4),
        f"{outer}vision_tower.patch_conv.weight": (4, 3, 2, 2),
        f"{outer}multi_modal_projector.patch_merger.merging_layer.weight": (4, 16),
        f"{outer}multi_modal_projector.linear_1.weight": (HIDDEN, 4),
    }
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def load(folder: Path, found: dict[str, torch.Tensor]) -> tuple[Mistral3ForConditionalGeneration, WeightReport]:
    save_file(found, folder / "model.safetensors")
    ctx = BuildContext(hardware=ReferenceHardware(), dtype=torch.float32, max_model_len=16)
    with torch.device("meta"):
        model = Mistral3ForConditionalGeneration(Mistral3Config.from_hf(CONFIG), ctx)
    source = SafetensorsSource(folder)
    report = load_weights(model, source, model.weight_map, dtype=torch.float32, device=torch.device("cpu"))
    return model, report


@pytest.mark.parametrize(("prefix", "head", "outer"), LAYOUTS.values(), ids=LAYOUTS)
def test_the_text_is_read_back(prefix: str, head: str, outer: str, tmp_path: Path) -> None:
    found = tensors(prefix, head, outer)
    model, report = load(tmp_path, found)
    layer = model.model.layers[0]
    qkv = torch.cat([found[f"{prefix}{LAYER}.self_attn.{part}_proj.weight"] for part in "qkv"])
    assert torch.equal(layer.self_attn.qkv_proj.weight, qkv)
    assert torch.equal(layer.mlp.down_proj.weight, found[f"{prefix}{LAYER}.mlp.down_proj.weight"])
    assert torch.equal(model.model.embed_tokens.weight, found[f"{prefix}embed_tokens.weight"])
    assert torch.equal(model.lm_head.weight, found[f"{head}.weight"])
    left_out = {name for name in found if "vision_tower" in name or "multi_modal_projector" in name}
    assert len(left_out) == 4
    assert {reason: set(names) for reason, names in report.ignored.items()} == {NO_IMAGES: left_out}


def test_a_tensor_that_only_sounds_like_the_towers_is_unexpected(tmp_path: Path) -> None:
    found = tensors(*LAYOUTS["model.language_model"])
    found["model.vision_towers.weight"] = torch.zeros(2)
    with pytest.raises(WeightsError, match=r"model\.vision_towers\.weight"):
        load(tmp_path, found)


def test_a_head_that_is_neither_tied_nor_there_is_missing(tmp_path: Path) -> None:
    found = tensors(*LAYOUTS["language_model.model"])
    del found["language_model.lm_head.weight"]
    with pytest.raises(WeightsError, match=r"missing.*lm_head\.weight"):
        load(tmp_path, found)
