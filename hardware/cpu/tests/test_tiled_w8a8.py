"""Layers of int8 weights and activations: what tiles compute; memory, reloads, what stays as it was loaded."""

from __future__ import annotations

import pytest
import torch
from tests.unit.one_scheme import OfOneScheme, context
from torch import nn

from trunnion.config import BuildContext
from trunnion.interfaces.quantization import W8A8, Activations
from trunnion.layers.linear import ColumnParallelLinear
from trunnion_cpu.hardware import CpuHardware
from trunnion_cpu.native import Native, native
from trunnion_cpu.tiled_w8a8 import TiledW8A8LinearMethod, num_tiled_w8a8_layers, why_not_tiled

pytestmark = pytest.mark.skipif(not isinstance(native(), Native), reason="no native operators")
DYNAMIC, STATIC = W8A8(dtype=torch.int8), W8A8(dtype=torch.int8, activations=Activations.STATIC)


def build(scheme: W8A8, features: tuple[int, int], dtype: torch.dtype = torch.float32) -> ColumnParallelLinear:
    ctx = BuildContext(hardware=CpuHardware(), dtype=dtype, quantization=OfOneScheme(scheme))
    return ColumnParallelLinear(*features, bias=True, ctx=ctx, prefix="p")


def fill(layer: nn.Module, seed: int) -> None:
    """As a loader does: with parameters that are new."""
    made = torch.Generator().manual_seed(seed)
    for name, old in list(layer.named_parameters()):
        if old.dtype == torch.float32:
            fresh = torch.rand(old.shape, generator=made) * 0.01 + 0.01
        else:
            fresh = torch.randint(-128, 128, old.shape, generator=made).to(old.dtype)
        setattr(layer, name, nn.Parameter(fresh, requires_grad=False))
    layer.finalize()


@pytest.mark.parametrize("scheme", [DYNAMIC, STATIC], ids=["dynamic", "static"])
def test_layers_compute_what_the_reference_computes(scheme: W8A8) -> None:
    layer = build(scheme, (72, 48))
    reference = ColumnParallelLinear(72, 48, bias=True, ctx=context(scheme), prefix="p")
    x = torch.randn(5, 72)
    for seed in (1, 2):
        for each in (layer, reference):
            fill(each, seed)
        with torch.inference_mode():
            torch.testing.assert_close(layer(x), reference(x), rtol=1e-5, atol=1e-5)
    assert num_tiled_w8a8_layers(layer) == 1


def test_a_reload_lies_where_the_first_one_did() -> None:
    layer, x = build(DYNAMIC, (72, 48)), torch.randn(5, 72)
    fill(layer, 1)
    place = layer.weight.data_ptr()
    with torch.inference_mode():
        once = layer(x)
        layer.finalize()
        assert torch.equal(layer(x), once)
    fill(layer, 2)
    assert layer.weight.data_ptr() == place
    with torch.inference_mode():
        assert not torch.equal(layer(x), once)


def test_an_input_scale_alone_is_heard() -> None:
    layer, x = build(STATIC, (72, 48)), torch.randn(5, 72)
    fill(layer, 1)
    with torch.inference_mode():
        once = layer(x)
        layer.input_scale.mul_(2)
        layer.finalize()
        assert not torch.equal(layer(x), once)


@pytest.mark.parametrize(
    ("scheme", "features", "dtype"),
    [
        (DYNAMIC, (72, 40), torch.float32),
        (DYNAMIC, (70, 48), torch.float32),
        (DYNAMIC, (72, 48), torch.float16),
        (W8A8(dtype=torch.float8_e4m3fn), (72, 48), torch.float32),
    ],
    ids=["out-features", "in-features", "float16", "float8"],
)
def test_what_has_no_tiles_stays_as_it_was_loaded(scheme: W8A8, features: tuple[int, int], dtype: torch.dtype) -> None:
    layer = build(scheme, features, dtype)
    fill(layer, 1)
    reason = why_not_tiled(dtype, layer.weight)
    assert isinstance(layer.method, TiledW8A8LinearMethod) and reason and num_tiled_w8a8_layers(layer) == 0
    with torch.inference_mode():
        assert layer(torch.randn(3, features[0]).to(dtype)).isfinite().all()
