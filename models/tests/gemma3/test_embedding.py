"""Embeddings are scaled by a factor that is rounded to the model's dtype first, as the models were trained."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from transformers.models.gemma3.modeling_gemma3 import Gemma3TextScaledWordEmbedding

from trunnion.config import BuildContext
from trunnion.reference import ReferenceHardware
from trunnion_models.gemma3.card import CARDS
from trunnion_models.gemma3.config import Gemma3TextConfig
from trunnion_models.gemma3.model import Gemma3TextModel


@pytest.mark.parametrize("hidden_size", [80, 3584])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_scale_is_rounded_as_in_transformers(hidden_size: int, dtype: torch.dtype) -> None:
    config = dataclasses.replace(Gemma3TextConfig.from_hf(CARDS[0].config), hidden_size=hidden_size, layer_types=())
    model = Gemma3TextModel(config, BuildContext(hardware=ReferenceHardware(), dtype=dtype, max_model_len=8), "model")
    truth = Gemma3TextScaledWordEmbedding(131, hidden_size, 0, hidden_size**0.5).to(dtype)
    weight = torch.randn(131, hidden_size, generator=torch.Generator().manual_seed(0)).to(dtype)
    truth.weight.data, model.embed_tokens.weight.data[:131] = weight, weight
    model.norm = torch.nn.Identity()
    seen: list[torch.Tensor] = []
    model.norm.forward = lambda hidden, residual: (hidden, seen.append(hidden))
    ids = torch.arange(131)
    model(ids, ids, None)
    assert torch.equal(seen[0], truth(ids))
