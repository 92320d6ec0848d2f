"""One call of latent attention: its operands, and a call of the same kind on which two kernels can be compared."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trunnion_cuda.kernels.launch import ceil_div
from trunnion_cuda.kernels.paged_attention import PagedKeys, parts_in

Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""What `add_parts` takes: part [S, T, H, R], part_max and part_sum [S, T, H], float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentCall:
    """q_latent [T, H, R] and q_rope [T, H, Dr] on a cache [num_blocks, block_size, R + Dr], into `out` or `parts`."""

    q_latent: torch.Tensor
    q_rope: torch.Tensor
    cache: torch.Tensor
    keys: PagedKeys
    scale: float
    out: torch.Tensor
    """[T, H, R]"""
    splits: int = 1
    """Programs that share a request's keys: with several each writes its part, and nobody `out`."""
    parts: Parts | None = None
    """None without splits."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """H, R, Dr."""
        return self.q_latent.shape[1], self.q_latent.shape[2], self.q_rope.shape[2]


def probe(call: LatentCall, most_keys: int) -> LatentCall:
    """Uniform decodes of the call's sizes on values of their own, every row of which has one right result.

    Four requests: one with `most_keys` before the step, one whose last token is a placeholder (if it has several), one
    without earlier keys, and a padding request. What no token owns is NaN. Queries are heads first, as the layer's
    einsum leaves them.
    """
    (num_heads, latent, rope), query_len = call.sizes, call.keys.max_query_len
    block_size, device, dtype = call.cache.shape[1], call.cache.device, call.cache.dtype
    generator = torch.Generator().manual_seed(0)
    lengths = most_keys + query_len, query_len + 9, query_len, 0
    widths = [ceil_div(length, block_size) for length in lengths]
    blocks = (torch.randperm(sum(widths), generator=generator) + 1).int().split(widths)
    cache = torch.full((sum(widths) + 1, block_size, latent + rope), torch.nan)
    table = torch.zeros(len(lengths), max(widths), dtype=torch.int32)
    slots = torch.zeros(len(lengths), query_len, dtype=torch.int32)
    slots[3] = -1
    slots[1, 1:][-1:] = -1
    for request, (length, owned) in enumerate(zip(lengths, blocks, strict=True)):
        table[request, : len(owned)] = owned
        token = torch.arange(length - (1 if request == 1 and query_len > 1 else 0))
        cache[owned[token // block_size], token % block_size] = torch.randn(
            len(token), latent + rope, generator=generator
        )
    # Scores of variance 1: all keys count.
    q = torch.randn(num_heads, slots.numel(), latent + rope, generator=generator)
    q /= call.scale * (latent + rope) ** 0.5
    q_latent, q_rope = (part.to(device, dtype).transpose(0, 1) for part in q.split((latent, rope), dim=-1))
    out = torch.full(q_latent.shape, torch.nan, dtype=dtype, device=device)
    return LatentCall(
        q_latent=q_latent,
        q_rope=q_rope,
        cache=cache.to(device, dtype),
        keys=PagedKeys(
            block_table=table.to(device),
            seq_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
            query_start_loc=None,
            max_query_len=query_len,
            slot_mapping=slots.flatten().to(device),
        ),
        scale=call.scale,
        out=out,
        splits=call.splits,
        parts=parts_in(None, (call.splits, *out.shape[:2]), latent, device) if call.splits > 1 else None,
    )
