"""Checkpoints and caches in float8, which no chip that is known here has: refused by name, never attempted."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch

from trunnion.config import BuildContext
from trunnion.errors import UnsupportedError
from trunnion.interfaces.attention import AttentionSpec
from trunnion.interfaces.quantization import W8A8, Activations, BlockFP8, Scheme
from trunnion.layers.linear import ColumnParallelLinear
from trunnion_ascend.hardware import AscendHardware
from trunnion_ascend.soc import SOCS

E4M3 = torch.float8_e4m3fn
CHIPS = {"Ascend910B3": "Atlas A2", "Ascend910_9391": "Atlas A3", "Ascend310P3": r"Atlas 300I \(310P\)"}
SCHEMES: dict[str, tuple[Scheme, str]] = {
    "blocks": (BlockFP8(), "float8_e4m3fn in blocks of 128 x 128"),
    "rows": (W8A8(dtype=E4M3), "float8_e4m3fn with a scale per row, activations scaled by token"),
    "static": (
        W8A8(dtype=E4M3, per_row=False, activations=Activations.STATIC),
        "float8_e4m3fn with a scale per tensor, activations scaled by static",
    ),
}


class OfOneScheme:
    """A checkpoint all of whose layers are quantised alike."""

    def __init__(self, scheme: Scheme) -> None:
        self._scheme = scheme

    def scheme(self, prefix: str) -> Scheme:
        return self._scheme

    def embedding_scheme(self, prefix: str) -> None:
        return None


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("chip", CHIPS)
def test_weights_are_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch, chip: str, name: str) -> None:
    """Linear layers and experts, with the layer, the scheme, the chip and the choices."""
    monkeypatch.setattr(torch.npu, "get_device_name", lambda index=None: chip)
    scheme, stored = SCHEMES[name]
    hardware = AscendHardware()
    message = f"^p: weights in {stored}; {CHIPS[chip]} has no float8, .*; choices: .* in bfloat16, or in int8 .*$"
    context = BuildContext(hardware=hardware, dtype=torch.bfloat16, quantization=OfOneScheme(scheme))
    with pytest.raises(UnsupportedError, match=message), torch.device("meta"):
        ColumnParallelLinear(256, 128, ctx=context, prefix="p")
    with pytest.raises(UnsupportedError, match=message):
        hardware.moe_method(scheme, "p")


def test_a_chip_with_float8_would_be_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused follows from the chip's facts, not from the package."""
    monkeypatch.setattr(AscendHardware, "soc", dataclasses.replace(SOCS[0], has_float8=True))
    for scheme, _ in SCHEMES.values():
        AscendHardware().linear_method(scheme, "p")


def test_caches_are_refused() -> None:
    spec = AttentionSpec(num_qo_heads=2, num_kv_heads=1, head_dim=64, scale=1.0, dtype=torch.bfloat16, cache_dtype=E4M3)
    with pytest.raises(UnsupportedError, match=r"^caches in float8_e4m3fn: Atlas A2 .*; kv_cache_dtype choices: auto$"):
        AscendHardware().group_class(spec)


def test_products_are_refused() -> None:
    """Where nothing was loaded: who calls the operators is told the same."""
    device = AscendHardware().initialize(0)
    x, weight, scale = torch.randn(2, 8), torch.randn(4, 8).to(E4M3), torch.ones(4)
    arguments = [value.to(device) for value in (x, weight, scale)]
    with pytest.raises(UnsupportedError, match=r"^w8a8_linear of weights in float8_e4m3fn: .* choices: int8$"):
        torch.ops.trunnion.w8a8_linear(*arguments, None, None)
    with pytest.raises(UnsupportedError, match=r"^block_fp8_linear: Atlas A2 has no float8"):
        torch.ops.trunnion.block_fp8_linear(*arguments[:2], torch.ones(1, 1, device=device), None, 128, 128)


@pytest.mark.parametrize("dtype", [E4M3, torch.float8_e5m2], ids=str)
def test_the_simulation_casts_no_float8(dtype: torch.dtype) -> None:
    """As CANN does not before Ascend 950, in a cast and in a copy that is one; bytes are moved."""
    import torch_npu

    stored = torch.randn(4, 8).to(dtype)
    moved = stored.to("npu:0")
    assert torch.equal(moved.clone().cpu().view(torch.uint8), stored.view(torch.uint8))
    refused = re.escape(f"no cast from or to {dtype}")
    with pytest.raises(RuntimeError, match=refused):
        torch_npu.npu_dtype_cast(moved, torch.float32)
    with pytest.raises(RuntimeError, match=refused):
        moved.float()
    with pytest.raises(RuntimeError, match=refused):
        torch.zeros(4, 8, device="npu:0").to(dtype)
    with pytest.raises(RuntimeError, match=refused):
        torch.empty(4, 8, device="npu:0").copy_(moved)
