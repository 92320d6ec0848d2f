"""Products of matrices: sums are made in float32, and rounded once to the output's dtype.

`cubeMathType` says which inputs in float32 may be rounded before they are multiplied (0: none); here none are.
"""

from __future__ import annotations

import torch

from ascend_simulator.rules import Bool, Int8, Scalar, Tensor, rule

MATMUL = "ops-nn/matmul/mat_mul_v3/docs/"
BATCHED = "ops-nn/matmul/batch_mat_mul_v3/docs/"


def _product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    wide = torch.promote_types(left.dtype, torch.float32)
    return torch.matmul(left.to(wide), right.to(wide))


@rule("aclnnMatmul", "aclnnMatmulWeightNz", source=MATMUL + "aclnnMatmul.md")
def matmul(self: Tensor, other: Tensor, out: Tensor, cube_math_type: Int8) -> None:
    out.copy_(_product(self, other))


@rule("aclnnMm", source=MATMUL + "aclnnMm.md")
def mm(self: Tensor, other: Tensor, out: Tensor, cube_math_type: Int8) -> None:
    out.copy_(_product(self, other))


@rule("aclnnBatchMatMul", "aclnnBatchMatMulWeightNz", source=BATCHED + "aclnnBatchMatMul.md")
def bmm(self: Tensor, other: Tensor, out: Tensor, cube_math_type: Int8) -> None:
    out.copy_(_product(self, other))


@rule("aclnnMv", source="ops-nn/matmul/mv/docs/aclnnMv.md")
def mv(self: Tensor, vector: Tensor, out: Tensor, cube_math_type: Int8) -> None:
    out.copy_(_product(self, vector))


@rule("aclnnDot", source="ops-math/math/dot/docs/aclnnDot.md")
def dot(self: Tensor, other: Tensor, out: Tensor) -> None:
    out.copy_(_product(self, other))


@rule("aclnnAddmm", "aclnnAddmmWeightNz", source=MATMUL + "aclnnAddmm&aclnnInplaceAddmm.md")
def addmm(
    self: Tensor, left: Tensor, right: Tensor, beta: Scalar, alpha: Scalar, out: Tensor, cube_math_type: Int8
) -> None:
    out.copy_(beta * self.float() + alpha * _product(left, right))


@rule("aclnnInplaceAddmm", source=MATMUL + "aclnnAddmm&aclnnInplaceAddmm.md")
def addmm_in_place(
    self: Tensor, left: Tensor, right: Tensor, beta: Scalar, alpha: Scalar, cube_math_type: Int8
) -> None:
    self.copy_(beta * self.float() + alpha * _product(left, right))


@rule("aclnnBaddbmm", source=BATCHED + "aclnnBaddbmm&aclnnInplaceBaddbmm.md")
def baddbmm(
    self: Tensor, left: Tensor, right: Tensor, beta: Scalar, alpha: Scalar, out: Tensor, cube_math_type: Int8
) -> None:
    """A `beta` of zero ignores `self`, whatever it holds."""
    product = alpha * _product(left, right)
    out.copy_(product if beta == 0 else beta * self.float() + product)


@rule("aclnnTriangularSolve", source="ops-math/math/triangular_solve/docs/aclnnTriangularSolve.md")
def triangular_solve(
    self: Tensor,
    matrix: Tensor,
    is_upper: Bool,
    is_transposed: Bool,
    has_unit_diagonal: Bool,
    out: Tensor,
    matrix_out: Tensor,
) -> None:
    """x of matrix @ x = self, of which one triangle is read; a copy of the matrix is a result too."""
    triangle = matrix.transpose(-1, -2) if is_transposed else matrix
    upper = is_upper != is_transposed
    out.copy_(torch.linalg.solve_triangular(triangle, self, upper=upper, unitriangular=has_unit_diagonal))
    matrix_out.copy_(matrix)
