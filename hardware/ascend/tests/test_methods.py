"""Weights as methods lay them out: results, reloads, memory, shards; against the reference's methods on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.unit.one_scheme import OfOneScheme
from tests.unit.test_quantised_checkpoints import WEIGHT_MAP, Toy, save
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trunnion.config import BuildContext
from trunnion.interfaces.collectives import ParallelGroup
from trunnion.interfaces.hardware import Hardware
from trunnion.interfaces.methods import LinearMethod
from trunnion.interfaces.quantization import W8A8, Activations, Scheme
from trunnion.layers.linear import ColumnParallelLinear
from trunnion.layers.vocab_embedding import ParallelLMHead, VocabParallelEmbedding
from trunnion.ops.registry import OPERATORS
from trunnion.reference import ReferenceHardware
from trunnion.weights.loader import load_weights
from trunnion.weights.safetensors_source import SafetensorsSource

simulator = pytest.importorskip("ascend_simulator")
from trunnion_ascend.fractal import is_fractal  # noqa: E402
from trunnion_ascend.hardware import AscendHardware  # noqa: E402
from trunnion_ascend.methods import FractalLinearMethod, Int8LinearMethod  # noqa: E402

INT8 = W8A8(dtype=torch.int8)
HALVES = (torch.bfloat16, torch.float16)
LAYERS = ("qkv_proj", "gate_up_proj", "down_proj")


@pytest.fixture(scope="module", autouse=True)
def device() -> torch.device:
    return AscendHardware().initialize(0)


@pytest.fixture(autouse=True)
def fresh_counts() -> None:
    torch.manual_seed(0)
    OPERATORS.reset_declined()


def build(hardware: Hardware, dtype: torch.dtype, scheme: Scheme = INT8, rank: int = 0, size: int = 1) -> Toy:
    parallel = ParallelGroup(rank=rank, size=size)
    with torch.device("meta"):
        return Toy(BuildContext(hardware=hardware, dtype=dtype, parallel=parallel, quantization=OfOneScheme(scheme)))


def load(model: Toy, folder: Path, dtype: torch.dtype, device: torch.device) -> Toy:
    load_weights(model, SafetensorsSource(folder), WEIGHT_MAP, dtype=dtype, device=device)
    return model


def checkpoint(folder: Path, *, scale: float = 1.0, scheme: W8A8 = INT8) -> Path:
    """Of `Toy`; another `scale` makes another one."""
    folder.mkdir(exist_ok=True)
    save(folder, scheme)
    path = folder / "model.safetensors"
    stored = load_file(path)
    for name, tensor in stored.items():
        if name.endswith("weight_scale"):
            # Of the size that keeps results near one, and each channel's its own by far.
            stored[name] = tensor * 0.002 * scale
        elif name.endswith("weight") and scale != 1.0:
            stored[name] = tensor.flip(0).contiguous()
    save_file(stored, path)
    return folder


@torch.inference_mode()
def outputs(model: Toy, dtype: torch.dtype, device: torch.device) -> dict[str, torch.Tensor]:
    """What each layer makes of the same rows, on the CPU in float32."""
    generator = torch.Generator().manual_seed(1)

    def rows(size: int) -> torch.Tensor:
        return torch.randn(7, size, generator=generator).to(dtype).to(device)

    found = {name: getattr(model, name) for name in LAYERS}
    made = {name: layer.method.apply(layer, rows(layer.in_features), layer.bias) for name, layer in found.items()}
    experts, weights = model.mlp.experts, torch.rand(7, 1, generator=generator).to(device)
    ids = torch.randint(0, 2, (7, 1), generator=generator).to(device)
    made["experts"] = experts.method.apply(experts, rows(136), weights, ids)
    return {name: value.float().cpu() for name, value in made.items()}


def parameters(model: Toy) -> dict[str, nn.Parameter]:
    """The weights that are multiplied by."""
    return {name: value for name, value in model.named_parameters() if name.endswith((".weight", ".w13", ".w2"))}


def addresses(model: Toy) -> dict[str, int]:
    tensors = [*parameters(model).items(), *model.named_buffers()]
    return {name: tensor.data_ptr() for name, tensor in tensors if tensor is not None}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(("rank", "size"), [(0, 1), (1, 2)], ids=["whole", "shard"])
@pytest.mark.parametrize("scheme", [INT8, W8A8(dtype=torch.int8, per_row=False)], ids=["rows", "tensor"])
def test_layers_of_int8_compute_what_the_reference_does(
    tmp_path: Path, device: torch.device, dtype: torch.dtype, rank: int, size: int, scheme: W8A8
) -> None:
    folder = checkpoint(tmp_path, scheme=scheme)
    calls = simulator.simulation().calls
    before = calls.copy()
    model = load(build(AscendHardware(), dtype, scheme, rank, size), folder, dtype, device)
    assert all(is_fractal(weight) for weight in parameters(model).values())
    found = outputs(model, dtype, device)
    cpu = torch.device("cpu")
    reference = load(build(ReferenceHardware(), dtype, scheme, rank, size), folder, dtype, cpu)
    expected = outputs(reference, dtype, cpu)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0.02, atol=0.02 * value.abs().max().item())
    ran = calls - before
    assert ran["aclnnQuantMatmulWeightNz"] == 3 and ran["aclnnGroupedMatmulWeightNz"] == 2
    assert OPERATORS.declined() == {}


def test_a_static_scale_is_used_with_a_fractal_weight(tmp_path: Path, device: torch.device) -> None:
    scheme = W8A8(dtype=torch.int8, activations=Activations.STATIC)
    context = BuildContext(hardware=AscendHardware(), dtype=torch.bfloat16, quantization=OfOneScheme(scheme))
    layer = ColumnParallelLinear(40, 56, ctx=context, prefix="p").to(device)
    weight, scale = torch.randint(-127, 128, (56, 40), dtype=torch.int8), torch.rand(56) * 0.003 + 0.0005
    layer.weight.copy_(weight)
    layer.weight_scale.copy_(scale)
    layer.input_scale.copy_(torch.tensor([0.03]))
    layer.finalize()
    x = torch.randn(5, 40, dtype=torch.bfloat16)
    expected = OPERATORS.reference("w8a8_linear")(x, weight, scale, torch.tensor([0.03]), None)
    torch.testing.assert_close(layer(x.to(device)).cpu(), expected, rtol=0.02, atol=0.02)
    layer.input_scale.copy_(torch.tensor([0.3]))
    layer.finalize()
    expected = OPERATORS.reference("w8a8_linear")(x, weight, scale, torch.tensor([0.3]), None)
    torch.testing.assert_close(layer(x.to(device)).cpu(), expected, rtol=0.02, atol=0.02)


class Dispatched(TorchDispatchMode):
    """Operators that are called within."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


def test_layers_are_laid_out_once(tmp_path: Path, device: torch.device) -> None:
    """A second `finalize` asks how the weights lie, and does nothing: results and addresses stay."""
    dtype = torch.bfloat16
    model = load(build(AscendHardware(), dtype), checkpoint(tmp_path), dtype, device)
    expected, places, weights = outputs(model, dtype, device), addresses(model), parameters(model)
    with Dispatched() as dispatched:
        for layer in (*(getattr(model, name) for name in LAYERS), model.mlp.experts):
            layer.finalize()
    assert dispatched.names == {"npu.get_npu_format.default"}
    assert addresses(model) == places and all(value is weights[name] for name, value in parameters(model).items())
    for name, value in outputs(model, dtype, device).items():
        assert torch.equal(value, expected[name]), name


def test_another_load_is_laid_out_where_the_first_one_lies(tmp_path: Path, device: torch.device) -> None:
    dtype = torch.float16
    first, second = checkpoint(tmp_path / "first"), checkpoint(tmp_path / "second", scale=0.7)
    model = load(build(AscendHardware(), dtype), first, dtype, device)
    expected_first, places = outputs(model, dtype, device), addresses(model)
    torch.npu.synchronize()
    held = torch.npu.memory_allocated(device)
    load(model, second, dtype, device)
    found = outputs(model, dtype, device)
    assert torch.npu.memory_allocated(device) <= held, "a second copy of the weights stays"
    assert addresses(model) == places
    fresh = outputs(load(build(AscendHardware(), dtype), second, dtype, device), dtype, device)
    for name, value in found.items():
        assert torch.equal(value, fresh[name]) and not torch.equal(value, expected_first[name]), name
    load(model, first, dtype, device)
    for name, value in outputs(model, dtype, device).items():
        assert torch.equal(value, expected_first[name]), name


def test_no_second_copy_of_a_weight_stays(tmp_path: Path, device: torch.device) -> None:
    """Beyond what padding adds to the fractal layout."""
    dtype = torch.bfloat16
    torch.npu.synchronize()
    held = torch.npu.memory_allocated(device)
    model = load(build(AscendHardware(), dtype), checkpoint(tmp_path), dtype, device)
    expected = sum(parameter.nbytes for parameter in model.parameters())
    assert torch.npu.memory_allocated(device) - held < 1.25 * expected


def test_what_the_operators_do_not_take_stays_in_rows(tmp_path: Path, device: torch.device) -> None:
    """A model in float32: declined with the reason, as the reference computes it."""
    dtype, cpu = torch.float32, torch.device("cpu")
    model = load(build(AscendHardware(), dtype), checkpoint(tmp_path), dtype, device)
    assert not any(is_fractal(weight) for weight in parameters(model).values())
    expected = outputs(load(build(ReferenceHardware(), dtype), tmp_path, dtype, cpu), dtype, cpu)
    for name, value in outputs(model, dtype, device).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-5)
    assert {name for name, _ in OPERATORS.declined()} == {"w8a8_linear", "w8a8_experts"}


class NeedsFractal(AscendHardware):
    """As on a chip whose products need it."""

    def linear_method(self, scheme: Scheme | None, prefix: str) -> LinearMethod:
        return FractalLinearMethod()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_dense_weight_is_fractal_where_it_must(device: torch.device, dtype: torch.dtype) -> None:
    layer = ColumnParallelLinear(40, 33, ctx=BuildContext(hardware=NeedsFractal(), dtype=dtype), prefix="p").to(device)
    weight, x = torch.randn(33, 40).to(dtype), torch.randn(5, 40).to(dtype)
    layer.weight.data.copy_(weight)
    layer.finalize()
    place = layer.weight.data_ptr()
    layer.finalize()
    assert is_fractal(layer.weight) and layer.weight.data_ptr() == place and layer.weight.shape == (33, 40)
    calls = simulator.simulation().calls
    ran = calls["aclnnMatmulWeightNz"]
    torch.testing.assert_close(layer(x.to(device)).cpu(), nn.functional.linear(x, weight), rtol=0.01, atol=0.01)
    assert calls["aclnnMatmulWeightNz"] == ran + 1


def test_whose_rows_are_read_stays_in_rows(device: torch.device) -> None:
    """The head that shares the embedding's weight, and layers whose weight is multiplied with otherwise."""
    context = BuildContext(hardware=NeedsFractal(), dtype=torch.bfloat16)
    head = ParallelLMHead(131, 16, ctx=context, prefix="lm_head")
    embedding = VocabParallelEmbedding(131, 16, ctx=context, prefix="embed_tokens").to(device)
    head.tie_to(embedding)
    head.finalize()
    assert head.weight is embedding.weight and not is_fractal(embedding.weight)
    layer = ColumnParallelLinear(32, 32, ctx=context, prefix="p").to(device)
    layer.keeps_dense_weight = True
    layer.finalize()
    assert not is_fractal(layer.dense_weight())


@pytest.mark.parametrize(("soc", "linear"), [("Ascend910B3", None), ("Ascend310P3", FractalLinearMethod)])
def test_chips_choose_methods(monkeypatch: pytest.MonkeyPatch, soc: str, linear: type[LinearMethod] | None) -> None:
    monkeypatch.setattr(torch.npu, "get_device_name", lambda index=None: soc)
    hardware = AscendHardware()
    found = hardware.linear_method(None, "p")
    assert type(found) is (linear or type(ReferenceHardware().linear_method(None, "p")))
    assert isinstance(hardware.linear_method(INT8, "p"), Int8LinearMethod) == (linear is None)
