"""Sums, extremes and orders along dimensions."""

from __future__ import annotations

import torch

from ascend_simulator.rules import Bool, Dtype, Int, Ints, Tensor, rule


@rule("aclnnReduceSum", source="ops-math/math/reduce_sum/docs/aclnnReduceSum.md")
def sum_(self: Tensor, dims: Ints, keep: Bool, dtype: Dtype, out: Tensor) -> None:
    """No dimension: all of them."""
    out.copy_(torch.sum(self, dims or list(range(self.dim())), keep, dtype=dtype))


@rule("aclnnMean", source="ops-math/math/reduce_mean/docs/aclnnMean.md")
def mean(self: Tensor, dims: Ints, keep: Bool, dtype: Dtype, out: Tensor) -> None:
    out.copy_(torch.mean(self, dims or list(range(self.dim())), keep, dtype=dtype))


@rule("aclnnCumsum", source="ops-math/math/cumsum/docs/aclnnCumsum.md")
def cumsum(self: Tensor, dim: Int, dtype: Dtype, out: Tensor) -> None:
    out.copy_(torch.cumsum(self, dim, dtype=dtype))


@rule("aclnnCumsumV2", source="ops-math/math/cumsum/docs/aclnnCumsumV2.md")
def cumsum_v2(self: Tensor, dim: Int, exclusive: Bool, reverse: Bool, out: Tensor) -> None:
    """From the end if `reverse`; each place without its own element if `exclusive`."""
    values = self.flip(dim) if reverse else self
    sums = torch.cumsum(values, dim)
    sums = sums - values if exclusive else sums
    out.copy_(sums.flip(dim) if reverse else sums)


@rule("aclnnProd", source="ops-math/math/reduce_prod/docs/aclnnProd.md")
def product(self: Tensor, dtype: Dtype, out: Tensor) -> None:
    out.copy_(torch.prod(self, dtype=dtype))


@rule("aclnnMax", source="ops-math/math/reduce_max/docs/aclnnMax.md")
def largest(self: Tensor, out: Tensor) -> None:
    out.copy_(torch.max(self))


@rule("aclnnMin", source="ops-math/math/reduce_min/docs/aclnnMin.md")
def smallest(self: Tensor, out: Tensor) -> None:
    out.copy_(torch.min(self))


@rule("aclnnMaxDim", source="ops-math/math/arg_max_with_value/docs/aclnnMaxDim.md")
def largest_and_place(self: Tensor, dim: Int, keep: Bool, out: Tensor, indices: Tensor) -> None:
    values, places = torch.max(self, dim, keep)
    out.copy_(values)
    indices.copy_(places)


@rule("aclnnMinDim", source="ops-math/math/arg_min_with_value/docs/aclnnMinDim.md")
def smallest_and_place(self: Tensor, dim: Int, keep: Bool, out: Tensor, indices: Tensor) -> None:
    values, places = torch.min(self, dim, keep)
    out.copy_(values)
    indices.copy_(places)


@rule("aclnnAmax", source="ops-math/math/reduce_max/docs/aclnnAmax.md")
def largest_along(self: Tensor, dims: Ints, keep: Bool, out: Tensor) -> None:
    out.copy_(torch.amax(self, dims or list(range(self.dim())), keep))


@rule("aclnnAmin", source="ops-math/math/reduce_min/docs/aclnnAmin.md")
def smallest_along(self: Tensor, dims: Ints, keep: Bool, out: Tensor) -> None:
    out.copy_(torch.amin(self, dims or list(range(self.dim())), keep))


@rule("aclnnArgMax", source="ops-math/math/arg_max_v2/docs/aclnnArgMax.md")
def place_of_largest(self: Tensor, dim: Int, keep: Bool, out: Tensor) -> None:
    """The first of equal ones."""
    out.copy_(torch.argmax(self, dim, keep).reshape(out.shape))


@rule("aclnnArgMin", source="ops-math/math/arg_min/docs/aclnnArgMin.md")
def place_of_smallest(self: Tensor, dim: Int, keep: Bool, out: Tensor) -> None:
    out.copy_(torch.argmin(self, dim, keep).reshape(out.shape))


@rule("aclnnAny", source="ops-math/math/reduce_any/docs/aclnnAny.md")
def any_(self: Tensor, dims: Ints, keep: Bool, out: Tensor) -> None:
    out.copy_(torch.any(self.bool(), dims or list(range(self.dim())), keep))


@rule("aclnnAll", source="ops-math/math/reduce_all/docs/aclnnAll.md")
def all_(self: Tensor, dims: Ints, keep: Bool, out: Tensor) -> None:
    out.copy_(torch.all(self.bool(), dims or list(range(self.dim())), keep))


@rule("aclnnTopk", source="ops-math/math/topk/docs/aclnnTopk.md")
def topk(
    self: Tensor, k: Int, dim: Int, is_largest: Bool, is_sorted: Bool, values_out: Tensor, indices_out: Tensor
) -> None:
    values, places = torch.topk(self, k, dim, is_largest, is_sorted)
    values_out.copy_(values)
    indices_out.copy_(places)


@rule("aclnnSort", source="ops-math/math/sort/docs/aclnnSort.md")
def sort(self: Tensor, is_stable: Bool, dim: Int, is_descending: Bool, values_out: Tensor, indices_out: Tensor) -> None:
    values, places = torch.sort(self, dim=dim, descending=is_descending, stable=is_stable)
    values_out.copy_(values)
    indices_out.copy_(places)


@rule("aclnnArgsort", source="ops-math/math/sort/docs/aclnnArgsort.md")
def argsort(self: Tensor, dim: Int, is_descending: Bool, out: Tensor) -> None:
    out.copy_(torch.argsort(self, dim, is_descending))


@rule("aclnnVarCorrection", source="ops-math/math/reduce_var/docs/aclnnVarCorrection.md")
def variance(self: Tensor, dims: Ints, correction: Int, keep: Bool, out: Tensor) -> None:
    out.copy_(torch.var(self, dims or None, correction=correction, keepdim=keep))
