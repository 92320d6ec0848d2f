"""Weights alone of 4 and 8 bits: the operator's rule, and layers against the reference's method on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.one_scheme import OfOneScheme
from tests.unit.packed_toys import FORMATS, FUSED, GPTQ, WEIGHT_MAP, Toy, save, scheme_of

from trunnion.config import BuildContext
from trunnion.interfaces.collectives import ParallelGroup
from trunnion.interfaces.hardware import Hardware
from trunnion.layers.linear import ColumnParallelLinear
from trunnion.layers.vocab_embedding import ParallelLMHead
from trunnion.reference import ReferenceHardware
from trunnion.reference.grouped_int_methods import GroupedIntLinearMethod
from trunnion.weights.loader import load_weights
from trunnion.weights.safetensors_source import SafetensorsSource

simulator = pytest.importorskip("ascend_simulator")
import torch_npu  # noqa: E402

from trunnion_ascend.hardware import AscendHardware  # noqa: E402
from trunnion_ascend.packed_weights import PackedLinearMethod  # noqa: E402

HALVES = (torch.bfloat16, torch.float16)
CPU = torch.device("cpu")
OPERATOR = "aclnnWeightQuantBatchMatmulV2"


@pytest.fixture(scope="module", autouse=True)
def device() -> torch.device:
    return AscendHardware().initialize(0)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def calls() -> int:
    return int(simulator.simulation().calls[OPERATOR])


# The operator


def test_eight_values_lie_in_a_word_one_after_the_other() -> None:
    """The first in the lowest bits: op-plugin, ConvertWeightToINT4PackKernelNpuOpApi.cpp."""
    values = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7], [-8, -7, -6, -5, -4, -3, -2, -1]], dtype=torch.int32)
    packed = torch_npu.npu_convert_weight_to_int4pack(values.npu()).cpu()
    assert packed.tolist() == [[0x76543210], [0xFEDCBA98 - 2**32]]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [0, 32, 64])
def test_products_with_packed_weights(dtype: torch.dtype, bits: int, group: int) -> None:
    """(weight + offset) * scale, as the operator's document says; the last group of 64 is cut short."""
    x, limit = torch.randn(5, 160, dtype=dtype), 2 ** (bits - 1)
    values = torch.randint(-limit, limit, (160, 24))
    groups = -(-160 // group) if group else 1
    scale = (torch.rand(groups, 24) * 0.01 + 0.01).to(dtype)
    offset, bias = torch.randint(-limit, limit, (groups, 24)).to(dtype), torch.randn(24).to(dtype)
    wide_bias = bias.float() if dtype == torch.bfloat16 else bias
    weight = values.to(torch.int8).npu()
    if bits == 4:
        weight = torch_npu.npu_convert_weight_to_int4pack(values.int().npu())
    found = torch_npu.npu_weight_quant_batchmatmul(
        x.npu(), weight, scale.npu(), offset.npu(), bias=wide_bias.npu(), antiquant_group_size=group
    )
    of = torch.arange(160) // (group or 160)
    expected = x.double() @ ((values + offset.double()[of]) * scale.double()[of]) + bias.double()
    torch.testing.assert_close(found.cpu().double(), expected, rtol=0.01, atol=0.01 * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"antiquant_group_size": 48}, "antiquant_group_size"),
        ({"antiquant_group_size": 160}, "antiquant_group_size"),
        ({"antiquant_scale": torch.ones(3, 24, dtype=torch.float16)}, "scales"),
        ({"antiquant_offset": torch.ones(5, 23, dtype=torch.float16)}, "offsets"),
        ({"bias": torch.ones(24)}, "bias"),
    ],
    ids=["no multiple of 32", "all of the features", "scales", "offsets", "bias"],
)
def test_what_the_document_excludes_is_refused(change: dict[str, Any], message: str) -> None:
    operands: dict[str, Any] = {
        "x": torch.randn(5, 160, dtype=torch.float16),
        "weight": torch.zeros(160, 24, dtype=torch.int8),
        "antiquant_scale": torch.ones(5, 24, dtype=torch.float16),
        "antiquant_group_size": 32,
    }

    def run(**changed: Any) -> torch.Tensor:
        moved = {name: value.npu() if isinstance(value, torch.Tensor) else value for name, value in changed.items()}
        return torch_npu.npu_weight_quant_batchmatmul(**moved).cpu()

    run(**operands)
    with pytest.raises(RuntimeError, match=message):
        run(**(operands | change))


# Layers


def build(hardware: Hardware, name: str, dtype: torch.dtype, rank: int = 0, size: int = 1) -> Toy:
    parallel, quantization = ParallelGroup(rank=rank, size=size), OfOneScheme(scheme_of(FORMATS[name]))
    with torch.device("meta"):
        return Toy(BuildContext(hardware=hardware, dtype=dtype, parallel=parallel, quantization=quantization))


def load(model: Toy, folder: Path, dtype: torch.dtype, device: torch.device) -> Toy:
    load_weights(model, SafetensorsSource(folder), WEIGHT_MAP, dtype=dtype, device=device)
    return model


@torch.inference_mode()
def outputs(model: Toy, dtype: torch.dtype, device: torch.device) -> dict[str, torch.Tensor]:
    """What each layer makes of the same rows, on the CPU in float32."""
    generator, made = torch.Generator().manual_seed(1), {}
    for name in FUSED:
        layer = getattr(model, name)
        x = torch.randn(2, 3, layer.in_features, generator=generator).to(dtype).to(device)
        bias = torch.randn(layer.out_features, generator=generator).to(dtype).to(device)
        made[name] = layer.method.apply(layer, x, bias).float().cpu()
    return made


def assert_near(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float = 0.01) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=tolerance * float(value.abs().max()))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_layers_compute_what_the_reference_does(
    tmp_path: Path, device: torch.device, name: str, dtype: torch.dtype
) -> None:
    save(tmp_path, FORMATS[name])
    before = calls()
    found = outputs(load(build(AscendHardware(), name, dtype), tmp_path, dtype, device), dtype, device)
    assert calls() == before + len(FUSED)
    assert_near(found, outputs(load(build(ReferenceHardware(), name, dtype), tmp_path, dtype, CPU), dtype, CPU))


def test_shards_compute_what_the_reference_does(tmp_path: Path, device: torch.device) -> None:
    dtype = torch.bfloat16
    save(tmp_path, FORMATS["awq"])
    found = outputs(load(build(AscendHardware(), "awq", dtype, 1, 2), tmp_path, dtype, device), dtype, device)
    shard = load(build(ReferenceHardware(), "awq", dtype, 1, 2), tmp_path, dtype, CPU)
    assert_near(found, outputs(shard, dtype, CPU))


def addresses(model: Toy) -> dict[str, int]:
    tensors = [*model.named_buffers(), *model.named_parameters()]
    # Groups of features are read by nobody once features are sorted, nor are zero points once they are offsets.
    return {name: tensor.data_ptr() for name, tensor in tensors if not name.endswith(("g_idx", "qzeros", "zero_point"))}


@pytest.mark.parametrize("name", ["compressed", "gptq", "gptq-v2-ordered"])
def test_a_reload_is_laid_out_where_the_first_one_lies(tmp_path: Path, device: torch.device, name: str) -> None:
    dtype, (first, second) = torch.bfloat16, (tmp_path / "first", tmp_path / "second")
    for seed, folder in enumerate((first, second)):
        folder.mkdir()
        save(folder, FORMATS[name], seed)
    model = load(build(AscendHardware(), name, dtype), first, dtype, device)
    once, places = outputs(model, dtype, device), addresses(model)
    for layer in FUSED:
        getattr(model, layer).finalize()
    assert_near(outputs(model, dtype, device), once, 0)
    load(model, second, dtype, device)
    assert addresses(model) == places
    fresh = outputs(load(build(AscendHardware(), name, dtype), second, dtype, device), dtype, device)
    assert_near(outputs(model, dtype, device), fresh, 0)
    assert not torch.equal(fresh["down_proj"], once["down_proj"])


def test_no_second_copy_of_a_weight_stays(tmp_path: Path, device: torch.device) -> None:
    dtype = torch.bfloat16
    save(tmp_path, FORMATS["compressed"])
    torch.npu.synchronize()
    held = torch.npu.memory_allocated(device)
    model = load(build(AscendHardware(), "compressed", dtype), tmp_path, dtype, device)
    expected = sum(parameter.nbytes for parameter in model.parameters())
    # Blocks are of 512 bytes.
    assert torch.npu.memory_allocated(device) - held <= expected + 512 * len(list(model.parameters()))


def test_what_the_operator_does_not_take_is_the_references(tmp_path: Path, device: torch.device) -> None:
    """A model in float32, and a weight whose columns do not fill words."""
    save(tmp_path, GPTQ)
    before = calls()
    found = outputs(
        load(build(AscendHardware(), "gptq", torch.float32), tmp_path, torch.float32, device), torch.float32, device
    )
    expected = load(build(ReferenceHardware(), "gptq", torch.float32), tmp_path, torch.float32, CPU)
    assert_near(found, outputs(expected, torch.float32, CPU), 1e-5)
    quantization = OfOneScheme(scheme_of(FORMATS["gptq-8-rows"]))
    ctx = BuildContext(hardware=AscendHardware(), dtype=torch.bfloat16, quantization=quantization)
    layer = ColumnParallelLinear(64, 12, ctx=ctx, prefix="p").to(device)
    layer.qweight.fill_(130)
    layer.qzeros.fill_(128)
    layer.scales.fill_(0.5)
    layer.finalize()
    assert torch.equal(
        layer(torch.ones(3, 64, dtype=torch.bfloat16).to(device)).cpu().float(), torch.full((3, 12), 64.0)
    )
    assert calls() == before


def test_a_head_of_4_bits(device: torch.device) -> None:
    quantization = OfOneScheme(scheme_of(GPTQ))
    ctx = BuildContext(hardware=AscendHardware(), dtype=torch.float16, quantization=quantization)
    head = ParallelLMHead(24, 64, ctx=ctx, prefix="lm_head").to(device)
    head.qweight.fill_(0x98)
    head.qzeros.fill_(7)
    head.scales.fill_(0.5)
    head.finalize()
    before = calls()
    logits = head(torch.ones(2, 64, dtype=torch.float16).to(device))
    # Of each two values one is 8 and one is 9.
    assert calls() == before + 1 and torch.equal(logits.cpu().float(), torch.full((2, 24), 32 * 0.5 + 32 * 1.0))


@pytest.mark.parametrize(
    ("soc", "method"), [("Ascend910B3", PackedLinearMethod), ("Ascend310P3", GroupedIntLinearMethod)]
)
def test_chips_choose_methods(monkeypatch: pytest.MonkeyPatch, soc: str, method: type[GroupedIntLinearMethod]) -> None:
    monkeypatch.setattr(torch.npu, "get_device_name", lambda index=None: soc)
    assert type(AscendHardware().linear_method(scheme_of(GPTQ), "p")) is method
