"""Making, copying and arranging tensors."""

from __future__ import annotations

import torch

from ascend_simulator.rules import Dtype, Int, Int32, Ints, Scalar, Tensor, Tensors, rule

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def _refuse_float8(*dtypes: torch.dtype) -> None:
    """No chip that is simulated casts it: aclnnCast.md, and the lists in ops-math/math/cast/op_api/cast.cpp."""
    if found := [dtype for dtype in dtypes if dtype in FLOAT8]:
        raise ValueError(f"no cast from or to {found[0]} on Atlas A2, A3 and inference products")


@rule("aclnnInplaceCopy", source="ops-math/conversion/view_copy/docs/aclnnInplaceCopy.md")
def copy(self: Tensor, source: Tensor) -> None:
    if self.dtype != source.dtype:
        _refuse_float8(self.dtype, source.dtype)
    self.copy_(source)


@rule("aclnnCast", source="ops-math/math/cast/docs/aclnnCast.md")
def cast(self: Tensor, dtype: Dtype, out: Tensor) -> None:
    _refuse_float8(self.dtype, dtype)
    out.copy_(self.to(dtype))


@rule("aclnnCat", source="ops-math/conversion/concat_d/docs/aclnnCat.md")
def cat(tensors: Tensors, dim: Int, out: Tensor) -> None:
    out.copy_(torch.cat(tensors, dim))


@rule("aclnnStack", source="ops-math/conversion/pack/docs/aclnnStack.md")
def stack(tensors: Tensors, dim: Int, out: Tensor) -> None:
    out.copy_(torch.stack(tensors, dim))


@rule("aclnnPermute", source="ops-math/conversion/transpose/docs/aclnnPermute.md")
def permute(self: Tensor, dims: Ints, out: Tensor) -> None:
    out.copy_(self.permute(dims))


@rule("aclnnSlice", source="ops-math/conversion/slice/docs/aclnnSlice.md")
def take_slice(self: Tensor, dim: Int, start: Int, end: Int, step: Int, out: Tensor) -> None:
    out.copy_(torch.ops.aten.slice(self, dim, start, end, step))


@rule("aclnnFlip", source="ops-nn/index/reverse_v2/docs/aclnnFlip.md")
def flip(self: Tensor, dims: Ints, out: Tensor) -> None:
    out.copy_(torch.flip(self, dims))


@rule("aclnnRoll", source="ops-math/conversion/roll/docs/aclnnRoll.md")
def roll(self: Tensor, shifts: Ints, dims: Ints, out: Tensor) -> None:
    out.copy_(torch.roll(self, shifts, dims))


@rule("aclnnRepeat", source="ops-math/math/tile/docs/aclnnRepeat.md")
def repeat(self: Tensor, repeats: Ints, out: Tensor) -> None:
    out.copy_(self.repeat(repeats))


@rule(
    "aclnnRepeatInterleaveIntWithDim", source="ops-nn/index/repeat_interleave/docs/aclnnRepeatInterleaveIntWithDim.md"
)
def repeat_interleave(self: Tensor, repeats: Int, dim: Int, output_size: Int, out: Tensor) -> None:
    out.copy_(torch.repeat_interleave(self, repeats, dim))


@rule("aclnnRepeatInterleaveWithDim", source="ops-nn/index/repeat_interleave/docs/aclnnRepeatInterleaveWithDim.md")
def repeat_interleave_each(self: Tensor, repeats: Tensor, dim: Int, output_size: Int, out: Tensor) -> None:
    out.copy_(torch.repeat_interleave(self, repeats.long(), dim))


@rule("aclnnRepeatInterleave", source="ops-nn/index/repeat_interleave/docs/aclnnRepeatInterleave.md")
def repeat_interleave_flat(self: Tensor, repeats: Tensor, output_size: Int, out: Tensor) -> None:
    out.copy_(torch.repeat_interleave(self, repeats.long()))


@rule("aclnnRepeatInterleaveInt", source="ops-nn/index/repeat_interleave/docs/aclnnRepeatInterleaveInt.md")
def repeat_interleave_all(self: Tensor, repeats: Int, output_size: Int, out: Tensor) -> None:
    out.copy_(torch.repeat_interleave(self, repeats))


@rule("aclnnRepeatInterleaveTensor", source="ops-nn/index/repeat_interleave/docs/aclnnRepeatInterleaveTensor.md")
def repeated_places(repeats: Tensor, output_size: Int, out: Tensor) -> None:
    out.copy_(torch.repeat_interleave(repeats.long()))


@rule("aclnnConstantPadNd", source="ops-math/conversion/pad_v3/docs/aclnnConstantPadNd.md")
def pad(self: Tensor, pad: Ints, value: Scalar, out: Tensor) -> None:
    out.copy_(torch.constant_pad_nd(self, pad, value))


@rule("aclnnTriu", source="ops-math/conversion/triu/docs/aclnnTriu&aclnnInplaceTriu.md")
def triu(self: Tensor, diagonal: Int, out: Tensor) -> None:
    out.copy_(torch.triu(self, diagonal))


@rule("aclnnInplaceTriu", source="ops-math/conversion/triu/docs/aclnnTriu&aclnnInplaceTriu.md")
def triu_in_place(self: Tensor, diagonal: Int) -> None:
    self.copy_(torch.triu(self, diagonal))


@rule("aclnnTril", source="ops-math/conversion/tril/docs/aclnnTril&aclnnInplaceTril.md")
def tril(self: Tensor, diagonal: Int, out: Tensor) -> None:
    out.copy_(torch.tril(self, diagonal))


@rule("aclnnInplaceTril", source="ops-math/conversion/tril/docs/aclnnTril&aclnnInplaceTril.md")
def tril_in_place(self: Tensor, diagonal: Int) -> None:
    self.copy_(torch.tril(self, diagonal))


@rule("aclnnArange", "aclnnRange", source="ops-math/math/range/docs/aclnnArange.md")
def arange(start: Scalar, end: Scalar, step: Scalar, out: Tensor) -> None:
    """The output's size says how many: whether `end` is among them was settled when it was made."""
    out.copy_(start + step * torch.arange(out.numel(), dtype=torch.float64 if out.is_floating_point() else out.dtype))


@rule("aclnnLinspace", source="ops-math/math/lin_space/docs/aclnnLinspace.md")
def linspace(start: Scalar, end: Scalar, steps: Int, out: Tensor) -> None:
    out.copy_(torch.linspace(start, end, steps))


@rule("aclnnInplaceFillScalar", source="ops-math/conversion/fill/docs/aclnnInplaceFillScalar.md")
def fill(self: Tensor, value: Scalar) -> None:
    self.fill_(value)


@rule("aclnnInplaceFillTensor", source="ops-math/conversion/fill/docs/aclnnInplaceFillTensor.md")
def fill_from(self: Tensor, value: Tensor) -> None:
    self.fill_(value.reshape(()))


@rule("aclnnInplaceZero", source="ops-math/math/zero_op/docs/aclnnInplaceZero.md")
def zero(self: Tensor) -> None:
    self.zero_()


@rule("aclnnInplaceOne", source="ops-math/math/ones_like/docs/aclnnInplaceOne.md")
def one(self: Tensor) -> None:
    self.fill_(1)


@rule("aclnnEye", source="ops-math/math/eye/docs/aclnnEye.md")
def eye(rows: Int, columns: Int, out: Tensor) -> None:
    out.copy_(torch.eye(rows, columns))


@rule("aclnnOneHot", source="ops-math/math/one_hot/docs/aclnnOneHot.md")
def one_hot(self: Tensor, classes: Int32, on_value: Tensor, off_value: Tensor, axis: Int, out: Tensor) -> None:
    """`on_value` where the number is that of the class, which the new dimension counts."""
    shape = [1] * out.dim()
    shape[axis] = -1
    is_on = self.unsqueeze(axis) == torch.arange(classes).view(shape)
    out.copy_(torch.where(is_on, on_value.reshape(()), off_value.reshape(())))
