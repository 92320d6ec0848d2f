"""torch_npu's quantised products and fractal weights on the simulated NPU, against exact sums and plain copies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hardware.ascend.tests.near import assert_near
from hardware.ascend.tests.simulated import SIMULATION
from torch.nn import functional

torch_npu = pytest.importorskip("torch_npu")

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def test_quantised_products_are_exact_before_they_are_scaled() -> None:
    x, weight = torch.randn(5, 64, dtype=BF16), torch.randint(-127, 128, (64, 32), dtype=torch.int8)
    scale, bias = torch.rand(32, dtype=BF16), torch.randint(-1000, 1000, (32,), dtype=torch.int32)
    values, token_scale = torch_npu.npu_dynamic_quant(x.npu())
    expected_scale = x.float().abs().amax(-1) / 127
    assert_near(token_scale, expected_scale, 1e-6)
    assert torch.equal(values.cpu(), (x.float() / expected_scale[:, None]).round().to(torch.int8))
    found = torch_npu.npu_quant_matmul(
        values, weight.npu(), scale.npu(), pertoken_scale=token_scale, bias=bias.npu(), output_dtype=BF16
    )
    product = values.cpu().long() @ weight.long() + bias
    assert_near(found, product * scale.double() * expected_scale.double()[:, None], 0.01)


@pytest.mark.parametrize("axis", [-1, 0])
def test_quantising_by_scales_that_are_given(axis: int) -> None:
    x, scales = torch.randn(5, 7) * 3, torch.rand(7 if axis == -1 else 5) * 0.01 + 0.005
    divisor = scales if axis == -1 else scales[:, None]
    found = torch_npu.npu_quantize(x.npu(), scales.npu(), None, torch.qint8, axis, True)
    assert torch.equal(found.cpu(), (x / divisor).round().clamp(-128, 127).to(torch.int8))


def test_a_packed_scale_is_the_scale_but_for_its_last_bits() -> None:
    values, weight = torch.randint(-9, 9, (4, 32), dtype=torch.int8), torch.randint(-9, 9, (32, 16), dtype=torch.int8)
    scale = torch.rand(16)
    packed = torch_npu.npu_trans_quant_param(scale.npu())
    found = torch_npu.npu_quant_matmul(values.npu(), weight.npu(), packed, output_dtype=torch.float16)
    assert packed.dtype == torch.int64
    assert_near(found, (values.long() @ weight.long()) * scale.double(), 0.01)


@pytest.fixture
def internal() -> Iterator[None]:
    """Layouts that are not rows are allowed, which torch_npu's default for these cards is not."""
    torch.npu.config.allow_internal_format = True
    yield
    torch.npu.config.allow_internal_format = False


@pytest.mark.parametrize("dtype", [BF16, torch.int8, torch.float32])
@pytest.mark.parametrize("sizes", [(64, 96), (33, 17), (3, 33, 17)], ids=str)
def test_the_fractal_layout_and_back(internal: None, dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    matrix = torch.randint(-99, 99, sizes).to(dtype)
    fractal = torch_npu.npu_format_cast(matrix.npu(), 29)
    assert int(torch_npu.get_npu_format(fractal)) == 29
    assert torch.equal(torch_npu.npu_format_cast(fractal, 2).cpu(), matrix)


def test_a_fractal_weight_multiplies_as_it_did(internal: None) -> None:
    x, weight = torch.randn(5, 64, dtype=BF16).npu(), torch.randn(64, 96, dtype=BF16).npu()
    ran = SIMULATION.calls["aclnnMatmulWeightNz"]
    assert torch.equal(x @ torch_npu.npu_format_cast(weight, 29), x @ weight)
    assert SIMULATION.calls["aclnnMatmulWeightNz"] == ran + 1


@pytest.mark.parametrize("sizes", [(96, 64), (33, 20)], ids=str)
def test_a_fractal_weight_is_transposed_by_its_view(internal: None, sizes: tuple[int, int]) -> None:
    """As `torch.nn.functional.linear` multiplies."""
    x, weight = torch.randn(5, sizes[1], dtype=BF16).npu(), torch.randn(sizes, dtype=BF16).npu()
    ran = SIMULATION.calls["aclnnMatmulWeightNz"]
    assert torch.equal(functional.linear(x, torch_npu.npu_format_cast(weight, 29)), functional.linear(x, weight))
    assert SIMULATION.calls["aclnnMatmulWeightNz"] == ran + 1


def test_the_fractal_layout_is_not_rows(internal: None) -> None:
    """Its memory, seen as rows, is what the document's picture says: blocks of 16 by 16, columns of blocks first."""
    matrix = torch.arange(32 * 32, dtype=torch.float16).view(32, 32)
    address = torch_npu.npu_format_cast(matrix.npu(), 29).untyped_storage().data_ptr()
    # The simulated device's memory is the host's.
    memory = torch._C._construct_storage_from_data_pointer(address, torch.device("cpu"), matrix.nbytes)
    found = torch.empty(0, dtype=torch.float16).set_(memory, 0, (1024,), (1,))
    blocks = [matrix[row : row + 16, column : column + 16].flatten() for column in (0, 16) for row in (0, 16)]
    assert torch.equal(found, torch.cat(blocks))


def test_without_internal_formats_a_cast_does_nothing() -> None:
    assert int(torch_npu.get_npu_format(torch_npu.npu_format_cast(torch.ones(32, 32).npu(), 29))) == 2
