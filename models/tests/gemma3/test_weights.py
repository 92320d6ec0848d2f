"""Gemma 3's text is found under each of its prefixes, tied or not; the tower's tensors are left out, with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from trunnion.config import BuildContext
from trunnion.errors import WeightsError
from trunnion.reference import ReferenceHardware
from trunnion.weights.loader import load_weights
from trunnion.weights.report import WeightReport
from trunnion.weights.safetensors_source import SafetensorsSource
from trunnion_models.gemma3.model import Gemma3ForCausalLM, Gemma3ForConditionalGeneration
from trunnion_models.gemma3.weights import NO_IMAGES

VOCAB, HIDDEN, HEAD_DIM, INTERMEDIATE = 64, 16, 8, 24
TEXT: dict[str, Any] = {
    "model_type": "gemma3_text",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": 32,
}
LAYOUTS = {
    # The text alone; published beside a tower; saved by transformers since 4.52.
    "model": ("model.", "lm_head", None),
    "language_model.model": ("language_model.model.", "language_model.lm_head", ""),
    "model.language_model": ("model.language_model.", "lm_head", "model."),
}
Tensors = dict[str, torch.Tensor]


def tensors(prefix: str, head: str, tower: str | None) -> Tensors:
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}embed_tokens.weight": (VOCAB, HIDDEN),
        f"{prefix}norm.weight": (HIDDEN,),
        f"{prefix}layers.0.self_attn.q_proj.weight": (2 * HEAD_DIM, HIDDEN),
        f"{prefix}layers.0.self_attn.k_proj.weight": (HEAD_DIM, HIDDEN),
        f"{prefix}layers.0.self_attn.v_proj.weight": (HEAD_DIM, HIDDEN),
        f"{prefix}layers.0.self_attn.o_proj.weight": (HIDDEN, 2 * HEAD_DIM),
        f"{prefix}layers.0.self_attn.q_norm.weight": (HEAD_DIM,),
        f"{prefix}layers.0.self_attn.k_norm.weight": (HEAD_DIM,),
        f"{prefix}layers.0.mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
        f"{prefix}layers.0.mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
        f"{prefix}layers.0.mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        f"{head}.weight": (VOCAB, HIDDEN),
    }
    for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
        shapes[f"{prefix}layers.0.{norm}_layernorm.weight"] = (HIDDEN,)
    if tower is not None:
        shapes |= {
            f"{tower}vision_tower.vision_model.embeddings.patch_embedding.weight": (4, 3, 2, 2),
            f"{tower}vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight": (4, 4),
            f"{tower}multi_modal_projector.mm_input_projection_weight": (4, HIDDEN),
            f"{tower}multi_modal_projector.mm_soft_emb_norm.weight": (4,),
        }
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def load(folder: Path, found: Tensors, tied: bool, *, alone: bool = False) -> tuple[Any, WeightReport]:
    """As the text alone or as the text of a model that sees, whatever the names in the checkpoint are."""
    save_file({name: tensor.contiguous() for name, tensor in found.items()}, folder / "model.safetensors")
    text = TEXT | {"tie_word_embeddings": tied}
    family = Gemma3ForCausalLM if alone else Gemma3ForConditionalGeneration
    config = family.config_class.from_hf(text if alone else {"model_type": "gemma3", "text_config": text})
    ctx = BuildContext(hardware=ReferenceHardware(), dtype=torch.float32, max_model_len=16)
    with torch.device("meta"):
        model = family(config, ctx)
    source = SafetensorsSource(folder)
    report = load_weights(model, source, model.weight_map, dtype=torch.float32, device=torch.device("cpu"))
    return model, report


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "beside a tower"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_text_is_read_back(layout: str, alone: bool, tmp_path: Path) -> None:
    prefix, head, tower = LAYOUTS[layout]
    found = tensors(prefix, head, tower)
    model, report = load(tmp_path, found, tied=False, alone=alone)
    layer = model.model.layers[0]
    qkv = torch.cat([found[f"{prefix}layers.0.self_attn.{part}_proj.weight"] for part in "qkv"])
    assert torch.equal(layer.self_attn.qkv_proj.weight, qkv)
    norm = layer.pre_feedforward_layernorm.weight
    assert torch.equal(norm, found[f"{prefix}layers.0.pre_feedforward_layernorm.weight"])
    assert torch.equal(model.model.embed_tokens.weight, found[f"{prefix}embed_tokens.weight"])
    assert torch.equal(model.lm_head.weight, found[f"{head}.weight"])
    left_out = {name for name in found if "vision_tower" in name or "multi_modal_projector" in name}
    expected = {NO_IMAGES: left_out} if left_out else {}
    assert {reason: set(names) for reason, names in report.ignored.items()} == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tied_head_may_be_absent_or_the_embedding_once_more(layout: str, tmp_path: Path) -> None:
    prefix, head, tower = LAYOUTS[layout]
    found = tensors(prefix, head, tower)
    embedding = found[f"{prefix}embed_tokens.weight"]
    own = found.pop(f"{head}.weight")
    for more in ({}, {f"{head}.weight": embedding.clone()}):
        model, report = load(tmp_path, found | more, tied=True)
        assert torch.equal(model.lm_head.weight, embedding)
        assert report.tied == tuple(more)
    with pytest.raises(WeightsError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        load(tmp_path, found | {f"{head}.weight": own}, tied=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_head_that_is_neither_tied_nor_there_is_missing(layout: str, tmp_path: Path) -> None:
    prefix, head, tower = LAYOUTS[layout]
    found = tensors(prefix, head, tower)
    del found[f"{head}.weight"]
    with pytest.raises(WeightsError, match=r"missing.*lm_head\.weight"):
        load(tmp_path, found, tied=False)


def test_a_tensor_that_only_sounds_like_the_towers_is_unexpected(tmp_path: Path) -> None:
    found = tensors(*LAYOUTS["model.language_model"]) | {"model.vision_towers.weight": torch.zeros(2)}
    with pytest.raises(WeightsError, match=r"model\.vision_towers\.weight"):
        load(tmp_path, found, tied=False)
