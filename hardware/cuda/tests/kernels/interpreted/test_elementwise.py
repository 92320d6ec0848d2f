"""Activations, rotary embeddings, the cache write, sampled ids and padding in the interpreter against the reference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from trunnion.ops import registry
from trunnion_cuda.kernels import activation, rotary_embedding, sampled_ids

REFERENCE = registry.OPERATORS.reference
CLOSE = {torch.float32: {"rtol": 1e-5, "atol": 1e-5}, torch.bfloat16: {"rtol": 2e-2, "atol": 1e-2}}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
Randn = Callable[..., torch.Tensor]


@DTYPES
@pytest.mark.parametrize("shape", [(3, 2), (7, 126), (2, 2200), (0, 8), (2, 3, 10), (6,)], ids=str)
def test_gated_activations(randn: Randn, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = 3 * randn(*shape, dtype=dtype)
    for name, kernel in activation.kernels().items():
        torch.testing.assert_close(kernel(x), REFERENCE(name)(x), **CLOSE[dtype])


def test_activation_of_columns_of_a_wider_tensor(randn: Randn) -> None:
    x = randn(5, 40)[:, 7:21]
    torch.testing.assert_close(activation.silu_and_mul(x), REFERENCE("silu_and_mul")(x))


def table(rotary_dim: int, positions: int = 50) -> torch.Tensor:
    angles = torch.outer(torch.arange(positions).float(), 100.0 ** -(torch.arange(0, rotary_dim, 2) / rotary_dim))
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


@DTYPES
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rotary_dim"), [(1, 1, 2, 2), (5, 3, 10, 6), (12, 1, 64, 64), (3, 9, 24, 8)]
)
def test_rotary_embedding(
    randn: Randn, heads: int, kv_heads: int, head_dim: int, rotary_dim: int, interleaved: bool, dtype: torch.dtype
) -> None:
    qkv = randn(4, heads + 2 * kv_heads, head_dim, dtype=dtype)
    q, k, _ = qkv.split((heads, kv_heads, kv_heads), dim=1)
    inputs = q, k, torch.tensor([0, 49, 3, 3], dtype=torch.int32), table(rotary_dim), interleaved
    for got, want in zip(
        rotary_embedding.rotary_embedding(*inputs), REFERENCE("rotary_embedding")(*inputs), strict=True
    ):
        torch.testing.assert_close(got, want, **CLOSE[dtype])


@pytest.mark.parametrize("section", [[2, 3, 4], [9], [4, 5]], ids=str)
def test_mrope_embedding(randn: Randn, section: list[int]) -> None:
    positions = torch.tensor([[0, 1, 2], [7, 7, 7], [49, 0, 3]])
    inputs = randn(3, 4, 20), randn(3, 2, 20), positions, table(18), section
    for got, want in zip(rotary_embedding.mrope_embedding(*inputs), REFERENCE("mrope_embedding")(*inputs), strict=True):
        torch.testing.assert_close(got, want, **CLOSE[torch.float32])


def test_more_runs_than_the_kernel_has_are_declined(randn: Randn) -> None:
    inputs = randn(2, 1, 8), randn(2, 1, 8), torch.tensor([[0, 1, 2], [3, 4, 5]]), table(8), [1, 1, 1, 1]
    want = REFERENCE("mrope_embedding")(*inputs)
    assert torch.equal(rotary_embedding.mrope_embedding(*inputs)[0], want[0])
    assert registry.declined() == {("mrope_embedding", "more than 3 runs of pairs"): 1}


def test_no_tokens(randn: Randn) -> None:
    none = torch.empty(0, dtype=torch.int32)
    assert rotary_embedding.rotary_embedding(randn(0, 2, 8), randn(0, 1, 8), none, table(8), False)[0].shape == (
        0,
        2,
        8,
    )
    assert sampled_ids.take_sampled(none, torch.tensor([1], dtype=torch.int32)).shape == (0,)


@DTYPES
@pytest.mark.parametrize("cache_dtype", [None, torch.float8_e4m3fn], ids=["same", "fp8"])
def test_rotary_and_write(randn: Randn, dtype: torch.dtype, cache_dtype: torch.dtype | None) -> None:
    """Rows without a slot, the last two, reach no cache; nothing else in the caches changes."""
    q, k, v = randn(6, 5, 12, dtype=dtype), randn(6, 3, 12, dtype=dtype), randn(6, 3, 12, dtype=dtype)
    k[-1], v[-1] = float("nan"), float("nan")
    positions, rows = torch.arange(6, dtype=torch.int32), table(8)
    slots = torch.tensor([9, 0, 4, 11, -1, -1], dtype=torch.int32)
    caches = [torch.full((3, 4, 3, 12), 0.5).to(cache_dtype or dtype) for _ in range(2)]
    scales = {"k_scale": 0.5, "v_scale": 0.25} if cache_dtype else {}
    got = rotary_embedding.rotary_and_write(q, k, v, positions, rows, False, *caches, slots, **scales)
    want = REFERENCE("rotary_embedding")(q, k, positions, rows, False)
    torch.testing.assert_close(got[0], want[0], **CLOSE[dtype])
    torch.testing.assert_close(got[1], want[1], **CLOSE[dtype], equal_nan=True)
    for cache, new, scale in zip(caches, (got[1], v), (0.5, 0.25), strict=True):
        expected = torch.full((12, 3, 12), 0.5).to(cache.dtype)
        kept = new[:4].float() / (scale if cache_dtype else 1.0)
        expected[slots[:4].long()] = kept.clamp(-448, 448).to(cache.dtype)
        assert torch.equal(cache.flatten(0, 1).float(), expected.float())


def test_take_sampled() -> None:
    ids = torch.tensor([5, -1, 0, -3, -2, -99] + [7] * 300, dtype=torch.int32)
    sampled = torch.tensor([100, 200, 300], dtype=torch.int32)
    assert torch.equal(sampled_ids.take_sampled(ids, sampled), REFERENCE("take_sampled")(ids, sampled))


@pytest.mark.parametrize("used", [0, 1, 5, 7])
@pytest.mark.parametrize("value", [None, 0, 1, -1], ids=["repeat", "zero", "one", "sentinel"])
@pytest.mark.parametrize("shape", [(7,), (7, 3)], ids=str)
def test_pad_rows(used: int, value: int | None, shape: tuple[int, ...]) -> None:
    rows = torch.arange(20, 20 + 7 * (3 if len(shape) == 2 else 1), dtype=torch.int32).reshape(shape)
    want = rows.clone()
    want[used:] = value if value is not None else (rows[used - 1] if used else 0)
    sampled_ids.pad_rows(rows, torch.tensor([used], dtype=torch.int32), value)
    assert torch.equal(rows, want)
