"""The feed-forward block of all families here: `down(act(gate(x)) * up(x))` (arXiv:2002.05202)."""

from __future__ import annotations

import torch
from torch import nn

from trunnion.config import BuildContext
from trunnion.layers.activation import SiluAndMul
from trunnion.layers.linear import MergedColumnParallelLinear, RowParallelLinear


class GatedMLP(nn.Module):
    """[T, hidden_size] -> [T, hidden_size], SwiGLU unless `act_fn` says otherwise.

    With `reduce_results` False the outputs of the ranks are still to be summed.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        bias: bool = False,
        act_fn: nn.Module | None = None,
        reduce_results: bool = True,
        ctx: BuildContext,
        prefix: str,
    ) -> None:
        super().__init__()
        self.gate_up_proj = MergedColumnParallelLinear(
            hidden_size, [intermediate_size] * 2, bias=bias, ctx=ctx, prefix=f"{prefix}.gate_up_proj"
        )
        self.down_proj = RowParallelLinear(
            intermediate_size,
            hidden_size,
            bias=bias,
            reduce_results=reduce_results,
            ctx=ctx,
            prefix=f"{prefix}.down_proj",
        )
        self.act_fn = SiluAndMul() if act_fn is None else act_fn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_up_proj(x)))
