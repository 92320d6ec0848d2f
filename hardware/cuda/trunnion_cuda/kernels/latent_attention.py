"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) over a paged cache of latents, decode and prefill.

For what the attention library refuses. All heads attend to one latent key of R + Dr features whose first R are the
value: one program takes M rows (tokens of a request times heads) through the keys they see, each read once, with an
online softmax (arXiv:2205.14135); long keys may be split among programs, whose parts the paged attention's second
kernel adds up. For a request of n new tokens, s keys and H heads of b bytes: `2 n s H (2 R + Dr)` FLOPs (half of it for
a causal prefill) and `s (R + Dr) b` bytes per tile of M rows. Decodes of few heads run against memory bandwidth, the
others against the tensor cores.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from trunnion_cuda.kernels.latent_call import LatentCall
from trunnion_cuda.kernels.launch import EVERY_ARCHITECTURE, ceil_div, launch, power_of_two
from trunnion_cuda.kernels.mla_decode import CONFIGS, is_candidate, tile_decodes
from trunnion_cuda.kernels.paged_attention import PagedKeys, add_parts, parts_in
from trunnion_cuda.kernels.tile_kernels import TILELANG, TRITON
from trunnion_cuda.kernels.tuning import TUNER, Config, Space, size_class

ARCHITECTURES = EVERY_ARCHITECTURE
SPACE = Space(
    "latent_attention",
    (
        Config({"M": 16, "N": 32, "C": 512}, num_warps=8, num_stages=2),
        Config({"M": 32, "N": 32, "C": 512}, num_warps=8, num_stages=2),
        Config({"M": 16, "N": 32, "C": 256}, num_warps=4, num_stages=2),
        Config({"M": 64, "N": 32, "C": 256}, num_warps=8, num_stages=1),
        Config({"M": 16, "N": 16, "C": 256}, num_warps=8, num_stages=1),
    ),
)
"""C: the most features of the value that a program gathers. 16 keys are for float32."""
EITHER = Space("latent_decode", (*SPACE.configs, *CONFIGS))
"""Of uniform decodes that TileLang's `mla_decode` is written for too. Triton's stand first: they run until `warm_up`
has timed TileLang's to be faster on the device."""
SCORE_FEATURES = 32
"""That go into scores at once in float32."""
MAX_ROWS = max(config["M"] for config in SPACE.configs)
MAX_LATENT, MAX_ROPE = 512, 128
"""Features whose tiles stay in registers and shared memory."""


@triton.jit
def _add_scores(score, rows, keys, is_row, is_key, LATENT: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr):
    """A few features at a time: operands in float32 are three of tf32, and all at once leave no registers."""
    for begin in range(0, LATENT, BLOCK):
        feature = begin + tl.arange(0, BLOCK)
        is_feature = feature < LATENT
        left = tl.load(rows + feature[None, :], mask=is_row[:, None] & is_feature[None, :], other=0.0)
        right = tl.load(keys + feature[:, None], mask=is_key[None, :] & is_feature[:, None], other=0.0)
        score = tl.dot(left, right, score, input_precision=PRECISION)
    return score


@triton.jit
def _latent_kernel(
    q_latent, q_rope, cache, block_table, seq_lens, query_start_loc, slot_mapping, out, part, part_max, part_sum,
    latent_token, latent_head, rope_token, rope_head, out_token, out_head, cache_block, cache_token, table_row,
    block_size, num_tokens, query_len, scale,
    HEADS: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    UNIFORM: tl.constexpr, HAS_SLOTS: tl.constexpr, SPLITS: tl.constexpr, PRECISION: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0)
    tile = tl.program_id(1) // SPLITS
    split = tl.program_id(1) % SPLITS
    # BLOCK: of features that go into scores at once; 0: all, which are those that the program gathers.
    if UNIFORM:
        start = request * query_len
        num_queries = query_len
    else:
        start = tl.load(query_start_loc + request)
        num_queries = tl.load(query_start_loc + request + 1) - start
    if tile * M < num_queries * HEADS:
        num_keys = tl.load(seq_lens + request)
        row = tile * M + tl.arange(0, M)
        query = row // HEADS
        head = row % HEADS
        is_row = query < num_queries
        feature = tl.program_id(2) * C + tl.arange(0, C)
        turned = tl.arange(0, D)
        is_feature = feature < LATENT
        is_turned = turned < ROPE
        token = (start + query).to(tl.int64)
        rows = q_latent + token[:, None] * latent_token + head[:, None] * latent_head
        rope_at = q_rope + token[:, None] * rope_token + head[:, None] * rope_head + turned[None, :]
        rope_queries = tl.load(rope_at, mask=is_row[:, None] & is_turned[None, :], other=0.0)
        queries = rope_queries
        if BLOCK == 0:
            queries = tl.load(rows + feature[None, :], mask=is_row[:, None] & is_feature[None, :], other=0.0)
        before = num_keys - num_queries
        position = before + query
        # The keys that some row of the tile sees.
        low = 0
        last_query = tl.minimum((tile * M + M - 1) // HEADS, num_queries - 1)
        high = tl.minimum(num_keys, before + last_query + 1)
        if SPLITS > 1:
            share = tl.cdiv(tl.cdiv(tl.maximum(high, 0), SPLITS), N) * N
            low = split * share
            high = tl.minimum(high, low + share)
        peak = tl.full([M], float("-inf"), tl.float32)
        total = tl.zeros([M], tl.float32)
        gathered = tl.zeros([M, C], tl.float32)
        for first in range(low, high, N):
            key = first + tl.arange(0, N)
            is_key = key < high
            block = tl.load(block_table + request.to(tl.int64) * table_row + key // block_size, mask=is_key, other=0)
            at = cache + block.to(tl.int64) * cache_block + (key % block_size) * cache_token
            if HAS_SLOTS:
                own = key - before
                has_slot = tl.load(slot_mapping + start + own, mask=is_key & (own >= 0), other=0) >= 0
                is_key = is_key & has_slot
            keys = tl.load(at[:, None] + feature[None, :], mask=is_key[:, None] & is_feature[None, :], other=0.0)
            rope_keys = tl.load(
                at[:, None] + LATENT + turned[None, :], mask=is_key[:, None] & is_turned[None, :], other=0.0
            )
            score = tl.dot(rope_queries, tl.trans(rope_keys), input_precision=PRECISION)
            if BLOCK == 0:
                score = tl.dot(queries, tl.trans(keys), score, input_precision=PRECISION)
            else:
                score = _add_scores(score, rows, at[None, :], is_row, is_key, LATENT, PRECISION, BLOCK)
            score = score * scale
            is_seen = is_key[None, :] & (key[None, :] <= position[:, None]) & is_row[:, None]
            score = tl.where(is_seen, score, float("-inf"))
            new_peak = tl.maximum(peak, tl.max(score, axis=1))
            # A row that has seen nothing yet: minus infinity less itself would be NaN.
            base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
            weight = tl.exp(score - base[:, None])
            shrink = tl.exp(peak - base)
            total = total * shrink + tl.sum(weight, axis=1)
            gathered = gathered * shrink[:, None]
            gathered = tl.dot(weight.to(keys.dtype), keys, gathered, input_precision=PRECISION)
            peak = new_peak
        mask = is_row[:, None] & is_feature[None, :]
        if SPLITS > 1:
            row_at = (split * num_tokens + token) * HEADS + head
            tl.store(part + row_at[:, None] * LATENT + feature[None, :], gathered, mask=mask)
            if tl.program_id(2) == 0:
                tl.store(part_max + row_at, peak, mask=is_row)
                tl.store(part_sum + row_at, total, mask=is_row)
        else:
            result = gathered / tl.where(total == 0.0, 1.0, total)[:, None]
            out_at = out + token[:, None] * out_token + head[:, None] * out_head + feature[None, :]
            tl.store(out_at, result.to(out.dtype.element_ty), mask=mask)


def why_not(latent: int, rope: int) -> str | None:
    """Why the kernel cannot attend to latents of these sizes, or None."""
    if latent > MAX_LATENT or rope > MAX_ROPE:
        return f"latents of {latent} + {rope} features are more than {MAX_LATENT} + {MAX_ROPE}"
    return None


def num_tiles(num_rows: int) -> int:
    """Of a decode of so many tokens times heads, at least."""
    return ceil_div(num_rows, MAX_ROWS)


def latent_attention(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    cache: torch.Tensor,
    keys: PagedKeys,
    *,
    scale: float,
    splits: int = 1,
    out: torch.Tensor | None = None,
    clears: bool = True,
    workspace: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of q_latent [T, H, R] and q_rope [T, H, Dr] to latents [num_blocks, block_size, R + Dr].

    -> [T, H, R]. The step's own latents must have been written; what `keys` say of `kv_start` is not heard. Rows that
    belong to no request become zero (without `clears` they are left alone), and so do those that see nothing (padding
    requests). `splits` is a power of two; parts lie in `workspace` (uint8), and are fewer if it is short. Fit for
    capture: nothing is read from the device.

    Raises:
        ValueError: a shape, dtype or layout that the kernel cannot take.
    """
    (num_tokens, num_heads, latent), rope = q_latent.shape, q_rope.shape[2]
    reason = why_not(latent, rope)
    if cache.shape[2] != latent + rope or q_rope.shape[:2] != q_latent.shape[:2]:
        reason = f"queries {tuple(q_latent.shape)} and {tuple(q_rope.shape)} do not go with rows of {cache.shape[2]}"
    if any(tensor.stride(2) != 1 for tensor in (q_latent, q_rope, cache)):
        reason = f"strides of queries {q_latent.stride()}, {q_rope.stride()}, cache {cache.stride()}: features apart"
    if {q_latent.dtype, q_rope.dtype} != {cache.dtype}:
        reason = f"queries in {q_latent.dtype} and {q_rope.dtype} with a cache in {cache.dtype}"
    if reason is not None:
        raise ValueError(f"latent attention cannot run: {reason}")
    out = torch.empty(q_latent.shape, dtype=q_latent.dtype, device=q_latent.device) if out is None else out
    if keys.query_start_loc is not None and clears:
        out.zero_()
    if num_tokens == 0:
        return out
    if workspace is not None:
        row_bytes = 4 * num_tokens * num_heads * (latent + 2)
        splits = min(splits, 1 << max((workspace.numel() // row_bytes).bit_length() - 1, 0))
    parts = parts_in(workspace, (splits, num_tokens, num_heads), latent, out.device) if splits > 1 else None
    call = LatentCall(
        q_latent=q_latent, q_rope=q_rope, cache=cache, keys=keys, scale=scale, out=out, splits=splits, parts=parts
    )
    _run(call)
    if parts is not None:
        used = None if keys.query_start_loc is None else keys.query_start_loc[keys.seq_lens.shape[0] :]
        add_parts(*parts, out, num_used=used)
    return out


def _run(call: LatentCall) -> None:
    """By Triton, or by TileLang: whichever was timed to be faster for the kind of call."""
    key = str(call.cache.dtype), *call.sizes, call.splits, size_class(call.keys.max_query_len)
    tiles = tile_decodes()

    def run(config: Config) -> None:
        is_tile = config in CONFIGS
        if is_tile:
            tiles.run(config, call, other=_launch_first)
        else:
            _launch(call, config)
        tiles.note(key, TILELANG if is_tile else TRITON)

    def fits(config: Config) -> bool:
        if config in CONFIGS:
            return tiles.fits(config, call, may_compile=TUNER.is_tuning)
        return _fits(call, config)

    if is_candidate(call):
        TUNER.run(EITHER, key, run, fits)
    else:
        TUNER.run(SPACE, key, lambda config: _launch(call, config), lambda config: _fits(call, config))


def _fits(call: LatentCall, config: Config) -> bool:
    num_heads, latent, _ = call.sizes
    if call.cache.dtype == torch.float32:
        return config["N"] == 16
    is_small = call.keys.max_query_len * num_heads <= 32
    return config["N"] > 16 and _padded(latent) <= config["C"] and (config["M"] == 16 or not is_small)


def _padded(latent: int) -> int:
    return max(power_of_two(latent), 16)


def _launch_first(call: LatentCall) -> None:
    _launch(call, next(config for config in SPACE.configs if _fits(call, config)))


def _launch(call: LatentCall, config: Config) -> None:
    (num_heads, latent, rope), keys, cache = call.sizes, call.keys, call.cache
    none, is_wide, columns = keys.seq_lens, cache.dtype == torch.float32, min(config["C"], _padded(latent))
    part, part_max, part_sum = (none,) * 3 if call.parts is None else call.parts
    tiles = ceil_div(keys.max_query_len * num_heads, config["M"])
    launch(
        _latent_kernel, (keys.seq_lens.shape[0], tiles * call.splits, ceil_div(latent, columns)),
        call.q_latent, call.q_rope, cache, keys.block_table, keys.seq_lens,
        none if keys.query_start_loc is None else keys.query_start_loc,
        none if keys.slot_mapping is None else keys.slot_mapping, call.out, part, part_max, part_sum,
        call.q_latent.stride(0), call.q_latent.stride(1), call.q_rope.stride(0), call.q_rope.stride(1),
        call.out.stride(0), call.out.stride(1),
        cache.stride(0), cache.stride(1), keys.block_table.stride(0), cache.shape[1], call.q_latent.shape[0],
        keys.max_query_len, call.scale,
        HEADS=num_heads, LATENT=latent, ROPE=rope, D=max(power_of_two(rope), 16),
        BLOCK=SCORE_FEATURES if is_wide else 0,
        UNIFORM=keys.query_start_loc is None, HAS_SLOTS=keys.slot_mapping is not None, SPLITS=call.splits,
        PRECISION="tf32x3" if is_wide else "tf32", M=config["M"], N=config["N"], C=columns,
        **config.options,
    )  # fmt: skip
