"""Triton's kernels in its interpreter against the reference; run by test_leaf_kernels.py, beside triton-ascend."""

from __future__ import annotations

import pytest
import torch

import trunnion.ops  # noqa: F401  (registers the operators)
from trunnion.ops.registry import OPERATORS
from trunnion_ascend.kernels.triton_kernels.gated_delta_decode import gated_delta_decode
from trunnion_ascend.kernels.triton_kernels.rotary_cache_write import rotary_cache_write

CLOSE = {torch.float32: {"rtol": 1e-5, "atol": 1e-5}, torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2}}
DTYPES = pytest.mark.parametrize("dtype", CLOSE, ids=str)
NUM_STATES, NUM_BLOCKS, BLOCK_SIZE = 9, 3, 16


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def indices(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def lived_in(start: torch.Tensor, *shape: int) -> torch.Tensor:
    """[NUM_STATES, *shape], NaN but for the states that requests start from."""
    states = torch.full((NUM_STATES, *shape), torch.nan)
    states[start.long()] = torch.randn(len(start), *shape)
    return states


@DTYPES
@pytest.mark.parametrize(
    ("key_heads", "value_heads", "key_dim", "value_dim"), [(1, 1, 8, 8), (2, 4, 12, 33), (1, 2, 32, 70)]
)
@pytest.mark.parametrize("length", [1, 3])
def test_gated_delta_decode(
    key_heads: int, value_heads: int, key_dim: int, value_dim: int, length: int, dtype: torch.dtype
) -> None:
    """Requests that go on, that start from nothing on a stale state, and padding, which has state 0 and writes none."""
    table = indices(3, 1, 2, 5, 4, 6, 7, 8, 3, 0, 0, 0).view(4, 3)[[0, 1, 3]]
    going_on, accepted = indices(1, 0, 0), indices(length, 1, 1)
    start = table[torch.arange(3), accepted.long() - 1]
    state = lived_in(start[:1], value_heads, key_dim, value_dim)
    tokens, features = 3 * length, 2 * key_heads * key_dim + value_heads * value_dim
    x = torch.randn(tokens, features).to(dtype)
    g, beta = -torch.rand(tokens, value_heads), torch.rand(tokens, value_heads).to(dtype)
    out = torch.full((tokens, value_heads, value_dim), torch.nan, dtype=dtype)
    expected_state, expected = state.clone(), torch.empty_like(out)
    for request in range(3):
        carried = state[start[request]] if going_on[request] else torch.zeros(value_heads, key_dim, value_dim)
        for token in range(length):
            row = request * length + token
            q, k, v = x[row].split((key_heads * key_dim, key_heads * key_dim, value_heads * value_dim))
            result, after = OPERATORS.reference("gated_delta_rule")(
                q.view(1, 1, key_heads, key_dim), k.view(1, 1, key_heads, key_dim),
                v.view(1, 1, value_heads, value_dim), g[row][None, None], beta[row][None, None], carried[None],
            )  # fmt: skip
            expected[row], carried = result[0, 0], after[0]
            if table[request, token]:
                expected_state[table[request, token]] = carried
    with_columns = accepted if length > 1 else None
    gated_delta_decode(
        x, g, beta, state, table, going_on, with_columns, num_k_heads=key_heads, head_k_dim=key_dim, out=out
    )
    torch.testing.assert_close(out, expected, **CLOSE[dtype])
    torch.testing.assert_close(state, expected_state, equal_nan=True, **CLOSE[dtype])


@DTYPES
@pytest.mark.parametrize("rotated", [16, 10, 6])
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (6, 2), (3, 3)])
@pytest.mark.parametrize("tokens", [0, 1, 7, 63])
def test_rotary_cache_write(tokens: int, heads: int, kv_heads: int, rotated: int, dtype: torch.dtype) -> None:
    """Rows that lie apart, features that pass, tokens without a slot; the rest of the caches stays as it was."""
    wide = torch.randn(tokens, (heads + 2 * kv_heads) * 16 + 5).to(dtype)
    parts = wide[:, 5:].split((heads * 16, kv_heads * 16, kv_heads * 16), dim=1)
    q, k, v = (part.unflatten(1, (-1, 16)) for part in parts)
    positions = torch.randint(0, 50, (tokens,), dtype=torch.int32)
    angles = torch.arange(50).unsqueeze(1) * torch.rand(rotated // 2)
    table = torch.cat((angles.cos(), angles.sin()), dim=1)
    slots = torch.randperm(NUM_BLOCKS * BLOCK_SIZE + 20)[:tokens].to(torch.int32)
    slots[slots >= NUM_BLOCKS * BLOCK_SIZE] = -1
    caches = [torch.full((NUM_BLOCKS, BLOCK_SIZE, kv_heads, 16), torch.nan, dtype=dtype) for _ in "kv"]
    expected_q, expected_k = OPERATORS.reference("rotary_embedding")(q, k, positions, table, False)
    expected = [cache.clone() for cache in caches]
    for cache, rows in zip(expected, (expected_k, v), strict=True):
        cache.flatten(0, 1)[slots[slots >= 0].long()] = rows[slots >= 0]
    found = rotary_cache_write(q, k, v, positions, table, slots, *caches)
    torch.testing.assert_close(found, expected_q, **CLOSE[dtype])
    for cache, want in zip(caches, expected, strict=True):
        torch.testing.assert_close(cache, want, equal_nan=True, **CLOSE[dtype])
