"""Layers whose weights lie in tiles: what they compute, whoever published them; memory, reloads, choices, reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.one_scheme import OfOneScheme
from tests.unit.packed_toys import FORMATS, FUSED, GPTQ, WEIGHT_MAP, Toy, load, save, scheme_of

from trunnion.config import BuildContext
from trunnion.errors import UnsupportedError
from trunnion.interfaces.quantization import Scheme
from trunnion.reference.grouped_int_methods import GroupedIntLinearMethod
from trunnion.weights.loader import load_weights
from trunnion.weights.safetensors_source import SafetensorsSource
from trunnion_cpu import hardware
from trunnion_cpu.hardware import CpuHardware
from trunnion_cpu.native import Absent, Native, native
from trunnion_cpu.tiled_weights import ISAS_OF_PAIRS, TiledGroupedLinearMethod, TiledIntLinearMethod, num_tiled_layers

pytestmark = pytest.mark.skipif(not isinstance(native(), Native), reason="no native operators")


def build(scheme: Scheme, dtype: torch.dtype = torch.float32, activations: str = "int8") -> Toy:
    package = CpuHardware().choosing(activations=activations)
    ctx = BuildContext(hardware=package, dtype=dtype, quantization=OfOneScheme(scheme))
    with torch.device("meta"):
        return Toy(ctx)


@pytest.mark.parametrize("name", FORMATS)
def test_layers_multiply_by_what_was_published(tmp_path: Path, name: str) -> None:
    """Within what rounding rows to 127 steps of a block's largest value costs."""
    settings: dict[str, Any] = FORMATS[name]
    integers = save(tmp_path, settings)
    model = build(scheme_of(settings))
    load(model, tmp_path)
    # 72 features are no whole tiles.
    assert num_tiled_layers(model, quantises_rows=True) == len(FUSED) - 1
    with torch.inference_mode():
        for fused, names in FUSED.items():
            dense = torch.cat([integers[part].dense() for part in names])
            x = torch.randn(3, dense.shape[1])
            bound = x.abs().amax() / 127 / 2 * dense.abs().sum(1) + 1e-4
            found, exact = getattr(model, fused)(x), x @ dense.T
            assert ((found - exact).abs() <= bound).all()
            assert (found - exact).norm() < 0.01 * exact.norm()


@pytest.mark.skipif(getattr(native(), "isa", None) not in ISAS_OF_PAIRS, reason="no products of bfloat16 pairs")
@pytest.mark.parametrize("name", FORMATS)
def test_rows_in_bfloat16_meet_tiles_as_they_are(tmp_path: Path, name: str) -> None:
    settings: dict[str, Any] = FORMATS[name]
    integers = save(tmp_path, settings)
    model = build(scheme_of(settings), torch.bfloat16, activations="auto")
    source = SafetensorsSource(tmp_path)
    load_weights(model, source, WEIGHT_MAP, dtype=torch.bfloat16, device=torch.device("cpu"))
    assert num_tiled_layers(model, quantises_rows=False) == len(FUSED) - 1
    with torch.inference_mode():
        for fused, names in FUSED.items():
            dense = torch.cat([integers[part].dense() for part in names])
            for rows in (1, 9, 70):
                x = torch.randn(rows, dense.shape[1]).bfloat16()
                found, exact = getattr(model, fused)(x).float(), x.float() @ dense.T
                assert (found - exact).norm() < 0.006 * exact.norm()


def test_a_reload_lies_where_the_first_one_did(tmp_path: Path) -> None:
    model = build(scheme_of(GPTQ))
    for seed in (1, 2):
        (tmp_path / str(seed)).mkdir()
        save(tmp_path / str(seed), GPTQ, seed)
    load(model, tmp_path / "1")
    layer, x = model.gate_up_proj, torch.randn(4, 160)
    with torch.inference_mode():
        once = layer(x)
        places = [layer.get_parameter(name).data_ptr() for name in ("qweight", "scales", "qzeros")]
        layer.finalize()
        assert torch.equal(layer(x), once)
    load(model, tmp_path / "2")
    assert [layer.get_parameter(name).data_ptr() for name in ("qweight", "scales", "qzeros")] == places
    other = build(scheme_of(GPTQ))
    load(other, tmp_path / "2")
    with torch.inference_mode():
        assert torch.equal(layer(x), other.gate_up_proj(x)) and not torch.equal(layer(x), once)


def test_tiles_move_to_other_memory(tmp_path: Path) -> None:
    """As a runner moves weights to large pages: nothing but parameters holds tiles."""
    save(tmp_path, GPTQ)
    model = build(scheme_of(GPTQ))
    load(model, tmp_path)
    layer, x = model.gate_up_proj, torch.randn(4, 160)
    with torch.inference_mode():
        once = layer(x)
    for parameter in layer.parameters():
        old, parameter.data = parameter.data, parameter.data.clone()
        old.zero_()
    layer.finalize()
    with torch.inference_mode():
        assert torch.equal(layer(x), once)


def test_what_is_not_asked_for_and_other_dtypes_stay_as_they_are(tmp_path: Path) -> None:
    save(tmp_path, GPTQ)
    model = build(scheme_of(GPTQ), torch.float16)
    source = SafetensorsSource(tmp_path)
    load_weights(model, source, WEIGHT_MAP, dtype=torch.float16, device=torch.device("cpu"))
    assert isinstance(model.down_proj.method, TiledIntLinearMethod)
    assert num_tiled_layers(model, quantises_rows=True) == 0
    expected = TiledGroupedLinearMethod if native().isa in ISAS_OF_PAIRS else GroupedIntLinearMethod
    model = build(scheme_of(GPTQ), activations="auto")
    load(model, tmp_path)
    assert type(model.down_proj.method) is expected
    assert num_tiled_layers(model, quantises_rows=False) == 0 and num_tiled_layers(model, quantises_rows=True) == 0


def test_what_native_operators_compute_is_refused_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedError, match="activations 'int4' is not for hardware 'cpu'; choices: auto, int8"):
        CpuHardware().choosing(activations="int4")
    monkeypatch.setattr(hardware, "native", lambda: Absent("no compiler", is_wanted=False))
    with pytest.raises(UnsupportedError, match=r"'int8' needs the native operators of .*: no compiler; choices: auto"):
        CpuHardware().choosing(activations="int8")
    assert CpuHardware().choosing().activations == "auto"
