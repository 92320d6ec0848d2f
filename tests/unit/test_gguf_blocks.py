"""GGUF's blocks as they lie: what their bytes stand for, which matrices are kept, on which rank what arrives."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from tests.unit.gguf_toys import CONFIG, VOCAB, write_model
from tests.unit.one_scheme import context

from trunnion import registry
from trunnion.config import BuildContext
from trunnion.errors import UnsupportedError
from trunnion.interfaces.collectives import ParallelGroup
from trunnion.interfaces.quantization import BlockType, GGUFBlocks
from trunnion.layers.linear import RowParallelLinear
from trunnion.ops.gguf_blocks import block_linear, dequantise_blocks
from trunnion.reference import ReferenceHardware
from trunnion.weights.checkpoint import open_checkpoint
from trunnion.weights.gguf_blocks import KeptBlocks, blocks_to_keep
from trunnion.weights.gguf_source import GGUFSource
from trunnion.weights.loader import load_weights

KINDS = {kind: Type[kind.value] for kind in BlockType}


def blocks_of(kind: BlockType, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random blocks [rows, bytes], and what the gguf library says they stand for, in float64."""
    values = np.random.default_rng(rows * columns).standard_normal((rows, columns), dtype=np.float32) + 0.3
    stored = gguf.quantize(values * np.float32(0.1), KINDS[kind])
    return torch.from_numpy(stored), torch.from_numpy(gguf.dequantize(stored, KINDS[kind])).double()


@pytest.mark.parametrize("kind", BlockType, ids=lambda kind: kind.value)
def test_blocks_stand_for_what_the_library_says(kind: BlockType) -> None:
    blocks, dense = blocks_of(kind, 7, 96)
    assert blocks.shape == (7, 3 * kind.block_bytes)
    torch.testing.assert_close(dequantise_blocks(blocks, kind).double(), dense, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("rows", [1, 2, 7, 70])
@pytest.mark.parametrize("kind", BlockType, ids=lambda kind: kind.value)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_is_that_of_integers(kind: BlockType, rows: int, dtype: torch.dtype) -> None:
    """Against sums of integers by blocks, and within what rounding a row to 127 steps of its blocks' largest costs."""
    blocks, dense = blocks_of(kind, 37, 160)
    x, bias = (torch.randn(rows, 160) + 0.1).to(dtype), torch.randn(37).to(dtype)
    by_blocks = x.double().unflatten(1, (5, 32))
    steps = by_blocks.abs().amax(2, keepdim=True) / 127
    integers = (by_blocks.float() / steps.float()).round().double()
    expected = torch.einsum("mbk,nbk,mb->mn", integers, dense.unflatten(1, (5, 32)), steps.squeeze(2)) + bias.double()
    found = block_linear(x, blocks, bias, kind)
    assert found.dtype == dtype
    rounding = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(found.double(), expected, rtol=rounding, atol=rounding)
    bound = torch.einsum("mbk,nbk->mn", (steps / 2).expand_as(by_blocks), dense.abs().unflatten(1, (5, 32)))
    exact = x.double() @ dense.T + bias.double()
    assert ((found.double() - exact).abs() <= bound + rounding * (1 + exact.abs())).all()


def build(path: Path, *, rank: int = 0, size: int = 1) -> tuple[torch.nn.Module, KeptBlocks]:
    """The model of the file on `rank`, of blocks where it has them."""
    opened = open_checkpoint(path)
    assert isinstance(opened.source, GGUFSource)
    family = registry.model_class(opened.config)
    config = family.config_class.from_hf(opened.config)
    weight_map = family.weight_map.for_config(config)
    kept = blocks_to_keep(opened.source.infos, weight_map)
    parallel = ParallelGroup(rank=rank, size=size)
    ctx = BuildContext(hardware=ReferenceHardware(), dtype=torch.float32, quantization=kept, parallel=parallel)
    with torch.device("meta"):
        model = family(config, ctx)
    source = opened.source.keeping(kept.names)
    load_weights(model, source, weight_map, dtype=torch.float32, device=torch.device("cpu"))
    return model, kept


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("kind", BlockType, ids=lambda kind: kind.value)
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_layers_are_made_of_whole_rows_of_blocks(tmp_path: Path, arch: str, kind: BlockType, tied: bool) -> None:
    expected = dict(write_model(tmp_path / "toy.gguf", arch, KINDS[kind], tied=tied).named_parameters())
    model, kept = build(tmp_path / "toy.gguf")
    assert kept.describe() == f"{16 - tied} of {16 - tied} matrices run in the blocks they are stored in"
    layer, prefix = model.model.layers[1], "model.layers.1"
    for found, names in (
        (layer.self_attn.qkv_proj, [f"self_attn.{part}_proj" for part in "qkv"]),
        (layer.mlp.gate_up_proj, ["mlp.gate_proj", "mlp.up_proj"]),
        (layer.mlp.down_proj, ["mlp.down_proj"]),
    ):
        dense = torch.cat([expected[f"{prefix}.{name}.weight"] for name in names])
        torch.testing.assert_close(dequantise_blocks(found.weight, kind), dense, rtol=1e-6, atol=1e-7)
    ids = torch.tensor([0, 5, VOCAB - 1])
    embedding = expected["model.embed_tokens.weight"]
    torch.testing.assert_close(model.model.embed_tokens(ids), embedding[ids], rtol=1e-6, atol=1e-7)
    head = expected["lm_head.weight"] if not tied else embedding
    x = torch.randn(3, CONFIG["hidden_size"])
    torch.testing.assert_close(model.lm_head(x), x @ head.T, rtol=0.02, atol=0.02)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is tied


def test_other_types_and_mixed_layers_are_dequantised_and_named(tmp_path: Path) -> None:
    others = {"layers.0.self_attn.v_proj": Type.Q5_0, "layers.1.mlp.up_proj": Type.Q8_0, "embed_tokens": Type.Q8_0}
    expected = dict(
        write_model(tmp_path / "toy.gguf", "llama", Type.Q4_0, tied=False, others=others).named_parameters()
    )
    model, kept = build(tmp_path / "toy.gguf")
    layers = model.model.layers
    assert kept.types["model.embed_tokens"] is BlockType.Q8_0
    assert layers[0].self_attn.qkv_proj.weight.dtype == layers[1].mlp.gate_up_proj.weight.dtype == torch.float32
    assert layers[1].self_attn.qkv_proj.weight.dtype == layers[0].mlp.gate_up_proj.weight.dtype == torch.uint8
    dense = torch.cat([expected[f"model.layers.0.self_attn.{part}_proj.weight"] for part in "qkv"])
    torch.testing.assert_close(layers[0].self_attn.qkv_proj.weight.data, dense)
    said = kept.describe()
    assert said.startswith("11 of 16 matrices run in the blocks they are stored in; the rest (3 Q4_0, 1 Q5_0, 1 Q8_0)")
    assert "model.layers.0.self_attn.v_proj.weight" in said and "model.layers.1.mlp.up_proj.weight" in said


def test_ranks_have_their_rows_and_columns(tmp_path: Path) -> None:
    """Columns of `down_proj` and `o_proj` are cut between blocks: 128 features of heads into two halves of 64."""
    expected = dict(write_model(tmp_path / "toy.gguf", "llama", Type.Q4_1, tied=True).named_parameters())
    with pytest.raises(UnsupportedError, match=r"down_proj: input features 0 to 80 cut blocks of 32 \(Q4_1\)"):
        build(tmp_path / "toy.gguf", size=2)
    for rank in range(2):
        ctx = context(GGUFBlocks(type=BlockType.Q4_1), rank, 2)
        layer = RowParallelLinear(128, 96, ctx=ctx, prefix="o_proj")
        placement = layer.weight.trunnion_placements[""]
        stored = dict(GGUFSource(tmp_path / "toy.gguf").keeping(["model.layers.0.self_attn.o_proj.weight"]).tensors(
            ["model.layers.0.self_attn.o_proj.weight"]
        ))["model.layers.0.self_attn.o_proj.weight"]  # fmt: skip
        assert placement.accepts(tuple(stored.shape))
        own = dequantise_blocks(stored[placement.source], BlockType.Q4_1)
        whole = expected["model.layers.0.self_attn.o_proj.weight"]
        torch.testing.assert_close(own, whole[:, 64 * rank : 64 * (rank + 1)], rtol=1e-6, atol=1e-7)


def test_experts_in_blocks_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="experts in blocks of GGUF are not supported; choices: linear layers"):
        ReferenceHardware().moe_method(GGUFBlocks(type=BlockType.Q8_0), "mlp.experts")
