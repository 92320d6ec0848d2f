"""Weights in blocks of GGUF on every set of kernels: products against sums of integers, rows, layers, reloads, ties."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from tests.unit.gguf_toys import CONFIG, VOCAB, write_model
from tests.unit.one_scheme import OfOneScheme

from trunnion import registry
from trunnion.config import BuildContext
from trunnion.interfaces.quantization import BlockType, GGUFBlocks
from trunnion.layers.linear import MergedColumnParallelLinear
from trunnion.ops.gguf_blocks import dequantise_blocks
from trunnion.weights.checkpoint import open_checkpoint
from trunnion.weights.gguf_blocks import blocks_to_keep
from trunnion.weights.gguf_source import GGUFSource
from trunnion.weights.loader import load_weights
from trunnion_cpu.block_weights import PARAMETERS, ROWS_AT_ONCE, in_tiles, num_tiled_block_layers
from trunnion_cpu.hardware import CpuHardware
from trunnion_cpu.native import Native, native

ROWS = (0, 1, 2, 7, 9, 33, 70)
KINDS = {kind: Type[kind.value] for kind in BlockType}
Check = Callable[[torch.Tensor, torch.Tensor], None]
pytestmark = pytest.mark.skipif(not isinstance(native(), Native), reason="no native operators")
each_kind = pytest.mark.parametrize("kind", BlockType, ids=lambda kind: kind.value)


def operators() -> Any:
    return torch.ops.trunnion_cpu


def blocks_of(kind: BlockType, features: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """In tiles, and what the gguf library says they stand for, in float64."""
    values = np.random.default_rng(features * size).standard_normal((features, size), dtype=np.float32) + 0.3
    stored = gguf.quantize(values * np.float32(size**-0.5), KINDS[kind])
    dense = torch.from_numpy(gguf.dequantize(stored, KINDS[kind])).double()
    padded = np.zeros((-(-features // 16) * 16, stored.shape[1]), dtype=np.uint8)
    padded[:features] = stored
    return in_tiles(torch.from_numpy(padded), kind), dense


def rounded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x with each block's values as whole steps, and half a step of each, in float64."""
    by_blocks = x.float().unflatten(1, (-1, 32))
    steps = (by_blocks.abs().amax(2, keepdim=True) / 127).clamp(min=1e-12)
    values = (by_blocks / steps).round().double() * steps.double()
    return values.flatten(1), (steps.double() / 2).expand(values.shape).flatten(1)


@each_kind
@pytest.mark.usefixtures("isa", "inference")
@pytest.mark.parametrize("size", [32, 96, 416])
def test_products(kind: BlockType, dtype: torch.dtype, check: Check, size: int, threads: int) -> None:
    """Exact of rows rounded by the formula; of rows as they were, off by no more than half a step of each value."""
    for features in (1, 17, 70, 133):
        tiles, dense = blocks_of(kind, features, size)
        bias = torch.randn(features).to(dtype)
        for rows in ROWS:
            x = torch.randn(rows, size).to(dtype)
            near, half_steps = rounded(x)
            for given in (bias, None):
                found = operators().block_linear(x, tiles, given, kind.bits, kind.has_minima, features)
                check(found, near @ dense.T + (0 if given is None else given.double()))
            exact, bound = x.double() @ dense.T, half_steps @ dense.abs().T
            assert ((near @ dense.T - exact).abs() <= bound * 1.001 + 1e-9).all()


@each_kind
@pytest.mark.usefixtures("isa", "inference")
def test_rows_of_zeros_and_of_what_is_no_number(kind: BlockType, dtype: torch.dtype) -> None:
    tiles, _ = blocks_of(kind, 5, 64)
    x = torch.zeros(3, 64, dtype=dtype)
    x[1, 63], x[2, 0] = float("nan"), float("inf")
    found = operators().block_linear(x, tiles, None, kind.bits, kind.has_minima, 5)
    assert not found[0].any() and found[1:].isnan().all()


@each_kind
@pytest.mark.usefixtures("inference")
@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64])
def test_single_rows(kind: BlockType, dtype: torch.dtype, ids_dtype: torch.dtype, threads: int) -> None:
    tiles, dense = blocks_of(kind, 70, 416)
    for ids in ([], [0], [69, 3, 3, 16], list(range(70))):
        found = operators().block_rows(torch.tensor(ids, dtype=ids_dtype), tiles, kind.bits, kind.has_minima, 70, dtype)
        torch.testing.assert_close(found, dense[ids].to(dtype), rtol=1e-6, atol=1e-7)
    assert operators().block_rows(torch.tensor([70, -1]), tiles, kind.bits, kind.has_minima, 70, dtype).isnan().all()


@each_kind
def test_a_tall_matrix_is_laid_out_some_rows_at_a_time(kind: BlockType) -> None:
    features = ROWS_AT_ONCE + 17
    tiles, dense = blocks_of(kind, features, 32)
    ids = torch.tensor([0, ROWS_AT_ONCE - 1, ROWS_AT_ONCE, features - 1])
    found = operators().block_rows(ids, tiles, kind.bits, kind.has_minima, features, torch.float32)
    torch.testing.assert_close(found, dense[ids].float(), rtol=1e-6, atol=1e-7)


def test_what_does_not_fit_is_named() -> None:
    x, weight = torch.randn(2, 64), torch.zeros(16, 68, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="weights of 3 bits; choices: 4, 8"):
        operators().block_linear(x, weight, None, 3, False, 16)
    with pytest.raises(RuntimeError, match="minima beside weights of 8 bits; choices: 4"):
        operators().block_linear(x, weight, None, 8, True, 16)
    with pytest.raises(RuntimeError, match="weight is no dense uint8 matrix of 32 by 68"):
        operators().block_linear(x, weight, None, 8, False, 17)
    with pytest.raises(RuntimeError, match="40 features of a row, expected a multiple of 32"):
        operators().block_linear(torch.randn(2, 40), weight, None, 8, False, 16)
    with pytest.raises(RuntimeError, match="rows in Half; choices: float32, bfloat16"):
        operators().block_rows(torch.tensor([0]), weight, 8, False, 16, torch.float16)


def layer_of(kind: BlockType, dtype: torch.dtype = torch.float32) -> MergedColumnParallelLinear:
    """Two parts that are no whole tiles, loaded; its blocks are `expected_of` the same kind."""
    ctx = BuildContext(hardware=CpuHardware(), dtype=dtype, quantization=OfOneScheme(GGUFBlocks(type=kind)))
    return MergedColumnParallelLinear(96, (37, 20), ctx=ctx, prefix="gate_up_proj")


def fill(layer: torch.nn.Module, kind: BlockType, seed: int) -> torch.Tensor:
    """Load other blocks, as the loader does it: into a parameter of its own; what they stand for."""
    values = np.random.default_rng(seed).standard_normal((57, 96), dtype=np.float32)
    stored = torch.from_numpy(gguf.quantize(values, KINDS[kind]))
    old = layer.get_parameter("weight")
    fresh = torch.nn.Parameter(torch.zeros(old.shape, dtype=torch.uint8), requires_grad=False)
    fresh.__dict__.update(old.__dict__)
    fresh.data[:57] = stored
    layer.weight = fresh
    layer.finalize()
    return dequantise_blocks(stored, kind)


@each_kind
def test_a_reload_lies_where_the_first_one_did(kind: BlockType) -> None:
    layer, x = layer_of(kind), torch.randn(4, 96)
    with torch.inference_mode():
        first = fill(layer, kind, 1)
        torch.testing.assert_close(layer(x), rounded(x)[0].float() @ first.T, rtol=1e-4, atol=1e-4)
        place, once = layer.weight.data_ptr(), layer(x)
        layer.finalize()
        assert torch.equal(layer(x), once)
        second = fill(layer, kind, 2)
        assert layer.weight.data_ptr() == place
        torch.testing.assert_close(layer(x), rounded(x)[0].float() @ second.T, rtol=1e-4, atol=1e-4)
        layer.weight.data = layer.weight.data.clone()
        layer.finalize()
        torch.testing.assert_close(layer(x), rounded(x)[0].float() @ second.T, rtol=1e-4, atol=1e-4)


def test_other_dtypes_are_the_references() -> None:
    layer, x = layer_of(BlockType.Q4_0, torch.float16), torch.randn(4, 96).half()
    dense = fill(layer, BlockType.Q4_0, 1)
    assert PARAMETERS not in layer.__dict__
    torch.testing.assert_close(layer(x).float(), rounded(x)[0].float() @ dense.T, rtol=2e-3, atol=2e-2)


@each_kind
def test_a_model_with_a_tied_head(tmp_path: Path, kind: BlockType) -> None:
    expected = dict(write_model(tmp_path / "toy.gguf", "llama", KINDS[kind], tied=True).named_parameters())
    opened = open_checkpoint(tmp_path / "toy.gguf")
    assert isinstance(opened.source, GGUFSource)
    family = registry.model_class(opened.config)
    kept = blocks_to_keep(opened.source.infos, family.weight_map)
    ctx = BuildContext(hardware=CpuHardware(), dtype=torch.float32, quantization=kept)
    with torch.device("meta"):
        model = family(family.config_class.from_hf(opened.config), ctx)
    source, cpu = opened.source.keeping(kept.names), torch.device("cpu")
    for _ in range(2):
        load_weights(model, source, family.weight_map, dtype=torch.float32, device=cpu)
        # Two layers of four, and the embedding, which is the head.
        assert num_tiled_block_layers(model) == 9
        table, x = expected["model.embed_tokens.weight"], torch.randn(3, CONFIG["hidden_size"])
        with torch.inference_mode():
            ids = torch.tensor([0, 77, VOCAB - 1])
            torch.testing.assert_close(model.model.embed_tokens(ids), table[ids], rtol=1e-6, atol=1e-7)
            torch.testing.assert_close(model.lm_head(x), rounded(x)[0].float() @ table.T, rtol=1e-4, atol=1e-4)
