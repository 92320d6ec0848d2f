"""Layers whose weights are GGUF's blocks: what a package's method computes and looks up, against the formula."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from tests.unit.one_scheme import OfOneScheme

from trunnion.config import BuildContext
from trunnion.interfaces.hardware import Hardware
from trunnion.interfaces.quantization import BlockType, GGUFBlocks
from trunnion.layers.linear import ReplicatedLinear
from trunnion.layers.vocab_embedding import VocabParallelEmbedding
from trunnion.weights.loader import finalize_layers

ROWS, FEATURES, COLUMNS = (1, 2, 7, 9, 33, 70), 45, 160
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


def _stored(kind: BlockType, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks, and what the gguf library says they stand for."""
    values = np.random.default_rng(3).standard_normal((rows, COLUMNS), dtype=np.float32) + 0.3
    found = gguf.quantize(values * np.float32(0.1), gguf.GGMLQuantizationType[kind.value])
    return torch.from_numpy(found), torch.from_numpy(gguf.dequantize(found, gguf.GGMLQuantizationType[kind.value]))


def _load(layer: torch.nn.Module, blocks: torch.Tensor, device: torch.device) -> None:
    """As the loader does it."""
    parameter = layer.get_parameter("weight")
    loaded = torch.nn.Parameter(torch.zeros(parameter.shape, dtype=torch.uint8), requires_grad=False)
    loaded.data[: len(blocks)] = blocks
    layer.weight = torch.nn.Parameter(loaded.data.to(device), requires_grad=False)
    finalize_layers([layer], device)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("kind", BlockType, ids=lambda kind: kind.value)
def test_products_and_rows(hardware: Hardware, kind: BlockType, dtype: torch.dtype) -> None:
    """Rows of `x` are rounded to 127 steps of the largest value of each block of 32; sums are those of float64."""
    device = hardware.initialize(0)
    ctx = BuildContext(hardware=hardware, dtype=dtype, quantization=OfOneScheme(GGUFBlocks(type=kind)))
    blocks, dense = _stored(kind, FEATURES)
    layer = ReplicatedLinear(COLUMNS, FEATURES, ctx=ctx, prefix="up_proj")
    with torch.inference_mode():
        _load(layer, blocks, device)
        for rows in ROWS:
            x = torch.randn(rows, COLUMNS).to(dtype)
            by_blocks = x.float().unflatten(1, (-1, 32))
            steps = by_blocks.abs().amax(2, keepdim=True) / 127
            near = ((by_blocks / steps).round().double() * steps.double()).flatten(1)
            found = layer(x.to(device)).cpu()
            assert found.dtype == dtype
            torch.testing.assert_close(
                found.double(), near @ dense.double().T, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
            )
        embedding = VocabParallelEmbedding(FEATURES, COLUMNS, ctx=ctx, prefix="embed_tokens")
        _load(embedding, blocks, device)
        ids = torch.tensor([FEATURES - 1, 0, 17, 17], dtype=torch.int32)
        torch.testing.assert_close(embedding(ids.to(device)).cpu(), dense[ids].to(dtype), rtol=1e-6, atol=1e-6)
