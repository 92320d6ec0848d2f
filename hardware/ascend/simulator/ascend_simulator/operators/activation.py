"""Activations, and products with them."""

from __future__ import annotations

import torch
from torch.nn import functional

from ascend_simulator.rules import Bool, Double, Int, Scalar, Tensor, rule

GELU = {0: "none", 1: "tanh"}


@rule("aclnnSigmoid", source="ops-nn/activation/sigmoid/docs/aclnnSigmoid&aclnnInplaceSigmoid.md")
def sigmoid(self: Tensor, out: Tensor) -> None:
    out.copy_(torch.sigmoid(self))


@rule("aclnnInplaceSigmoid", source="ops-nn/activation/sigmoid/docs/aclnnSigmoid&aclnnInplaceSigmoid.md")
def sigmoid_in_place(self: Tensor) -> None:
    self.copy_(torch.sigmoid(self))


@rule("aclnnSilu", source="ops-nn/activation/swish/docs/aclnnSilu.md")
def silu(self: Tensor, out: Tensor) -> None:
    """x * sigmoid(x)."""
    out.copy_(functional.silu(self))


@rule("aclnnRelu", source="ops-nn/activation/relu/docs/aclnnRelu&aclnnInplaceRelu.md")
def relu(self: Tensor, out: Tensor) -> None:
    out.copy_(torch.relu(self))


@rule("aclnnInplaceRelu", source="ops-nn/activation/relu/docs/aclnnRelu&aclnnInplaceRelu.md")
def relu_in_place(self: Tensor) -> None:
    self.copy_(torch.relu(self))


@rule("aclnnGelu", source="ops-nn/activation/gelu/docs/aclnnGelu.md")
def gelu_tanh(self: Tensor, out: Tensor) -> None:
    """The form with tanh, whichever form torch was asked for: torch_npu calls this operator for both."""
    out.copy_(functional.gelu(self, approximate="tanh"))


@rule("aclnnGeluV2", source="ops-nn/activation/gelu_v2/docs/aclnnGeluV2.md")
def gelu(self: Tensor, approximate: Int, out: Tensor) -> None:
    """`approximate`: 0 is the error function, 1 the form with tanh."""
    out.copy_(functional.gelu(self, approximate=GELU[approximate]))


@rule("aclnnSoftplus", source="ops-nn/activation/softplus_v2/docs/aclnnSoftplus.md")
def softplus(self: Tensor, beta: Scalar, threshold: Scalar, out: Tensor) -> None:
    out.copy_(functional.softplus(self, beta, threshold))


@rule("aclnnSwiGlu", source="ops-nn/activation/swi_glu/docs/aclnnSwiGlu.md")
def swiglu(self: Tensor, dim: Int, out: Tensor) -> None:
    """The first half of `dim` is activated and multiplies the second; computed in float32."""
    gate, up = self.float().chunk(2, dim)
    out.copy_(functional.silu(gate) * up)


@rule("aclnnClippedSwiglu", source="ops-nn/activation/clipped_swiglu/docs/aclnnClippedSwiglu.md")
def clipped_swiglu(
    x: Tensor,
    group_index: Tensor | None,
    dim: Int,
    alpha: Double,
    limit: Double,
    bias: Double,
    interleaved: Bool,
    out: Tensor,
) -> None:
    """One half of `dim`, or every other of its elements, is clamped and activated and multiplies the rest."""
    if group_index is not None or x.dim() != 2 or dim not in (-1, 1):
        raise ValueError(f"groups, or {x.dim()} dimensions cut along {dim}, are not modelled")
    rows = x.float()
    gate, up = (rows[:, ::2], rows[:, 1::2]) if interleaved else rows.chunk(2, -1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    out.copy_(gate * torch.sigmoid(alpha * gate) * (up + bias))


@rule("aclnnGeGluV3", source="ops-nn/activation/ge_glu_v2/docs/aclnnGeGluV3.md")
def geglu(self: Tensor, dim: Int, approximate: Int, activate_left: Bool, out: Tensor, gelu_out: Tensor) -> None:
    """One half of `dim` is activated and multiplies the other; the activated one is a result as well."""
    left, right = self.chunk(2, dim)
    gate, up = (left, right) if activate_left else (right, left)
    activated = functional.gelu(gate, approximate=GELU[approximate])
    gelu_out.copy_(activated)
    out.copy_(activated * up)


@rule("aclnnSoftmax", source="ops-nn/activation/softmax_v2/docs/aclnnSoftmax.md")
def softmax(self: Tensor, dim: Int, out: Tensor) -> None:
    out.copy_(torch.softmax(self, dim, dtype=torch.float32))


@rule("aclnnLogSoftmax", source="ops-nn/activation/log_softmax_v2/docs/aclnnLogSoftmax.md")
def log_softmax(self: Tensor, dim: Int, out: Tensor) -> None:
    out.copy_(torch.log_softmax(self, dim, dtype=torch.float32))
