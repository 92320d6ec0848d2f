"""Weights alone in 4 and 8 bits: tensors that do not add up to the config, and sizes that do not fill words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from trunnion.errors import UnsupportedError, WeightsError
from trunnion.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear

from .one_scheme import context
from .packed_toys import (
    AWQ,
    EXPERT_MAP,
    FORMATS,
    GPTQ,
    SIZES,
    Experts,
    build,
    change,
    compressed,
    load,
    save,
    save_experts,
    scheme_of,
)


def test_an_order_cannot_be_cut() -> None:
    with pytest.raises(UnsupportedError, match=r"down_proj: .*order.*g_idx.*cannot be cut.*choices: tp_size 1"):
        RowParallelLinear(256, 72, ctx=context(scheme_of(FORMATS["gptq-v2-ordered"]), 1, 2), prefix="down_proj")
    MergedColumnParallelLinear(160, [128], part_names=("",), ctx=context(scheme_of(FORMATS["gptq-v2-ordered"]), 1, 2),
                               prefix="up_proj")  # fmt: skip


def test_parts_of_one_layer_have_one_order(tmp_path: Path) -> None:
    save(tmp_path, FORMATS["gptq-v2-ordered"])
    groups = load_file(tmp_path / "model.safetensors")["k_proj.g_idx"]
    change(tmp_path, k_proj__g_idx=groups.flip(0).contiguous())
    with pytest.raises(UnsupportedError, match=r"qkv_proj\.g_idx: qkv_proj is one layer here"):
        load(build(scheme_of(FORMATS["gptq-v2-ordered"])), tmp_path)


@pytest.mark.parametrize("value", [0, 9, -7])
def test_groups_have_the_size_that_the_config_says(tmp_path: Path, value: int) -> None:
    save(tmp_path, FORMATS["gptq-v2-ordered"])
    groups = load_file(tmp_path / "model.safetensors")["down_proj.g_idx"]
    groups[groups == 3] = value
    change(tmp_path, down_proj__g_idx=groups)
    with pytest.raises(WeightsError, match=r"down_proj\.g_idx: expected groups of 32 features each"):
        load(build(scheme_of(FORMATS["gptq-v2-ordered"])), tmp_path)


def test_a_bias_of_zeros_is_no_bias(tmp_path: Path) -> None:
    save(tmp_path, GPTQ)
    report = load(build(scheme_of(GPTQ)), tmp_path)
    assert {name for name in report.known if name.endswith("bias")} == {f"{name}.bias" for name in SIZES}
    assert any("hold what they must" in line for line in report.lines())
    change(tmp_path, k_proj__bias=torch.tensor([0.0] * 47 + [0.5]))
    with pytest.raises(WeightsError, match=r"k_proj\.bias: expected zeros, since the model has no bias there"):
        load(build(scheme_of(GPTQ)), tmp_path)


@pytest.mark.parametrize(
    ("settings", "tensors", "expected"),
    [
        (GPTQ, {"q_proj__g_idx": torch.arange(160, dtype=torch.int32) % 5},
         r"q_proj\.g_idx: expected runs of 32 neighbours.*desc_act"),
        (compressed(), {"v_proj__weight_shape": torch.tensor([48, 159])},
         r"v_proj\.weight_shape: expected \[48, 160\]"),
        (GPTQ, {"q_proj__qweight": torch.zeros(40, 96, dtype=torch.int32)},
         r"wrong shape: q_proj.qweight \[40, 96\] \(the model wants \[20, 96\]\)"),
        (AWQ, {"q_proj__scales": torch.zeros(96, 5)}, r"q_proj.scales \[96, 5\] \(the model wants \[5, 96\]\)"),
        (AWQ, {"q_proj__qzeros": torch.zeros(5, 12)}, "wrong dtype: q_proj.qzeros .F32 for int32: unquantised"),
        (AWQ, {"q_proj__qweight": torch.zeros(160, 12)}, "wrong dtype: q_proj.qweight .F32 for int32: unquantised"),
        (AWQ, {"q_proj__g_idx": torch.zeros(160, dtype=torch.int32)}, "1 unexpected: q_proj.g_idx"),
        (compressed(), {"q_proj__weight_zero_point": torch.zeros(12, 5, dtype=torch.int32)},
         "1 unexpected: q_proj.weight_zero_point"),
        (compressed(), {"q_proj__weight": torch.zeros(96, 160)}, "1 unexpected: q_proj.weight"),
    ],
)  # fmt: skip
def test_tensors_add_up(
    tmp_path: Path, settings: dict[str, Any], tensors: dict[str, torch.Tensor], expected: str
) -> None:
    save(tmp_path, settings)
    change(tmp_path, **tensors)
    with pytest.raises(WeightsError, match=expected):
        load(build(scheme_of(settings)), tmp_path)


@pytest.mark.parametrize("leaf", ["qweight", "qzeros", "scales"])
def test_a_missing_tensor_is_named_as_the_checkpoint_would(tmp_path: Path, leaf: str) -> None:
    save(tmp_path, AWQ)
    stored = load_file(tmp_path / "model.safetensors")
    del stored[f"up_proj.{leaf}"]
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=rf"1 missing: up_proj\.{leaf}"):
        load(build(scheme_of(AWQ)), tmp_path)


def test_what_does_not_fill_words_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"p: out_features 100 of 4 bits.*choices: multiples of 8"):
        RowParallelLinear(256, 100, ctx=context(scheme_of(AWQ)), prefix="p")
    with pytest.raises(UnsupportedError, match=r"p\[k\]: out_features 42 of 8 bits.*choices: multiples of 4"):
        QKVParallelLinear(64, 21, 4, 2, ctx=context(scheme_of(GPTQ | {"bits": 8})), prefix="p")


def test_experts_in_an_order_of_the_checkpoint_s_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"mlp\.experts: experts whose features.*g_idx.*choices"):
        Experts(context(scheme_of(FORMATS["gptq-v2-ordered"])))


def test_biases_of_experts_are_zeros(tmp_path: Path) -> None:
    save_experts(tmp_path, GPTQ)
    change(tmp_path, mlp__experts__1__down_proj__bias=torch.ones(64))
    with torch.device("meta"):
        model = Experts(context(scheme_of(GPTQ)))
    with pytest.raises(WeightsError, match=r"experts\.1\.down_proj\.bias: expected zeros"):
        load(model, tmp_path, EXPERT_MAP)
