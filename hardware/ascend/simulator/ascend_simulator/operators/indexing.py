"""Reading and writing elements by their places."""

from __future__ import annotations

import torch

from ascend_simulator.install import simulation
from ascend_simulator.rules import Bool, Int, Raw, Scalar, Tensor, Tensors, rule

REDUCTIONS = {1: "add", 2: "multiply"}


@rule("aclnnEmbedding", source="ops-nn/index/embedding/docs/aclnnEmbedding.md")
def embedding(weight: Tensor, indices: Tensor, out: Tensor) -> None:
    out.copy_(weight[_within(indices.long(), weight.shape[0])])


@rule("aclnnIndexSelect", source="ops-nn/index/gather_v2/docs/aclnnIndexSelect.md")
def index_select(self: Tensor, dim: Int, index: Tensor, out: Tensor) -> None:
    out.copy_(torch.index_select(self, dim, _within(index.long().reshape(-1), self.shape[dim])))


@rule("aclnnIndex", source="ops-nn/index/index/docs/aclnnIndex.md")
def index(self: Tensor, indices: Tensors, out: Tensor) -> None:
    out.copy_(self[_places(indices)])


@rule("aclnnIndexPutImpl", source="ops-nn/index/index_put_v2/docs/aclnnIndexPutImpl.md")
def index_put(self: Tensor, indices: Tensors, values: Tensor, is_accumulated: Bool, is_unsafe: Bool) -> None:
    self.index_put_(_places(indices), values.to(self.dtype), accumulate=is_accumulated)


@rule("aclnnGather", source="ops-nn/index/gather_elements_v2/docs/aclnnGather.md")
def gather(self: Tensor, dim: Int, index: Tensor, out: Tensor) -> None:
    out.copy_(torch.gather(self, dim, index.long()))


@rule("aclnnScatter", source="ops-nn/index/scatter_elements_v2/docs/aclnnScatter&aclnnInplaceScatter.md")
def scatter(self: Tensor, dim: Int, index: Tensor, src: Tensor, reduction: Int, out: Tensor) -> None:
    out.copy_(_scattered(self, dim, index, src, reduction))


@rule("aclnnInplaceScatter", source="ops-nn/index/scatter_elements_v2/docs/aclnnScatter&aclnnInplaceScatter.md")
def scatter_in_place(self: Tensor, dim: Int, index: Tensor, src: Tensor, reduction: Int) -> None:
    self.copy_(_scattered(self, dim, index, src, reduction))


@rule("aclnnScatterValue", source="ops-nn/index/scatter_elements_v2/docs/aclnnScatterValue&aclnnInplaceScatterValue.md")
def scatter_value(self: Tensor, dim: Int, index: Tensor, value: Scalar, reduction: Int, out: Tensor) -> None:
    out.copy_(_scattered(self, dim, index, value, reduction))


@rule(
    "aclnnInplaceScatterValue",
    source="ops-nn/index/scatter_elements_v2/docs/aclnnScatterValue&aclnnInplaceScatterValue.md",
)
def scatter_value_in_place(self: Tensor, dim: Int, index: Tensor, value: Scalar, reduction: Int) -> None:
    self.copy_(_scattered(self, dim, index, value, reduction))


@rule("aclnnScatterAdd", source="ops-nn/index/scatter_add/docs/aclnnScatterAdd.md")
def scatter_add(self: Tensor, dim: Int, index: Tensor, src: Tensor, out: Tensor) -> None:
    out.copy_(torch.scatter_add(self, dim, index.long(), src))


@rule("aclnnInplaceIndexCopy", source="ops-nn/index/scatter_update/docs/aclnnIndexCopy&aclnnInplaceIndexCopy.md")
def index_copy_in_place(self: Tensor, dim: Int, index: Tensor, source: Tensor) -> None:
    self.index_copy_(dim, index.long(), source)


@rule("aclnnIndexCopy", source="ops-nn/index/scatter_update/docs/aclnnIndexCopy&aclnnInplaceIndexCopy.md")
def index_copy(self: Tensor, dim: Int, index: Tensor, source: Tensor, out: Tensor) -> None:
    out.copy_(torch.index_copy(self, dim, index.long(), source))


@rule("aclnnIndexAdd", source="ops-nn/index/inplace_scatter_add/docs/aclnnIndexAdd.md")
def index_add(self: Tensor, dim: Int, index: Tensor, source: Tensor, alpha: Scalar, out: Tensor) -> None:
    out.copy_(torch.index_add(self, dim, index.long(), source, alpha=alpha))


@rule("aclnnIndexAddV2", source="ops-nn/index/inplace_scatter_add/docs/aclnnIndexAddV2.md")
def index_add_v2(self: Tensor, dim: Int, index: Tensor, source: Tensor, alpha: Scalar, mode: Int, out: Tensor) -> None:
    out.copy_(torch.index_add(self, dim, index.long(), source, alpha=alpha))


@rule("aclnnScatterNdUpdate", source="ops-nn/index/scatter_nd_update/docs/aclnnScatterNdUpdate.md")
def scatter_nd_update(self: Tensor, indices: Tensor, updates: Tensor) -> None:
    """Row i of `indices` [.., r] names a place in the first r dimensions, to which update i is written."""
    self[tuple(indices.long().unbind(-1))] = updates.to(self.dtype)


@rule("aclnnInplaceIndexFill", source="ops-nn/index/index_fill_d/docs/aclnnIndexFill&aclnnInplaceIndexFill.md")
def index_fill_in_place(self: Tensor, dim: Int, index: Tensor, value: Scalar) -> None:
    self.index_fill_(dim, index.long(), value)


@rule("aclnnIndexFill", source="ops-nn/index/index_fill_d/docs/aclnnIndexFill&aclnnInplaceIndexFill.md")
def index_fill(self: Tensor, dim: Int, index: Tensor, value: Scalar, out: Tensor) -> None:
    out.copy_(torch.index_fill(self, dim, index.long(), value))


@rule("aclnnInplaceMaskedFillScalar", source="ops-math/conversion/masked_fill/docs/aclnnInplaceMaskedFillScalar.md")
def masked_fill(self: Tensor, mask: Tensor, value: Scalar) -> None:
    self.masked_fill_(mask.bool(), value)


@rule("aclnnInplaceMaskedFillTensor", source="ops-math/conversion/masked_fill/docs/aclnnInplaceMaskedFillTensor.md")
def masked_fill_tensor(self: Tensor, mask: Tensor, value: Tensor) -> None:
    self.masked_fill_(mask.bool(), value.reshape(()).to(self.dtype))


@rule("aclnnInplaceMaskedScatter", source="ops-nn/index/masked_scatter/docs/aclnnInplaceMaskedScatter.md")
def masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> None:
    self.masked_scatter_(mask.bool(), source)


@rule("aclnnNonzero", source="ops-nn/index/non_zero/docs/aclnnNonzero.md")
def nonzero(self: Tensor, out: Raw) -> None:
    """[N, D]. The output is made for as many as there could be, and says afterwards how many there are."""
    _write_some(out, torch.nonzero(self))


@rule("aclnnNonzeroV2", source="ops-nn/index/non_zero/docs/aclnnNonzeroV2.md")
def nonzero_columns(self: Tensor, out: Raw) -> None:
    """[D, N]: each place is a column."""
    _write_some(out, torch.nonzero(self).t())


@rule("aclnnMaskedSelect", source="ops-math/conversion/masked_select_v3/docs/aclnnMaskedSelect.md")
def masked_select(self: Tensor, mask: Tensor, out: Raw) -> None:
    _write_some(out, torch.masked_select(self, mask.bool()))


def _within(places: torch.Tensor, limit: int) -> torch.Tensor:
    if places.numel() and not bool(((places >= 0) & (places < limit)).all()):
        raise IndexError(f"a place is outside of [0, {limit}): {int(places.min())} to {int(places.max())}")
    return places


def _places(indices: list[torch.Tensor]) -> tuple[torch.Tensor | slice, ...]:
    """An index without elements stands for a dimension that is not indexed."""
    return tuple(slice(None) if index is None or index.numel() == 0 else _place(index) for index in indices)


def _place(index: torch.Tensor) -> torch.Tensor:
    return index if index.dtype == torch.bool else index.long()


def _scattered(self: torch.Tensor, dim: int, index: torch.Tensor, source: object, reduction: int) -> torch.Tensor:
    if reduction == 0:
        return torch.scatter(self, dim, index.long(), source)
    return torch.scatter(self, dim, index.long(), source, reduce=REDUCTIONS[reduction])


def _write_some(out: Raw, values: torch.Tensor) -> None:
    out.storage[out.offset : out.offset + values.numel()] = values.reshape(-1).to(out.storage.dtype)
    simulation().set_sizes(out.handle, tuple(values.shape))
