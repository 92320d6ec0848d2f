"""Attention in two levels, in plain torch: what requests share, read once for all of them, then each one's rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trunnion.interfaces.attention import AttentionSpec, GroupSpec, StepInputs
from trunnion.reference.attention import PlannedRequest
from trunnion.reference.captured import CapturedAttentionGroup


@dataclass(frozen=True, slots=True)
class Own:
    """What one request of a range does not share: its rows [n, H, D], and the keys and values [s, Hk, D] they see."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    key_offset: int
    """Row i sees key j when `j <= i + key_offset`."""


def level(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spec: AttentionSpec, key_offset: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention to some of the keys -> (output [n, H, D], log-sum-exp of its scores [n, H]), -inf where there are none.

    Causal from `key_offset` on; None: every row sees every key.
    """
    grouped = q.unflatten(1, (spec.num_kv_heads, -1))  # [n, Hk, G, D]
    scores = torch.einsum("nhgd,shd->nhgs", grouped, k) * spec.scale
    if spec.soft_cap is not None:
        scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
    if key_offset is not None:
        own_key = torch.arange(q.shape[0]).unsqueeze(1) + key_offset
        scores = scores.masked_fill((torch.arange(k.shape[0]) > own_key)[:, None, None], float("-inf"))
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - lse.unsqueeze(-1)).nan_to_num(0.0)
    return torch.einsum("nhgs,shd->nhgd", weights, v).flatten(1, 2), lse.flatten(1)


def two_level_attention(
    k_shared: torch.Tensor, v_shared: torch.Tensor, own: Sequence[Own], spec: AttentionSpec
) -> torch.Tensor:
    """Rows of all requests of a range, in their order -> [n, H, D], in the dtype of the arguments.

    Keys and values that all share are [S, Hk, D], and every row sees all of them. Two parts of a softmax are put
    together by the weight of each in their sum (Milakov and Gimelshein, arXiv:1805.02867).
    """
    shared, shared_lse = level(torch.cat([request.q for request in own]), k_shared, v_shared, spec, None)
    rests = [level(request.q, request.k, request.v, spec, request.key_offset) for request in own]
    rest, rest_lse = (torch.cat(parts) for parts in zip(*rests, strict=True))
    weight = torch.sigmoid(shared_lse - rest_lse).unsqueeze(-1)
    return weight * shared + (1 - weight) * rest


class TwoLevelAttentionGroup(CapturedAttentionGroup):
    """Paged attention that makes use of prefix levels where every key is seen; all else as `CapturedAttentionGroup`."""

    def __init__(self, spec: GroupSpec, num_layers: int, device: torch.device) -> None:
        super().__init__(spec, num_layers, device)
        self.ranges: list[tuple[list[PlannedRequest], int]] = []
        """Requests that share leading tokens, and how many."""

    @classmethod
    def accepts_prefix_levels(cls, spec: GroupSpec) -> bool:
        return isinstance(spec, AttentionSpec) and spec.window is None and not spec.has_sinks

    def plan(self, step: StepInputs) -> None:
        """As ever; then the ranges that share something leave the requests that are computed one by one."""
        super().plan(step)
        self.ranges = []
        bounds, lens = step.host.prefix_indptr, step.host.prefix_lens
        if bounds is None or lens is None or not self.accepts_prefix_levels(self.spec):
            return
        alone = []
        for begin, end, shared in zip(bounds[:-1].tolist(), bounds[1:].tolist(), lens.tolist(), strict=True):
            requests = self.requests[begin:end]
            if shared:
                self.ranges.append((requests, shared))
            else:
                alone += requests
        self.requests = alone

    def run(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None = None,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `AttentionGroup.run`."""
        out = super().run(layer, q, k, v, sinks, out=out)
        for requests, shared in self.ranges:
            keys, values = (self._keys_of(layer, index, requests) for index in (0, 1))
            own = [
                Own(
                    q[request.first_row : request.first_row + request.num_rows].float(),
                    key[shared:],
                    value[shared:],
                    request.key_offset - shared,
                )
                for request, key, value in zip(requests, keys, values, strict=True)
            ]
            result = two_level_attention(keys[0][:shared], values[0][:shared], own, self.spec)
            first = requests[0].first_row
            out[first : first + result.shape[0]] = result.to(out.dtype)
        return out

    def _keys_of(self, layer: int, index: int, requests: Sequence[PlannedRequest]) -> list[torch.Tensor]:
        cache = self.caches[layer][("k_cache", "v_cache")[index]]
        return [self._visible(cache, self.kv_scales[layer][index], request).float() for request in requests]
