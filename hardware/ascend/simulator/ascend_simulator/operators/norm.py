"""Normalisation: computed in float32, and rounded once to the output's dtype."""

from __future__ import annotations

import torch

from ascend_simulator.rules import Bool, Double, Dtype, Int32, Ints, Scalar, Tensor, rule

RMS = "ops-nn/norm/rms_norm/docs/aclnnRmsNorm.md"
ADD_RMS = "ops-nn/norm/add_rms_norm/docs/aclnnAddRmsNorm.md"
LAYER = "ops-nn/norm/layer_norm_v4/docs/aclnnLayerNorm&aclnnLayerNormWithImplMode.md"


def rms_normalised(x: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """x / RMS(x) * gamma over the dimensions of gamma, and 1 / RMS(x); both in float32."""
    wide = x.float()
    reciprocal = torch.rsqrt(wide.square().mean(tuple(range(-gamma.dim(), 0)), keepdim=True) + epsilon)
    return wide * reciprocal * gamma.float(), reciprocal


@rule("aclnnRmsNorm", source=RMS)
def rms_norm(x: Tensor, gamma: Tensor, epsilon: Double, out: Tensor, reciprocal_out: Tensor) -> None:
    normalised, reciprocal = rms_normalised(x, gamma, epsilon)
    out.copy_(normalised)
    reciprocal_out.copy_(reciprocal)


@rule("aclnnGemmaRmsNorm", source="ops-nn/norm/gemma_rms_norm/docs/aclnnGemmaRmsNorm.md")
def gemma_rms_norm(x: Tensor, gamma: Tensor, epsilon: Double, out: Tensor, reciprocal_out: Tensor) -> None:
    """With 1 + gamma for gamma."""
    normalised, reciprocal = rms_normalised(x, 1 + gamma.float(), epsilon)
    out.copy_(normalised)
    reciprocal_out.copy_(reciprocal)


@rule("aclnnAddRmsNorm", source=ADD_RMS)
def add_rms_norm(
    x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: Double, out: Tensor, reciprocal_out: Tensor, sum_out: Tensor
) -> None:
    """The sum is a result too; what is normalised is the sum before it is rounded."""
    total = x1.float() + x2.float()
    normalised, reciprocal = rms_normalised(total, gamma, epsilon)
    out.copy_(normalised)
    reciprocal_out.copy_(reciprocal)
    sum_out.copy_(total)


@rule("aclnnInplaceAddRmsNorm", source="ops-nn/norm/inplace_add_rms_norm/docs/aclnnInplaceAddRmsNorm.md")
def add_rms_norm_in_place(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: Double, reciprocal_out: Tensor) -> None:
    """x1 becomes what is normalised, x2 the sum."""
    total = x1.float() + x2.float()
    normalised, reciprocal = rms_normalised(total, gamma, epsilon)
    x1.copy_(normalised)
    x2.copy_(total)
    reciprocal_out.copy_(reciprocal)


@rule("aclnnLayerNorm", source=LAYER)
def layer_norm(
    x: Tensor,
    shape: Ints,
    weight: Tensor | None,
    bias: Tensor | None,
    epsilon: Double,
    out: Tensor,
    mean_out: Tensor | None,
    reciprocal_out: Tensor | None,
) -> None:
    _layer_norm(x, shape, weight, bias, epsilon, out, mean_out, reciprocal_out)


@rule("aclnnLayerNormWithImplMode", source=LAYER)
def layer_norm_with_mode(
    x: Tensor,
    shape: Ints,
    weight: Tensor | None,
    bias: Tensor | None,
    epsilon: Double,
    out: Tensor,
    mean_out: Tensor | None,
    reciprocal_out: Tensor | None,
    mode: Int32,
) -> None:
    """`mode` chooses between precision and speed: here it is always precision."""
    _layer_norm(x, shape, weight, bias, epsilon, out, mean_out, reciprocal_out)


def _layer_norm(
    x: torch.Tensor,
    shape: list[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    epsilon: float,
    out: torch.Tensor,
    mean_out: torch.Tensor | None,
    reciprocal_out: torch.Tensor | None,
) -> None:
    if not x.numel():
        # torch_npu gives statistics of no rows the shape [0].
        return
    wide = [None if part is None else part.float() for part in (weight, bias)]
    normalised, mean, reciprocal = torch.native_layer_norm(x.float(), shape, *wide, epsilon)
    for target, value in ((out, normalised), (mean_out, mean), (reciprocal_out, reciprocal)):
        if target is not None:
            target.copy_(value)


@rule("aclnnNorm", source="ops-nn/norm/lp_norm_v2/docs/aclnnNorm.md")
def norm(self: Tensor, order: Scalar, dims: Ints, keep: Bool, out: Tensor) -> None:
    """The length of vectors; no dimension: of the whole tensor."""
    out.copy_(torch.linalg.vector_norm(self.float(), order, dims or None, keep))


@rule("aclnnLinalgVectorNorm", source="ops-nn/norm/lp_norm_v2/docs/aclnnLinalgVectorNorm.md")
def vector_norm(self: Tensor, order: Scalar, dims: Ints, keep: Bool, dtype: Dtype, out: Tensor) -> None:
    out.copy_(torch.linalg.vector_norm(self.float(), order, dims or None, keep))
