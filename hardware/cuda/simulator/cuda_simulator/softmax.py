"""The softmax that FlashInfer's kernels share: weighted values with their log-sum-exp, and the merge of such parts."""

from __future__ import annotations

import torch

LOG2E = 1.4426950408889634


def attend(
    scores: torch.Tensor, seen: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """scores [Hk, G, n, s], seen [n, s], v [s, Hk, D] -> output [n, Hk, G, D] and log2-sum-exp [n, Hk, G].

    What is masked has weight zero, and zero times NaN is NaN, as on a device. Sinks [Hk, G] are logits in the sum that
    have no value.
    """
    scores = torch.where(seen, scores, float("-inf"))
    top = scores.amax(-1, keepdim=True) if scores.shape[-1] else scores.new_full((*scores.shape[:-1], 1), -torch.inf)
    if sinks is not None:
        top = torch.maximum(top, sinks[..., None, None])
    weights = torch.where(seen, torch.exp(scores - torch.where(top.isinf(), 0.0, top)), 0.0)
    total = weights.sum(-1)
    if sinks is not None:
        total = total + torch.exp(sinks.unsqueeze(-1) - top.squeeze(-1))
    out = torch.einsum("hgns,shd->nhgd", weights, v.float())
    total_by_row = total.permute(2, 0, 1)
    out = torch.where(total_by_row.unsqueeze(-1) > 0, out / total_by_row.unsqueeze(-1), out * 0)
    return out, (torch.log2(total) + top.squeeze(-1) * LOG2E).permute(2, 0, 1)


def merge_partials(parts: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """parts [n, H, D] with log2-sum-exps [n, H] -> the whole [H, D] and its log2-sum-exp [H]."""
    top = weights.amax(0)
    shares = torch.exp2(weights - torch.where(top.isinf(), 0.0, top))
    total = shares.sum(0)
    mean = (parts * shares.unsqueeze(-1)).sum(0) / total.unsqueeze(-1)
    return torch.where(total.unsqueeze(-1) > 0, mean, 0), torch.log2(total) + top
