"""TileLang's decode of latents as torch computes it: what tests have in place of a compiled kernel."""

from __future__ import annotations

import torch

from trunnion_cuda.kernels.mla_decode import Shape, TileDecodes
from trunnion_cuda.kernels.tile_kernels import Kernel
from trunnion_cuda.kernels.tuning import Config

ENOUGH_SHARED_MEMORY = 227 << 10


class TorchDecodes(TileDecodes):
    """Compiles to torch; counts what it compiles, and runs."""

    def __init__(self, why_not: str | None = None, max_shared_bytes: int = ENOUGH_SHARED_MEMORY) -> None:
        super().__init__(why_not, self._torch, max_shared_bytes)
        self.made: list[tuple[Shape, int, int]] = []
        self.num_runs = 0

    def _torch(self, shape: Shape, config: Config) -> Kernel:
        self.made.append((shape, config["HEADS"], config["KEYS"]))

        def kernel(*tensors: torch.Tensor) -> None:
            self.num_runs += 1
            decode(shape, *tensors)

        return kernel


def decode(
    shape: Shape,
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    slots: torch.Tensor,
    part: torch.Tensor,
    part_max: torch.Tensor,
    part_sum: torch.Tensor,
) -> None:
    """See `mla_decode.program`; of several parts the last has everything. Fit for capture."""
    num_heads, latent, _, block_size, query_len, scale, splits = shape
    assert cache.shape[1] == block_size and part.shape == (splits, *q_latent.shape) and part_max.shape == part.shape[:3]
    q = torch.cat((q_latent, q_rope), dim=-1).float().view(-1, query_len, num_heads, cache.shape[2])
    keys = cache[block_table.long()].flatten(1, 2).float()  # [B, S, R + Dr]
    query = torch.arange(1, query_len + 1, device=cache.device)
    written = (slots.view(-1, query_len) >= 0).sum(1, keepdim=True)
    seen = (seq_lens.unsqueeze(1) - query_len + torch.minimum(query, written)).clamp(min=0)  # [B, n]
    is_seen = torch.arange(keys.shape[1], device=cache.device) < seen.unsqueeze(2)  # [B, n, S]
    keys = torch.where(is_seen.any(1).unsqueeze(2), keys, 0.0)
    score = torch.einsum("bnhf,bsf->bnhs", q, keys) * scale
    score = torch.where(is_seen.unsqueeze(2), score, -torch.inf)
    peak = score.amax(-1).clamp(min=-1e30)
    weight = torch.exp(score - peak.unsqueeze(-1))
    total = weight.sum(-1)
    gathered = torch.einsum("bnhs,bsr->bnhr", weight, keys[..., :latent])
    if splits == 1:
        gathered = gathered / total.clamp(min=1e-30).unsqueeze(-1)
    for target, values, nothing in ((part, gathered, 0.0), (part_max, peak, -1e30), (part_sum, total, 0.0)):
        target[:-1] = nothing
        target[-1].copy_(values.flatten(0, 1))
