"""Attention and MLP of a layer read one norm and are summed over the ranks together, as transformers adds them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import scaled_dot_product_attention
from transformers import Cohere2Config as HFConfig
from transformers.models.cohere2.modeling_cohere2 import Cohere2DecoderLayer as HFLayer

from trunnion.config import BuildContext
from trunnion.interfaces.collectives import NoCollectives, ParallelGroup
from trunnion.layers.rotary_embedding import RotaryEmbedding
from trunnion.reference import ReferenceHardware
from trunnion.weights.loader import load_weights
from trunnion.weights.safetensors_source import SafetensorsSource
from trunnion_models.cohere2.config import Cohere2Config
from trunnion_models.cohere2.model import Cohere2DecoderLayer
from trunnion_models.cohere2.weights import WEIGHT_MAP

NUM_TOKENS = 7
CONFIG = {
    "model_type": "cohere2",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 20,
    "attention_bias": True,
    "layer_types": ["full_attention"],
}


class Counted(NoCollectives):
    """A rank that sums nothing, and counts what it was asked to sum."""

    def __init__(self) -> None:
        self.num_sums = 0

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        self.num_sums += 1
        return x


class OnePrompt:
    """A group of attention layers in a step of one prompt."""

    def run(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None
    ) -> torch.Tensor:
        rows = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
        out = scaled_dot_product_attention(*rows, is_causal=True, scale=q.shape[-1] ** -0.5, enable_gqa=True)
        return out.squeeze(0).transpose(0, 1)


def published(folder: Path) -> HFLayer:
    """A layer with random weights and biases, saved in `folder`."""
    torch.manual_seed(0)
    layer = HFLayer(HFConfig(**CONFIG, attn_implementation="eager"), 0).eval()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    save_file(layer.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return layer


@pytest.mark.parametrize("size", [1, 2])
@torch.inference_mode()
def test_ranks_sum_both_at_once(size: int, tmp_path: Path) -> None:
    theirs = published(tmp_path)
    config = Cohere2Config.from_hf(CONFIG)
    x, positions = torch.randn(NUM_TOKENS, config.hidden_size), torch.arange(NUM_TOKENS)
    unseen = torch.full((NUM_TOKENS, NUM_TOKENS), float("-inf")).triu(1)
    wanted = theirs(x.unsqueeze(0), (torch.ones(0), torch.zeros(0)), attention_mask=unseen[None, None])
    added = torch.zeros_like(x)
    for rank in range(size):
        counted = Counted()
        parallel = ParallelGroup(rank=rank, size=size, collectives=counted)
        ctx = BuildContext(hardware=ReferenceHardware(), dtype=torch.float32, parallel=parallel)
        rope = RotaryEmbedding(config.rope, config.head_dim, NUM_TOKENS, interleaved=True, ctx=ctx)
        layer = Cohere2DecoderLayer(config, None, rope, ctx, "")
        load_weights(layer, SafetensorsSource(tmp_path), WEIGHT_MAP, dtype=torch.float32, device=torch.device("cpu"))
        layer.self_attn.attn.bind(OnePrompt(), 0)  # type: ignore[arg-type]
        added += layer(positions, x) - x
        assert counted.num_sums == 1
    torch.testing.assert_close(x + added, wanted.reshape(x.shape), rtol=1e-4, atol=1e-4)
