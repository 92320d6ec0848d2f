"""Paged attention, decode and prefill: windows, soft caps, sinks, placeholders without a slot, caches in fp8.

For what the attention library refuses. One program takes M rows (tokens of a request times the query heads of one KV
head) through the keys they see, with an online softmax (arXiv:2205.14135); long keys may be split among programs, whose
parts a second kernel adds up. For a request of n new tokens, s keys, H query and Hk KV heads of D features of b bytes:
`4 n s H D` FLOPs (half of it for a causal prefill) and `2 s Hk D b` bytes per tile of M rows. Decodes run against
memory bandwidth (2 H / Hk FLOPs per byte), prefills against the tensor cores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from trunnion_cuda.kernels.launch import EVERY_ARCHITECTURE, ceil_div, launch, power_of_two
from trunnion_cuda.kernels.tuning import TUNER, Config, Space, size_class

ARCHITECTURES = EVERY_ARCHITECTURE
"""A cache in fp8 needs a later one than sm_80."""
SPACE = Space(
    "paged_attention",
    (
        Config({"M": 16, "N": 64, "D": 128}, num_warps=4, num_stages=2),
        Config({"M": 16, "N": 32, "D": 256}, num_warps=4, num_stages=2),
        Config({"M": 16, "N": 128, "D": 128}, num_warps=8, num_stages=2),
        Config({"M": 64, "N": 32, "D": 128}, num_warps=4, num_stages=2),
        Config({"M": 64, "N": 64, "D": 128}, num_warps=8, num_stages=2),
        Config({"M": 128, "N": 32, "D": 128}, num_warps=8, num_stages=2),
        Config({"M": 64, "N": 32, "D": 256}, num_warps=8, num_stages=2),
    ),
)
"""D: the longest head whose tiles stay in registers."""
MAX_HEAD_DIM = 256
SPLIT_KEYS = 1024
"""Keys that one program of a decode takes at least, if they are split at all."""
MAX_SPLITS = 16


@dataclass(frozen=True, kw_only=True)
class PagedKeys:
    """What says where a step's keys lie; device tensors, int32."""

    block_table: torch.Tensor
    """[B, max_blocks]; its first block holds token `kv_start`."""
    seq_lens: torch.Tensor
    """[B]: tokens cached after this step; 0 for a padding request."""
    query_start_loc: torch.Tensor | None
    """[B + 1], or None: each request has `max_query_len` tokens (a graph of uniform decodes)."""
    max_query_len: int
    kv_start: torch.Tensor | None = None
    """[B]: leading tokens that a window has dropped."""
    slot_mapping: torch.Tensor | None = None
    """[T]: a key of this step without a slot (-1) is seen by nobody."""


@triton.jit
def _attention_kernel(
    q, k_cache, v_cache, block_table, seq_lens, query_start_loc, kv_start, slot_mapping, sinks, out, part,
    part_max, part_sum, q_token, q_head, out_token, out_head, cache_block, cache_token, cache_head, table_row,
    block_size, num_tokens, num_q_heads, query_len, window, scale, soft_cap, v_scale,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, UNIFORM: tl.constexpr, HAS_START: tl.constexpr,
    HAS_SLOTS: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr, HAS_SINKS: tl.constexpr,
    SPLITS: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0)
    kv_head = tl.program_id(1)
    tile = tl.program_id(2) // SPLITS
    split = tl.program_id(2) % SPLITS
    if UNIFORM:
        start = request * query_len
        num_queries = query_len
    else:
        start = tl.load(query_start_loc + request)
        num_queries = tl.load(query_start_loc + request + 1) - start
    if tile * M < num_queries * GROUP:
        num_keys = tl.load(seq_lens + request)
        first_key = tl.load(kv_start + request) if HAS_START else 0
        row = tile * M + tl.arange(0, M)
        query = row // GROUP
        head = kv_head * GROUP + row % GROUP
        is_row = query < num_queries
        feature = tl.arange(0, D)
        is_feature = feature < HEAD_DIM
        token = (start + query).to(tl.int64)
        q_at = q + token[:, None] * q_token + head[:, None] * q_head + feature[None, :]
        row_mask = is_row[:, None] & is_feature[None, :]
        queries = tl.load(q_at, mask=row_mask, other=0.0)
        before = num_keys - num_queries
        position = before + query
        # The keys that some row of the tile sees.
        low = first_key
        if HAS_WINDOW:
            low = tl.maximum(low, before + (tile * M) // GROUP - window + 1)
        last_query = tl.minimum((tile * M + M - 1) // GROUP, num_queries - 1)
        high = tl.minimum(num_keys, before + last_query + 1)
        if SPLITS > 1:
            share = tl.cdiv(tl.cdiv(tl.maximum(high - low, 0), SPLITS), N) * N
            low = low + split * share
            high = tl.minimum(high, low + share)
        peak = tl.full([M], float("-inf"), tl.float32)
        total = tl.zeros([M], tl.float32)
        if HAS_SINKS and split == 0:
            peak = tl.load(sinks + head, mask=is_row, other=0.0).to(tl.float32)
            total = total + 1.0
        gathered = tl.zeros([M, D], tl.float32)
        for first in range(low, high, N):
            key = first + tl.arange(0, N)
            is_key = key < high
            within = key - first_key
            block = tl.load(block_table + request.to(tl.int64) * table_row + within // block_size, mask=is_key, other=0)
            at = block.to(tl.int64) * cache_block + (within % block_size) * cache_token + kv_head * cache_head
            if HAS_SLOTS:
                own = key - before
                has_slot = tl.load(slot_mapping + start + own, mask=is_key & (own >= 0), other=0) >= 0
                is_key = is_key & has_slot
            keys = tl.load(
                k_cache + at[None, :] + feature[:, None], mask=is_key[None, :] & is_feature[:, None], other=0.0
            )
            score = tl.dot(queries, keys.to(queries.dtype), input_precision=PRECISION) * scale
            if HAS_CAP:
                # tanh(x) = 2 sigmoid(2 x) - 1
                score = soft_cap * (2.0 * tl.sigmoid(2.0 * score / soft_cap) - 1.0)
            is_seen = is_key[None, :] & (key[None, :] <= position[:, None]) & is_row[:, None]
            if HAS_WINDOW:
                is_seen = is_seen & (key[None, :] > position[:, None] - window)
            score = tl.where(is_seen, score, float("-inf"))
            new_peak = tl.maximum(peak, tl.max(score, axis=1))
            # A row that has seen nothing yet: minus infinity less itself would be NaN.
            base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
            weight = tl.exp(score - base[:, None])
            shrink = tl.exp(peak - base)
            values = tl.load(
                v_cache + at[:, None] + feature[None, :], mask=is_key[:, None] & is_feature[None, :], other=0.0
            )
            total = total * shrink + tl.sum(weight, axis=1)
            gathered = gathered * shrink[:, None]
            gathered = tl.dot(weight.to(queries.dtype), values.to(queries.dtype), gathered, input_precision=PRECISION)
            peak = new_peak
        if SPLITS > 1:
            row_at = (split * num_tokens + token) * num_q_heads + head
            tl.store(part + row_at[:, None] * HEAD_DIM + feature[None, :], gathered, mask=row_mask)
            tl.store(part_max + row_at, peak, mask=is_row)
            tl.store(part_sum + row_at, total, mask=is_row)
        else:
            result = gathered * (v_scale / tl.where(total == 0.0, 1.0, total))[:, None]
            out_at = out + token[:, None] * out_token + head[:, None] * out_head + feature[None, :]
            tl.store(out_at, result.to(out.dtype.element_ty), mask=row_mask)


@triton.jit
def _combine_kernel(
    part, part_max, part_sum, out, num_used, num_tokens, num_q_heads, out_token, out_head, v_scale,
    HAS_USED: tl.constexpr, SPLITS: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    used = tl.load(num_used) if HAS_USED else num_tokens
    if token < used:
        feature = tl.arange(0, D)
        split = tl.arange(0, SPLITS)
        row = (split * num_tokens + token) * num_q_heads + head
        peaks = tl.load(part_max + row)
        peak = tl.max(peaks, axis=0)
        shrink = tl.exp(peaks - tl.where(peak == float("-inf"), 0.0, peak))
        total = tl.sum(tl.load(part_sum + row) * shrink, axis=0)
        mask = (feature < HEAD_DIM)[None, :] & (split >= 0)[:, None]
        parts = tl.load(part + row[:, None] * HEAD_DIM + feature[None, :], mask=mask, other=0.0)
        result = tl.sum(parts * shrink[:, None], axis=0) * (v_scale / tl.where(total == 0.0, 1.0, total))
        tl.store(
            out + token * out_token + head * out_head + feature,
            result.to(out.dtype.element_ty),
            mask=feature < HEAD_DIM,
        )


def num_splits(max_keys: int, num_programs: int, num_processors: int) -> int:
    """Programs among which a decode's keys are split: a power of two that fills the device without slicing too thin."""
    wanted = min(ceil_div(max_keys, SPLIT_KEYS), ceil_div(2 * num_processors, max(num_programs, 1)), MAX_SPLITS)
    return 1 << (max(wanted, 1).bit_length() - 1)


def why_not(num_q_heads: int, num_kv_heads: int, head_dim: int) -> str | None:
    """Why the kernel cannot attend in this shape, or None."""
    if head_dim > MAX_HEAD_DIM:
        return f"head_dim {head_dim} is more than {MAX_HEAD_DIM}"
    if num_q_heads % num_kv_heads:
        return f"{num_q_heads} query heads do not divide among {num_kv_heads} KV heads"
    return None


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    keys: PagedKeys,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    splits: int = 1,
    out: torch.Tensor | None = None,
    clears: bool = True,
    workspace: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of q [T, H, D] to what the caches [num_blocks, block_size, Hk, D] hold -> [T, H, D].

    The step's own keys must have been written. A query at position i sees key j if `i - window < j <= i`. The content
    of an fp8 cache counts `k_scale` and `v_scale` times. Rows that belong to no request become zero (without `clears`
    they are left alone), and so do those that see nothing (padding requests). `splits` is a power of two; parts lie in
    `workspace` (uint8), and are fewer if it is short. Fit for capture: nothing is read from the device.

    Raises:
        ValueError: a shape or layout that the kernel cannot take.
    """
    num_tokens, num_q_heads, head_dim = q.shape
    num_kv_heads = k_cache.shape[2]
    reason = why_not(num_q_heads, num_kv_heads, head_dim)
    if k_cache.stride() != v_cache.stride() or k_cache.stride(3) != 1 or q.stride(2) != 1:
        reason = f"strides of q {q.stride()}, k_cache {k_cache.stride()}, v_cache {v_cache.stride()} do not go together"
    if reason is not None:
        raise ValueError(f"paged attention cannot run: {reason}")
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    if keys.query_start_loc is not None and clears:
        out.zero_()
    if num_tokens == 0:
        return out
    num_reqs, group = keys.seq_lens.shape[0], num_q_heads // num_kv_heads
    none = keys.seq_lens
    if workspace is not None:
        row_bytes = 4 * num_tokens * num_q_heads * (head_dim + 2)
        splits = min(splits, 1 << max((workspace.numel() // row_bytes).bit_length() - 1, 0))
    part, part_max, part_sum = (none,) * 3
    if splits > 1:
        part, part_max, part_sum = parts_in(workspace, (splits, num_tokens, num_q_heads), head_dim, q.device)
    block_d = max(power_of_two(head_dim), 16)

    def run(config: Config) -> None:
        tiles = ceil_div(keys.max_query_len * group, config["M"])
        launch(
            _attention_kernel, (num_reqs, num_kv_heads, tiles * splits),
            q, k_cache, v_cache, keys.block_table, keys.seq_lens,
            none if keys.query_start_loc is None else keys.query_start_loc,
            none if keys.kv_start is None else keys.kv_start,
            none if keys.slot_mapping is None else keys.slot_mapping,
            none if sinks is None else sinks, out, part, part_max, part_sum,
            q.stride(0), q.stride(1), out.stride(0), out.stride(1),
            k_cache.stride(0), k_cache.stride(1), k_cache.stride(2), keys.block_table.stride(0),
            k_cache.shape[1], num_tokens, num_q_heads, keys.max_query_len, window or 0, scale * k_scale,
            float(soft_cap or 1.0), v_scale,
            GROUP=group, HEAD_DIM=head_dim, D=block_d, UNIFORM=keys.query_start_loc is None,
            HAS_START=keys.kv_start is not None, HAS_SLOTS=keys.slot_mapping is not None,
            HAS_WINDOW=window is not None, HAS_CAP=soft_cap is not None, HAS_SINKS=sinks is not None, SPLITS=splits,
            PRECISION="tf32x3" if q.dtype == torch.float32 else "tf32", M=config["M"], N=config["N"], **config.options,
        )  # fmt: skip

    def fits(config: Config) -> bool:
        is_small = keys.max_query_len * group <= 32
        if q.dtype == torch.float32:
            # Three products in tf32 for one in float32 keep as many operands in registers.
            return config["M"] == 16 and config["N"] == 32
        # A decode's tile of 64 rows would be mostly empty, a prefill's of 16 would read the keys too often.
        return (config["M"] == 16) == is_small and block_d <= config["D"]

    key = str(q.dtype), str(k_cache.dtype), num_q_heads, num_kv_heads, head_dim, splits, size_class(keys.max_query_len)
    TUNER.run(SPACE, key, run, fits)
    if splits > 1:
        used = None if keys.query_start_loc is None else keys.query_start_loc[num_reqs:]
        add_parts(part, part_max, part_sum, out, num_used=used, v_scale=v_scale)
    return out


def parts_in(
    workspace: torch.Tensor | None, shape: tuple[int, int, int], head_dim: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What `add_parts` takes for a shape [S, T, H], in the workspace (uint8) if there is one."""
    rows = math.prod(shape)
    if workspace is None:
        made = torch.empty(rows * (head_dim + 2), dtype=torch.float32, device=device)
    else:
        made = workspace.view(torch.float32)[: rows * (head_dim + 2)]
    part, part_max, part_sum = made.split((rows * head_dim, rows, rows))
    return part.view(*shape, head_dim), part_max.view(shape), part_sum.view(shape)


def add_parts(
    part: torch.Tensor,
    part_max: torch.Tensor,
    part_sum: torch.Tensor,
    out: torch.Tensor,
    *,
    num_used: torch.Tensor | None = None,
    v_scale: float = 1.0,
) -> None:
    """out [T, H, D] from what S programs each have found in their share of the keys.

    part [S, T, H, D] float32: values times `exp(score - part_max)`, part_max and part_sum [S, T, H]: the greatest score
    and the sum of the weights; S is a power of two. Rows from `num_used` (one int32 on the device) on are left alone.
    """
    splits, num_tokens, num_heads, head_dim = part.shape
    launch(
        _combine_kernel, (num_tokens, num_heads), part, part_max, part_sum, out, part if num_used is None else num_used,
        num_tokens, num_heads, out.stride(0), out.stride(1), v_scale,
        HAS_USED=num_used is not None, SPLITS=splits, HEAD_DIM=head_dim, D=power_of_two(head_dim),
    )  # fmt: skip
