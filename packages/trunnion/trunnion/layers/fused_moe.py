"""Mixture of experts as a model sees it: a router and a block of experts, cut over ranks by intermediate size."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import trunnion.ops  # noqa: F401  (registers the operators)
from trunnion.config import BuildContext
from trunnion.interfaces.methods import ClampedSwiGLU, MoEShape
from trunnion.interfaces.weights import Placement, add_parameter


class Router(nn.Module):
    """`gate(x) -> router_logits`: [T, hidden_size] -> [T, num_experts] float32, whole on every rank.

    Scores are computed in float32 whatever the model's dtype: a rounded score may send a token elsewhere.

    Args:
        bias: the scores have a bias of their own, which is part of them (gpt-oss).
        correction_bias: the layer has an `e_score_correction_bias` [num_experts] float32, which is not part of the
            scores: it is for `FusedMoE` to choose by (DeepSeek-V3).
    """

    def __init__(
        self,
        hidden_size: int,
        num_experts: int,
        *,
        bias: bool = False,
        correction_bias: bool = False,
        ctx: BuildContext,
        prefix: str,
    ) -> None:
        super().__init__()
        self.prefix = prefix
        self.weight = nn.Parameter(torch.empty(num_experts, hidden_size, dtype=ctx.dtype), requires_grad=False)
        self.bias: nn.Parameter | None = None
        if bias:
            self.bias = nn.Parameter(torch.empty(num_experts, dtype=ctx.dtype), requires_grad=False)
        self.e_score_correction_bias: nn.Parameter | None = None
        if correction_bias:
            # Rounded, it would choose other experts.
            self.e_score_correction_bias = nn.Parameter(
                torch.empty(num_experts, dtype=torch.float32), requires_grad=False
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x.float(), self.weight.float(), None if self.bias is None else self.bias.float())


class FusedMoE(nn.Module):
    """`experts(x, router_logits)`: x [T, hidden_size] through the best `top_k` of `num_experts`, summed over ranks.

    Scores are the softmax of the logits; with a `correction_bias` they are the logits' sigmoids, and the bias takes
    part in the choice of groups and experts, not in their weights.

    Parameters are `w13` (parts `<e>.gate`, `<e>.up`) and `w2` (parts `<e>.down`), so a model names it `experts`; with
    a `bias` `w13_bias` and `w2_bias` as well, of the same parts.

    Args:
        intermediate_size: of one expert, all ranks together.
        bias: each expert's projections have biases (gpt-oss).
        swiglu: how gate and up are joined; None: `silu(gate) * up`.
        reduce_results: sum the ranks' outputs; False leaves it to a block that adds shared experts to them first.
        renormalize: the chosen experts' weights sum to 1 (HF's `norm_topk_prob`). Then they are the softmax over the
            chosen logits alone, which is how Mixtral, granite-MoE and gpt-oss write it.
        num_expert_group, topk_group: group-limited routing; choose within the `topk_group` best groups.
        routed_scaling_factor: factor of the weights, after `renormalize`.
    """

    w13_bias: nn.Parameter | None
    w2_bias: nn.Parameter | None

    def __init__(
        self,
        num_experts: int,
        top_k: int,
        hidden_size: int,
        intermediate_size: int,
        *,
        renormalize: bool,
        num_expert_group: int | None = None,
        topk_group: int | None = None,
        routed_scaling_factor: float = 1.0,
        bias: bool = False,
        swiglu: ClampedSwiGLU | None = None,
        reduce_results: bool = True,
        ctx: BuildContext,
        prefix: str,
    ) -> None:
        super().__init__()
        _check_routing(num_experts, top_k, num_expert_group, topk_group, prefix)
        self.top_k = top_k
        self.renormalize = renormalize
        self.num_expert_group, self.topk_group = num_expert_group, topk_group
        self.routed_scaling_factor = routed_scaling_factor
        self.reduce_results = reduce_results
        self.prefix = prefix
        self.parallel = ctx.parallel
        self.method = ctx.moe_method(prefix)
        local = ctx.parallel.divide(intermediate_size, f"{prefix} intermediate_size")
        w13, w2 = _expert_placements(num_experts, hidden_size, intermediate_size, local, ctx.parallel.rank * local)
        self.swiglu = swiglu
        self.register_parameter("w13_bias", None)
        self.register_parameter("w2_bias", None)
        if bias:
            add_parameter(self, "w13_bias", (num_experts, 2 * local), ctx.dtype, _bias_placements(w13))
            add_parameter(self, "w2_bias", (num_experts, hidden_size), ctx.dtype, _bias_placements(w2))
        shape = MoEShape(
            num_experts=num_experts,
            hidden_size=hidden_size,
            intermediate_size=local,
            dtype=ctx.dtype,
            w13_placements=w13,
            w2_placements=w2,
            has_bias=bias,
            swiglu=swiglu,
            prefix=prefix,
        )
        self.method.create(self, shape)

    def finalize(self) -> None:
        """Let the method lay the weights out; called once all parameters are loaded, again after a reload."""
        self.method.finalize(self)

    def forward(
        self, x: torch.Tensor, router_logits: torch.Tensor, correction_bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x [T, hidden_size], router_logits [T, num_experts] -> [T, hidden_size]; T = 0 too.

        The same on every rank if results are reduced.
        """
        weights, ids = self.route(router_logits, correction_bias)
        out = self.method.apply(self, x, weights, ids)
        return self.parallel.collectives.all_reduce(out) if self.reduce_results else out

    def biases(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """What this rank adds behind `w13` [E, 2 * I] and behind `w2` [E, H]: the latter is the first rank's to add."""
        return self.w13_bias, self.w2_bias if self.parallel.rank == 0 else None

    def route(
        self, router_logits: torch.Tensor, correction_bias: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[T, num_experts], and [num_experts] float32 -> weights [T, top_k] float32, ids [T, top_k] int64."""
        if correction_bias is not None:
            groups = (1, 1) if self.num_expert_group is None else (self.num_expert_group, self.topk_group)
            weights, ids = torch.ops.trunnion.biased_grouped_topk(
                router_logits, correction_bias, self.top_k, *groups, self.renormalize
            )
        elif self.num_expert_group is None:
            weights, ids = torch.ops.trunnion.topk_softmax(router_logits, self.top_k, self.renormalize)
        else:
            weights, ids = torch.ops.trunnion.grouped_topk(
                router_logits, self.top_k, self.num_expert_group, self.topk_group, self.renormalize
            )
        return weights if self.routed_scaling_factor == 1.0 else weights * self.routed_scaling_factor, ids


def _check_routing(
    num_experts: int, top_k: int, num_expert_group: int | None, topk_group: int | None, prefix: str
) -> None:
    if not 1 <= top_k <= num_experts:
        raise ValueError(f"{prefix}: top_k {top_k} is outside 1 ... {num_experts} experts")
    if (num_expert_group is None) != (topk_group is None):
        raise ValueError(f"{prefix}: num_expert_group {num_expert_group} and topk_group {topk_group} belong together")
    if num_expert_group is None or topk_group is None:
        return
    if num_experts % num_expert_group:
        raise ValueError(f"{prefix}: {num_experts} experts cannot be divided into {num_expert_group} groups")
    reachable = topk_group * (num_experts // num_expert_group)
    if not 1 <= topk_group <= num_expert_group or top_k > reachable:
        raise ValueError(f"{prefix}: top_k {top_k} needs more than {topk_group} of {num_expert_group} groups")


def _expert_placements(
    num_experts: int, hidden_size: int, intermediate_size: int, local: int, first: int
) -> tuple[dict[str, Placement], dict[str, Placement]]:
    """Per expert; this rank has intermediate features `first ... first + local - 1`."""
    own = slice(first, first + local)
    rows = (intermediate_size, hidden_size)
    w13, w2 = {}, {}
    for expert in range(num_experts):
        w13[f"{expert}.gate"] = Placement(shape=rows, source=(own,), target=(expert, slice(0, local)))
        w13[f"{expert}.up"] = Placement(shape=rows, source=(own,), target=(expert, slice(local, 2 * local)))
        w2[f"{expert}.down"] = Placement(shape=rows[::-1], source=(slice(None), own), target=(expert,))
    return w13, w2


def _bias_placements(weights: dict[str, Placement]) -> dict[str, Placement]:
    """A bias follows the rows of its weight; target[0] is the expert."""
    return {
        part: Placement(shape=place.shape[:1], source=place.source[:1], target=place.target[:2])
        for part, place in weights.items()
    }
