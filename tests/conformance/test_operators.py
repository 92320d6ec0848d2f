"""Every operator on the device of the package under test against its reference on the CPU, at odd sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from trunnion.interfaces.hardware import Hardware
from trunnion.ops.registry import OPERATORS

SIZES = (0, 1, 7, 63)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
Noise = Callable[..., torch.Tensor]
Arguments = list[object]


def _rope_table(positions: int, rotary_dim: int) -> torch.Tensor:
    angles = torch.arange(positions).unsqueeze(1) * torch.rand(rotary_dim // 2)
    return torch.cat((angles.cos(), angles.sin()), dim=1)


def _rotary(noise: Noise, rows: int, rotary_dim: int, interleaved: bool) -> Arguments:
    positions = torch.randint(0, 50, (rows,), dtype=torch.int32)
    return [noise(rows, 3, 16), noise(rows, 1, 16), positions, _rope_table(50, rotary_dim), interleaved]


def _mrope(noise: Noise, rows: int, section: list[int]) -> Arguments:
    positions = torch.randint(0, 50, (rows, 3), dtype=torch.int32)
    return [noise(rows, 3, 16), noise(rows, 1, 16), positions, _rope_table(50, 2 * sum(section)), section]


def _ids(count: int, least: int, end: int) -> torch.Tensor:
    return torch.randint(least, end, (count,), dtype=torch.int32)


def _logits(rows: int, experts: int) -> torch.Tensor:
    """No two experts close enough for rounding to choose."""
    order = torch.argsort(torch.rand(rows, experts), dim=1)
    return order.float() * 0.37 - 1.0


def _biases(experts: int) -> torch.Tensor:
    """They lift the experts that have low scores, and some sums of score and bias lie below 0."""
    return torch.linspace(0.9, -0.9, experts)[torch.randperm(experts)]


def _experts(noise: Noise, rows: int) -> Arguments:
    """The last expert gets no token. Products are of the size of what they are made from, as roundings between them."""
    weights = torch.rand(rows, 2)
    ids = torch.rand(rows, 4).argsort(dim=1)[:, :2].contiguous()
    return [noise(rows, 16), noise(5, 14, 16) * 0.25, noise(5, 16, 7) * 0.5, weights, ids]


E4M3 = torch.float8_e4m3fn


def _codes(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return (torch.randn(*shape) * 40).to(dtype)


def _scales(*shape: int) -> torch.Tensor:
    """Products of such codes are of the size of what they are multiplied by."""
    return torch.rand(*shape) * 0.003 + 0.0005


def _blocks(noise: Noise, rows: int, features: int, block: tuple[int, int], bias: bool) -> Arguments:
    scale = _scales(-(-200 // block[0]), -(-features // block[1]))
    return [noise(rows, features), _codes(E4M3, 200, features), scale, noise(200) if bias else None, *block]


def _w8a8(noise: Noise, rows: int, dtype: torch.dtype, static: bool, bias: bool) -> Arguments:
    input_scale = torch.tensor([2.0 / 127]) if static else None
    return [noise(rows, 72), _codes(dtype, 40, 72), _scales(40), input_scale, noise(40) if bias else None]


def _block_experts(noise: Noise, rows: int, inner: int, w13_rows: int, w2_columns: int) -> Arguments:
    _, _, _, *routing = _experts(noise, rows)
    w13, w2 = _codes(E4M3, 5, 2 * inner, 144), _codes(E4M3, 5, 144, inner)
    w13_scale, w2_scale = _scales(5, -(-2 * inner // w13_rows), 2), _scales(5, 2, -(-inner // w2_columns))
    return [noise(rows, 144), w13, w13_scale, w2, w2_scale, *routing, w13_rows, w2_columns]


def _w8a8_experts(noise: Noise, rows: int, dtype: torch.dtype) -> Arguments:
    _, _, _, *routing = _experts(noise, rows)
    w13, w2 = _codes(dtype, 5, 80, 72), _codes(dtype, 5, 72, 40)
    return [noise(rows, 72), w13, _scales(5, 80), w2, _scales(5, 72), *routing]


def _grouped_int(
    noise: Noise, rows: int, bits: int, features: int, group: int, zeros: bool = False, bias: bool = False
) -> Arguments:
    groups = -(-features // group)
    weight = torch.randint(0, 256, (40, features * bits // 8), dtype=torch.uint8)
    # Products are of the size of what they are made from.
    scales = (noise(40, groups).abs() + 0.1) * 2.0 ** (-bits)
    zero_points = torch.randint(0, 2**bits, (40, groups), dtype=torch.uint8) if zeros else None
    return [noise(rows, features) * 0.1, weight, scales, zero_points, noise(40) if bias else None, bits, group]


def _grouped_int_experts(noise: Noise, rows: int, bits: int, zeros: bool) -> Arguments:
    _, _, _, *routing = _experts(noise, rows)

    def weight(size: tuple[int, int], group: int) -> Arguments:
        packed, groups = (size[0], size[1] * bits // 8), (size[0], -(-size[1] // group))
        zero_points = torch.randint(0, 2**bits, (5, *groups), dtype=torch.uint8) if zeros else None
        scales = (noise(5, *groups).abs() + 0.1) * 2.0 ** (-bits)
        return [torch.randint(0, 256, (5, *packed), dtype=torch.uint8), scales, zero_points]

    return [noise(rows, 96) * 0.1, *weight((80, 96), 32), *weight((96, 40), 40), *routing, bits, 32, 40]


def _delta_rule(noise: Noise, rows: int) -> Arguments:
    shape = (2, rows)
    decay = -torch.rand(*shape, 4)
    return [noise(*shape, 2, 8), noise(*shape, 2, 8), noise(*shape, 4, 6), decay, torch.rand(*shape, 4), _state()]


def _state() -> torch.Tensor:
    return torch.randn(2, 4, 8, 6)


CASES: dict[str, dict[str, Callable[[Noise, int], Arguments]]] = {
    "rms_norm": {
        "plain": lambda noise, rows: [noise(rows, 24), noise(24), 1e-6, False],
        "unit-offset": lambda noise, rows: [noise(rows, 24), noise(24), 1e-6, True],
        "heads": lambda noise, rows: [noise(rows, 3, 16), noise(16), 1e-5, False],
    },
    "fused_add_rms_norm": {
        "plain": lambda noise, rows: [noise(rows, 24), noise(rows, 24), noise(24), 1e-6, False],
        "unit-offset": lambda noise, rows: [noise(rows, 24), noise(rows, 24), noise(24), 1e-6, True],
    },
    "rms_norm_gated": {"plain": lambda noise, rows: [noise(rows, 3, 8), noise(rows, 3, 8), noise(8), 1e-6]},
    "rotary_embedding": {
        "halves": lambda noise, rows: _rotary(noise, rows, 16, False),
        "interleaved": lambda noise, rows: _rotary(noise, rows, 16, True),
        "partial": lambda noise, rows: _rotary(noise, rows, 6, False),
    },
    "mrope_embedding": {
        "one-run-each": lambda noise, rows: _mrope(noise, rows, [2, 3, 3]),
        "twice-in-turn": lambda noise, rows: _mrope(noise, rows, [1, 2, 1, 2, 1, 1]),
    },
    "take_sampled": {"plain": lambda noise, rows: [_ids(rows, -5, 40), _ids(5, 0, 40)]},
    "silu_and_mul": {"plain": lambda noise, rows: [noise(rows, 22)]},
    "gelu_tanh_and_mul": {"plain": lambda noise, rows: [noise(rows, 22)]},
    "topk_softmax": {
        "plain": lambda noise, rows: [_logits(rows, 6), 2, False],
        "renormalised": lambda noise, rows: [_logits(rows, 6), 3, True],
    },
    "grouped_topk": {"plain": lambda noise, rows: [_logits(rows, 8), 3, 4, 2, False]},
    "biased_grouped_topk": {
        "plain": lambda noise, rows: [_logits(rows, 12), _biases(12), 3, 4, 2, False],
        "renormalised": lambda noise, rows: [_logits(rows, 12), _biases(12), 3, 4, 2, True],
        "one-group": lambda noise, rows: [_logits(rows, 7), _biases(7), 3, 1, 1, True],
    },
    "fused_experts": {
        "plain": _experts,
        "biases": lambda noise, rows: [*_experts(noise, rows), noise(5, 14), noise(5, 16)],
        "bias-of-another-rank": lambda noise, rows: [*_experts(noise, rows), noise(5, 14), None],
        "clamped": lambda noise, rows: [*_experts(noise, rows), None, None, 1.702, 0.5],
        "biases-clamped": lambda noise, rows: [*_experts(noise, rows), noise(5, 14), noise(5, 16), 1.3, 0.7],
    },
    "block_fp8_linear": {
        "plain": lambda noise, rows: _blocks(noise, rows, 272, (128, 128), False),
        "cut-bias": lambda noise, rows: _blocks(noise, rows, 96, (8, 32), True),
    },
    "w8a8_linear": {
        "int8": lambda noise, rows: _w8a8(noise, rows, torch.int8, False, True),
        "int8-static": lambda noise, rows: _w8a8(noise, rows, torch.int8, True, False),
        "fp8": lambda noise, rows: _w8a8(noise, rows, E4M3, False, False),
        "fp8-static": lambda noise, rows: _w8a8(noise, rows, E4M3, True, True),
    },
    "block_fp8_experts": {
        "plain": lambda noise, rows: _block_experts(noise, rows, 128, 128, 128),
        "cut": lambda noise, rows: _block_experts(noise, rows, 96, 32, 32),
    },
    "w8a8_experts": {
        "int8": lambda noise, rows: _w8a8_experts(noise, rows, torch.int8),
        "fp8": lambda noise, rows: _w8a8_experts(noise, rows, E4M3),
    },
    "grouped_int_linear": {
        "4-bits": lambda noise, rows: _grouped_int(noise, rows, 4, 192, 64),
        "4-bits-zeros": lambda noise, rows: _grouped_int(noise, rows, 4, 160, 32, zeros=True, bias=True),
        "4-bits-short": lambda noise, rows: _grouped_int(noise, rows, 4, 152, 128, zeros=True),
        "4-bits-rows": lambda noise, rows: _grouped_int(noise, rows, 4, 88, 88, bias=True),
        "8-bits": lambda noise, rows: _grouped_int(noise, rows, 8, 96, 32),
        "8-bits-zeros": lambda noise, rows: _grouped_int(noise, rows, 8, 72, 72, zeros=True),
    },
    "grouped_int_experts": {
        "4-bits": lambda noise, rows: _grouped_int_experts(noise, rows, 4, False),
        "8-bits-zeros": lambda noise, rows: _grouped_int_experts(noise, rows, 8, True),
    },
    "causal_conv1d_silu": {
        "plain": lambda noise, rows: [noise(2, rows + 1, 10), noise(2, 10, 3), noise(10, 4), None],
        "bias": lambda noise, rows: [noise(2, rows + 1, 10), noise(2, 10, 3), noise(10, 4), noise(10)],
    },
    "gated_delta_rule": {"plain": _delta_rule},
}

RUNS = [
    pytest.param(name, build, dtype, rows, id=f"{name}-{case}-{str(dtype).removeprefix('torch.')}-{rows}")
    for name, cases in CASES.items()
    for case, build in cases.items()
    for dtype in TOLERANCE
    for rows in SIZES
]


def test_every_operator_has_a_case() -> None:
    """A new operator is not covered by accident."""
    assert set(CASES) == set(OPERATORS.names())


@pytest.mark.parametrize(("name", "build", "dtype", "rows"), RUNS)
def test_operator_equals_reference(
    hardware: Hardware, name: str, build: Callable[[Noise, int], Arguments], dtype: torch.dtype, rows: int
) -> None:
    """Values, shapes, dtypes; the arguments are left as they were."""
    device = hardware.initialize(0)
    torch.manual_seed(rows + 5)
    arguments = build(lambda *shape: torch.randn(*shape).to(dtype), rows)
    moved = [value.to(device) if isinstance(value, torch.Tensor) else value for value in arguments]
    before = [value.clone() if isinstance(value, torch.Tensor) else value for value in moved]
    with torch.inference_mode():
        expected = OPERATORS.reference(name)(*arguments)
        actual = getattr(getattr(torch.ops, OPERATORS.namespace), name)(*moved)
    for want, got in zip(_tuple(expected), _tuple(actual), strict=True):
        assert got.device.type == device.type
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(got.cpu(), want, rtol=tolerance, atol=tolerance)
    for was, value in zip(before, moved, strict=True):
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(value, was, rtol=0, atol=0)


def _tuple(value: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)
