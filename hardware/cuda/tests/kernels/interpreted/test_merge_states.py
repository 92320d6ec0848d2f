"""Attention over two sets of keys, merged in the interpreter, against attention over all of them in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from trunnion_cuda.kernels.merge_states import merge_states
from trunnion_cuda.merge import merge_in_torch

CLOSE = {torch.float32: {"rtol": 1e-5, "atol": 1e-5}, torch.bfloat16: {"rtol": 2e-2, "atol": 1e-2}}
Randn = Callable[..., torch.Tensor]
MERGES = pytest.mark.parametrize("merge", [merge_states, merge_in_torch])


def _attend(scores: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """scores [T, H, s] and v [s, H, D] in float64 -> [T, H, D], and [T, H] sums to base 2."""
    out = torch.einsum("ths,shd->thd", torch.softmax(scores, -1), v)
    return out, torch.logsumexp(scores, -1) / math.log(2)


@MERGES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 3, 12), (63, 9, 40), (3, 128, 64), (2, 5, 512)], ids=str)
def test_equals_attention_over_all_keys(randn: Randn, shape: tuple[int, int, int], dtype: torch.dtype, merge) -> None:
    num_tokens, heads, head_dim = shape
    scores, v = (4 * randn(num_tokens, heads, 20)).double(), randn(20, heads, head_dim).double()
    # Sides of very different weight, either way round.
    scores[: num_tokens // 2, :, :13] += 30
    scores[num_tokens // 3 :, ::2, 13:] -= 300
    (out, lse), (other, other_lse) = (_attend(scores[..., keys], v[keys]) for keys in (slice(13), slice(13, 20)))
    out, other = out.to(dtype), other.to(dtype)
    merge(out, lse.float(), other, other_lse.float())
    torch.testing.assert_close(out, _attend(scores, v)[0].to(dtype), **CLOSE[dtype])


@MERGES
def test_sides_without_keys(randn: Randn, merge) -> None:
    """What a row without keys holds is not read, and a row that has none on both sides is zero."""
    none = float("-inf")
    out, other = torch.empty(4, 3, 10), torch.empty(4, 3, 10)
    lse, other_lse = torch.tensor([none, 2.0, none, 1.0]), torch.tensor([3.0, none, none, 1.0])
    lse, other_lse = (sums.unsqueeze(1).repeat(1, 3) for sums in (lse, other_lse))
    rows = randn(4, 3, 10)
    other[[0, 3]], out[[1, 3]] = rows[[0, 3]], rows[[1, 3]]
    assert out[[0, 2]].isnan().all() and other[[1, 2]].isnan().all()
    merge(out, lse, other, other_lse)
    torch.testing.assert_close(out[[0, 1, 3]], rows[[0, 1, 3]])
    assert (out[2] == 0).all()


@MERGES
def test_strided_rows(randn: Randn, merge) -> None:
    """Rows of a larger tensor: what lies beside them stays."""
    wide, other, sums = randn(6, 8, 14), randn(3, 4, 10), randn(3, 4)
    out, before = wide[1:6:2, 2:6, 3:13], wide.clone()
    expected = (out.double() + other.double()) / 2
    merge(out, sums, other, sums)
    torch.testing.assert_close(out, expected.float())
    out.copy_(before[1:6:2, 2:6, 3:13])
    assert torch.equal(wide, before)


def test_no_rows() -> None:
    merge_states(torch.empty(0, 3, 8), torch.empty(0, 3), torch.empty(0, 3, 8), torch.empty(0, 3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"other": torch.zeros(2, 3, 7)}, r"\(2, 3, 8\) torch.float32 .* \(2, 3, 7\)"),
        ({"lse": torch.zeros(3, 2)}, r"sums \(3, 2\)"),
        ({"other": torch.zeros(2, 3, 8).half()}, "torch.float16"),
        ({"other_lse": torch.zeros(2, 3).double()}, "torch.float64"),
        ({"out": torch.zeros(2, 8, 3).mT}, "not neighbours"),
        ({"lse": torch.zeros(3, 2).mT}, "not neighbours"),
    ],
    ids=["features", "sums", "dtype", "dtype-of-sums", "layout", "layout-of-sums"],
)
def test_what_does_not_go_together(changes: dict[str, torch.Tensor], message: str) -> None:
    given = {"out": torch.zeros(2, 3, 8), "lse": torch.zeros(2, 3)}
    given |= {"other": torch.zeros(2, 3, 8), "other_lse": torch.zeros(2, 3)} | changes
    with pytest.raises(ValueError, match=message):
        merge_states(**given)
