"""The cache write in the interpreter against the operators that stand in for it: whole caches, to the bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from trunnion_cuda.cache_writes import write_by_operators
from trunnion_cuda.kernels.cache_write import write_cache

FP8 = torch.float8_e4m3fn
SLOTS = [5, -1, 17, 4, -1]
Randn = Callable[..., torch.Tensor]


def filled(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A cache in which nothing is written yet."""
    return torch.full(shape, 3.0).to(dtype)


def check(first: torch.Tensor, second: torch.Tensor, make: Callable[[], tuple[torch.Tensor, ...]], **scales) -> None:
    """`make` gives the whole cache memory, then views of it for each of the two."""
    slots = torch.tensor(SLOTS, dtype=torch.int32)
    (got, *got_views), (want, *want_views) = make(), make()
    write_cache(first, second, *got_views, slots, **scales)
    write_by_operators(first, second, *want_views, slots, **scales)
    torch.testing.assert_close(got.float(), want.float(), rtol=0, atol=0)
    assert (got.float() != 3.0).any()


@pytest.mark.parametrize("rows", [5, 8], ids=["exact", "padded"])
@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, FP8], ids=["bf16", "fp8"])
@pytest.mark.parametrize("heads", [(1, 2), (3, 7), (8, 192)], ids=str)
def test_keys_and_values(randn: Randn, heads: tuple[int, int], cache_dtype: torch.dtype, rows: int) -> None:
    """Rows of a fused projection; more of them than slots; values past what float8 holds."""
    qkv = (300 * randn(rows, 3 * heads[0], heads[1])).to(torch.bfloat16)
    _, k, v = qkv.split(heads[0], dim=1)

    def make() -> tuple[torch.Tensor, ...]:
        both = filled((2, 5, 4, *heads), cache_dtype)
        return both, both[0], both[1]

    check(k, v, make, first_scale=0.5, second_scale=2.0)


@pytest.mark.parametrize(("latent", "rope"), [(512, 64), (31, 6), (4, 9)], ids=str)
def test_parts_of_one_cache(randn: Randn, latent: int, rope: int) -> None:
    """Two widths side by side in a row, as latent attention keeps them."""
    rows = randn(5, latent + rope + 1, dtype=torch.bfloat16)

    def make() -> tuple[torch.Tensor, ...]:
        cache = filled((6, 4, latent + rope), torch.bfloat16)
        return cache, *cache.split((latent, rope), dim=-1)

    check(rows[:, :latent], rows[:, latent:-1], make)


def test_rows_that_do_not_fit_are_refused(randn: Randn) -> None:
    """The kernel would write over the next token, or read rows that are not there."""
    k, slots = randn(5, 2, 8), torch.tensor(SLOTS, dtype=torch.int32)
    caches = filled((5, 4, 2, 8), torch.float32), filled((5, 4, 2, 8), torch.float32)
    with pytest.raises(ValueError, match="5 rows of 16 and 5 of 24 features do not go into 5 slots of 16 and 16"):
        write_cache(k, randn(5, 3, 8), *caches, slots)
    with pytest.raises(ValueError, match="4 rows of 16 and 5 of 16 features"):
        write_cache(k[:4], k, *caches, slots)
    with pytest.raises(ValueError, match="cannot write second: its rows have strides"):
        write_cache(k, k.mT.contiguous().mT, *caches, slots)
