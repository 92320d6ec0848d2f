"""Element by element: arithmetic, comparison, logic. Operands are broadcast, and results take the output's dtype."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ascend_simulator.rules import Bool, Double, Int, Int32, Rules, Scalar, Tensor, rule

Function = Callable[..., torch.Tensor]
ROUNDING = {0: None, 1: "trunc", 2: "floor"}


def _unary(name: str, function: Function, source: str) -> Rules:
    @rule(f"aclnn{name}", source=source)
    def apply(self: Tensor, out: Tensor) -> None:
        out.copy_(function(self))

    @rule(f"aclnnInplace{name}", source=source)
    def apply_in_place(self: Tensor) -> None:
        self.copy_(function(self))

    return apply + apply_in_place


def _binary(name: str, function: Function, source: str) -> Rules:
    """Two tensors: name and name in place."""

    @rule(f"aclnn{name}", source=source)
    def apply(self: Tensor, other: Tensor, out: Tensor) -> None:
        out.copy_(function(self, other))

    @rule(f"aclnnInplace{name}", source=source)
    def apply_in_place(self: Tensor, other: Tensor) -> None:
        self.copy_(function(self, other))

    return apply + apply_in_place


def _with_scalar(name: str, function: Function, source: str) -> Rules:
    """A tensor and a number."""

    @rule(f"aclnn{name}", source=source)
    def apply(self: Tensor, other: Scalar, out: Tensor) -> None:
        out.copy_(function(self, other))

    @rule(f"aclnnInplace{name}", source=source)
    def apply_in_place(self: Tensor, other: Scalar) -> None:
        self.copy_(function(self, other))

    return apply + apply_in_place


neg = _unary("Neg", torch.neg, "ops-math/math/neg/docs/aclnnNeg&aclnnInplaceNeg.md")
absolute = _unary("Abs", torch.abs, "ops-math/math/abs/docs/aclnnAbs.md")
exp = _unary("Exp", torch.exp, "ops-math/math/exp/docs/aclnnExp&aclnnInplaceExp.md")
exp2 = _unary("Exp2", torch.exp2, "ops-math/math/pow/docs/aclnnExp2&aclnnInplaceExp2.md")
expm1 = _unary("Expm1", torch.expm1, "ops-math/math/expm1/docs/aclnnExpm1&aclnnInplaceExpm1.md")
log = _unary("Log", torch.log, "ops-math/math/log/docs/aclnnLog&aclnnInplaceLog.md")
log2 = _unary("Log2", torch.log2, "ops-math/math/log/docs/aclnnLog2&aclnnInplaceLog2.md")
log1p = _unary("Log1p", torch.log1p, "ops-math/math/log1p/docs/aclnnLog1p&aclnnInplaceLog1p.md")
sqrt = _unary("Sqrt", torch.sqrt, "ops-math/math/sqrt/docs/aclnnSqrt&aclnnInplaceSqrt.md")
rsqrt = _unary("Rsqrt", torch.rsqrt, "ops-math/math/rsqrt/docs/aclnnRsqrt&aclnnInplaceRsqrt.md")
reciprocal = _unary(
    "Reciprocal", torch.reciprocal, "ops-math/math/reciprocal/docs/aclnnReciprocal&aclnnInplaceReciprocal.md"
)
sin = _unary("Sin", torch.sin, "ops-math/math/sin/docs/aclnnSin&aclnnInplaceSin.md")
cos = _unary("Cos", torch.cos, "ops-math/math/cos/docs/aclnnCos&aclnnInplaceCos.md")
tanh = _unary("Tanh", torch.tanh, "ops-math/math/tanh/docs/aclnnTanh&aclnnInplaceTanh.md")
erf = _unary("Erf", torch.erf, "ops-math/math/erf/docs/aclnnErf&aclnnInplaceErf.md")
floor = _unary("Floor", torch.floor, "ops-math/math/floor/docs/aclnnFloor&aclnnInplaceFloor.md")
ceil = _unary("Ceil", torch.ceil, "ops-math/math/ceil/docs/aclnnCeil&aclnnInplaceCeil.md")
# Halves go to the even number, as in torch.
nearest = _unary("Round", torch.round, "ops-math/math/round/docs/aclnnRound&aclnnInplaceRound.md")
trunc = _unary("Trunc", torch.trunc, "ops-math/math/trunc/docs/aclnnTrunc&aclnnInplaceTrunc.md")
sign = _unary("Sign", torch.sign, "ops-math/math/sign/docs/aclnnSign.md")
logical_not = _unary(
    "LogicalNot", torch.logical_not, "ops-math/math/logical_not/docs/aclnnLogicalNot&aclnnInplaceLogicalNot.md"
)
bitwise_not = _unary("BitwiseNot", torch.bitwise_not, "ops-math/math/bitwise_not/docs/aclnnBitwiseNot.md")
is_finite = _unary("IsFinite", torch.isfinite, "ops-math/math/is_finite/docs/aclnnIsFinite.md")
is_inf = _unary("IsInf", torch.isinf, "ops-math/math/is_inf/docs/aclnnIsInf.md")

mul = _binary("Mul", torch.mul, "ops-math/math/mul/docs/aclnnMul&aclnnInplaceMul.md")
muls = _with_scalar("Muls", torch.mul, "ops-math/math/muls/docs/aclnnMuls&aclnnInplaceMuls.md")
div = _binary("Div", torch.div, "ops-math/math/div/docs/aclnnDiv&aclnnInplaceDiv.md")
divs = _with_scalar("Divs", torch.div, "ops-math/math/div/docs/aclnnDivs&aclnnInplaceDivs.md")
floor_divide = _binary(
    "FloorDivide", torch.floor_divide, "ops-math/math/floor_div/docs/aclnnFloorDivide&aclnnInplaceFloorDivide.md"
)
floor_divides = _with_scalar(
    "FloorDivides", torch.floor_divide, "ops-math/math/floor_div/docs/aclnnFloorDivides&aclnnInplaceFloorDivides.md"
)
# The remainder has the sign of the divisor.
remainder = _binary(
    "RemainderTensorTensor",
    torch.remainder,
    "ops-math/math/floor_mod/docs/aclnnRemainderTensorTensor&aclnnInplaceRemainderTensorTensor.md",
)
remainders = _with_scalar(
    "RemainderTensorScalar",
    torch.remainder,
    "ops-math/math/floor_mod/docs/aclnnRemainderTensorScalar&aclnnInplaceRemainderTensorScalar.md",
)
power = _binary(
    "PowTensorTensor", torch.pow, "ops-math/math/pow/docs/aclnnPowTensorTensor&aclnnInplacePowTensorTensor.md"
)
powers = _with_scalar(
    "PowTensorScalar", torch.pow, "ops-math/math/pow/docs/aclnnPowTensorScalar&aclnnInplacePowTensorScalar.md"
)
maximum = _binary("Maximum", torch.maximum, "ops-math/math/maximum/docs/aclnnMaximum.md")
minimum = _binary("Minimum", torch.minimum, "ops-math/math/minimum/docs/aclnnMinimum.md")
logical_and = _binary(
    "LogicalAnd", torch.logical_and, "ops-math/math/logical_and/docs/aclnnLogicalAnd&aclnnInplaceLogicalAnd.md"
)
logical_or = _binary(
    "LogicalOr", torch.logical_or, "ops-math/math/logical_or/docs/aclnnLogicalOr&aclnnInplaceLogicalOr.md"
)
logical_xor = _binary("LogicalXor", torch.logical_xor, "ops-math/math/not_equal/docs/aclnnLogicalXor.md")
bitwise_and = _binary("BitwiseAndTensor", torch.bitwise_and, "ops-math/math/bitwise_and/docs/aclnnBitwiseAndTensor.md")
bitwise_ands = _with_scalar(
    "BitwiseAndScalar", torch.bitwise_and, "ops-math/math/bitwise_and/docs/aclnnBitwiseAndScalar.md"
)
bitwise_or = _binary(
    "BitwiseOrTensor",
    torch.bitwise_or,
    "ops-math/math/bitwise_or/docs/aclnnBitwiseOrTensor&aclnnInplaceBitwiseOrTensor.md",
)
bitwise_ors = _with_scalar(
    "BitwiseOrScalar",
    torch.bitwise_or,
    "ops-math/math/bitwise_or/docs/aclnnBitwiseOrScalar&aclnnInplaceBitwiseOrScalar.md",
)
equal = _binary("EqTensor", torch.eq, "ops-math/math/equal/docs/aclnnEqTensor&aclnnInplaceEqTensor.md")
equals = _with_scalar("EqScalar", torch.eq, "ops-math/math/equal/docs/aclnnEqScalar&aclnnInplaceEqScalar.md")
differ = _binary("NeTensor", torch.ne, "ops-math/math/not_equal/docs/aclnnNeTensor&aclnnInplaceNeTensor.md")
differs = _with_scalar("NeScalar", torch.ne, "ops-math/math/not_equal/docs/aclnnNeScalar&aclnnInplaceNeScalar.md")
greater = _binary("GtTensor", torch.gt, "ops-math/math/greater/docs/aclnnGtTensor&aclnnInplaceGtTensor.md")
greaters = _with_scalar("GtScalar", torch.gt, "ops-math/math/greater/docs/aclnnGtScalar&aclnnInplaceGtScalar.md")
at_least = _binary("GeTensor", torch.ge, "ops-math/math/greater_equal/docs/aclnnGeTensor&aclnnInplaceGeTensor.md")
at_leasts = _with_scalar("GeScalar", torch.ge, "ops-math/math/greater_equal/docs/aclnnGeScalar&aclnnInplaceGeScalar.md")
less = _binary("LtTensor", torch.lt, "ops-math/math/less/docs/aclnnLtTensor&aclnnInplaceLtTensor.md")
lesses = _with_scalar("LtScalar", torch.lt, "ops-math/math/less/docs/aclnnLtScalar&aclnnInplaceLtScalar.md")
at_most = _binary("LeTensor", torch.le, "ops-math/math/less_equal/docs/aclnnLeTensor&aclnnInplaceLeTensor.md")
at_mosts = _with_scalar("LeScalar", torch.le, "ops-math/math/less_equal/docs/aclnnLeScalar&aclnnInplaceLeScalar.md")


@rule("aclnnAdd", source="ops-math/math/add/docs/aclnnAdd&aclnnInplaceAdd.md")
def add(self: Tensor, other: Tensor, alpha: Scalar, out: Tensor) -> None:
    out.copy_(torch.add(self, other, alpha=alpha))


@rule("aclnnInplaceAdd", source="ops-math/math/add/docs/aclnnAdd&aclnnInplaceAdd.md")
def add_in_place(self: Tensor, other: Tensor, alpha: Scalar) -> None:
    self.copy_(torch.add(self, other, alpha=alpha))


@rule("aclnnAdds", source="ops-math/math/add/docs/aclnnAdds.md")
def adds(self: Tensor, other: Scalar, alpha: Scalar, out: Tensor) -> None:
    out.copy_(torch.add(self, other, alpha=alpha))


@rule("aclnnInplaceAdds", source="ops-math/math/add/docs/aclnnInplaceAdds.md")
def adds_in_place(self: Tensor, other: Scalar, alpha: Scalar) -> None:
    self.copy_(torch.add(self, other, alpha=alpha))


@rule("aclnnAddV3", source="ops-math/math/add/docs/aclnnAddV3&aclnnInplaceAddV3.md")
def add_to_scalar(self: Scalar, other: Tensor, alpha: Scalar, out: Tensor) -> None:
    out.copy_(self + other * alpha)


@rule("aclnnSub", source="ops-math/math/sub/docs/aclnnSub&aclnnInplaceSub.md")
def sub(self: Tensor, other: Tensor, alpha: Scalar, out: Tensor) -> None:
    out.copy_(torch.sub(self, other, alpha=alpha))


@rule("aclnnInplaceSub", source="ops-math/math/sub/docs/aclnnSub&aclnnInplaceSub.md")
def sub_in_place(self: Tensor, other: Tensor, alpha: Scalar) -> None:
    self.copy_(torch.sub(self, other, alpha=alpha))


@rule("aclnnSubs", source="ops-math/math/sub/docs/aclnnSubs&aclnnInplaceSubs.md")
def subs(self: Tensor, other: Scalar, alpha: Scalar, out: Tensor) -> None:
    out.copy_(torch.sub(self, other, alpha=alpha))


@rule("aclnnInplaceSubs", source="ops-math/math/sub/docs/aclnnSubs&aclnnInplaceSubs.md")
def subs_in_place(self: Tensor, other: Scalar, alpha: Scalar) -> None:
    self.copy_(torch.sub(self, other, alpha=alpha))


@rule("aclnnRsub", source="ops-math/math/sub/docs/aclnnRsub.md")
def sub_from(self: Tensor, other: Tensor, alpha: Scalar, out: Tensor) -> None:
    out.copy_(torch.rsub(self, other, alpha=alpha))


@rule("aclnnRsubs", source="ops-math/math/sub/docs/aclnnRsubs.md")
def sub_from_scalar(self: Tensor, other: Scalar, alpha: Scalar, out: Tensor) -> None:
    out.copy_(torch.rsub(self, other, alpha=alpha))


@rule("aclnnDivMod", source="ops-math/math/div/docs/aclnnDivMod&aclnnInplaceDivMod.md")
def div_rounded(self: Tensor, other: Tensor, mode: Int32, out: Tensor) -> None:
    """`mode`: 0 rounds nothing, 1 towards zero, 2 down."""
    out.copy_(torch.div(self, other, rounding_mode=ROUNDING[mode]))


@rule("aclnnDivMods", source="ops-math/math/div/docs/aclnnDivMods&aclnnInplaceDivMods.md")
def divs_rounded(self: Tensor, other: Scalar, mode: Int32, out: Tensor) -> None:
    out.copy_(torch.div(self, other, rounding_mode=ROUNDING[mode]))


@rule("aclnnInplaceDivMod", source="ops-math/math/div/docs/aclnnDivMod&aclnnInplaceDivMod.md")
def div_rounded_in_place(self: Tensor, other: Tensor, mode: Int32) -> None:
    self.copy_(torch.div(self, other, rounding_mode=ROUNDING[mode]))


@rule("aclnnInplaceDivMods", source="ops-math/math/div/docs/aclnnDivMods&aclnnInplaceDivMods.md")
def divs_rounded_in_place(self: Tensor, other: Scalar, mode: Int32) -> None:
    self.copy_(torch.div(self, other, rounding_mode=ROUNDING[mode]))


@rule("aclnnPowScalarTensor", source="ops-math/math/pow/docs/aclnnPowScalarTensor.md")
def power_of_scalar(self: Scalar, exponent: Tensor, out: Tensor) -> None:
    out.copy_(torch.pow(self, exponent))


@rule("aclnnRemainderScalarTensor", source="ops-math/math/floor_mod/docs/aclnnRemainderScalarTensor.md")
def remainder_of_scalar(self: Scalar, other: Tensor, out: Tensor) -> None:
    out.copy_(torch.remainder(self, other))


@rule("aclnnRoundDecimals", source="ops-math/math/round/docs/aclnnRoundDecimals&aclnnInplaceRoundDecimals.md")
def nearest_decimal(self: Tensor, decimals: Int, out: Tensor) -> None:
    out.copy_(torch.round(self, decimals=decimals))


@rule("aclnnClamp", source="ops-math/conversion/clip_by_value_v2/docs/aclnnClamp.md")
def clamp(self: Tensor, lowest: Scalar, highest: Scalar, out: Tensor) -> None:
    """Either bound may be absent."""
    out.copy_(torch.clamp(self, lowest, highest))


@rule("aclnnClampMin", source="ops-math/conversion/clip_by_value_v2/docs/aclnnClampMin.md")
def clamp_below(self: Tensor, lowest: Scalar, out: Tensor) -> None:
    out.copy_(torch.clamp(self, min=lowest))


@rule("aclnnInplaceClampMin", source="ops-math/conversion/clip_by_value_v2/docs/aclnnClampMin.md")
def clamp_below_in_place(self: Tensor, lowest: Scalar) -> None:
    self.copy_(torch.clamp(self, min=lowest))


@rule("aclnnClampMax", source="ops-math/conversion/clip_by_value_v2/docs/aclnnClampMax&aclnnInplaceClampMax.md")
def clamp_above(self: Tensor, highest: Scalar, out: Tensor) -> None:
    out.copy_(torch.clamp(self, max=highest))


@rule("aclnnInplaceClampMax", source="ops-math/conversion/clip_by_value_v2/docs/aclnnClampMax&aclnnInplaceClampMax.md")
def clamp_above_in_place(self: Tensor, highest: Scalar) -> None:
    self.copy_(torch.clamp(self, max=highest))


@rule("aclnnAddcmul", source="ops-math/math/addcmul/docs/aclnnAddcmul&aclnnInplaceAddcmul.md")
def add_product(self: Tensor, first: Tensor, second: Tensor, value: Scalar, out: Tensor) -> None:
    out.copy_(torch.addcmul(self, first, second, value=value))


@rule("aclnnSWhere", source="ops-math/math/select/docs/aclnnSWhere.md")
def where(condition: Tensor, self: Tensor, other: Tensor, out: Tensor) -> None:
    out.copy_(torch.where(condition.bool(), self, other))


@rule("aclnnEqual", source="ops-math/math/tensor_equal/docs/aclnnEqual.md")
def all_equal(self: Tensor, other: Tensor, out: Tensor) -> None:
    out.copy_(torch.tensor(torch.equal(self, other)).reshape(out.shape))


@rule("aclnnIsClose", source="ops-math/math/is_close/docs/aclnnIsClose.md")
def is_close(self: Tensor, other: Tensor, rtol: Double, atol: Double, is_nan_equal: Bool, out: Tensor) -> None:
    out.copy_(torch.isclose(self, other, rtol, atol, is_nan_equal))
