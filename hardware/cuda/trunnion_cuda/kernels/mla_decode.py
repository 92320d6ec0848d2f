"""Decode of multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) over a paged cache of latents, in TileLang.

All heads attend to one latent key of R + Dr features whose first R are the value, so that one read serves H heads
twice. For a request of s tokens: `2 s H (2 R + Dr)` FLOPs and `s (R + Dr) b` bytes per tile of heads: with 16 heads
memory bandwidth is the limit, with 128 (about 240 FLOPs per byte) it meets the tensor cores. Long requests are split
among programs, whose parts the paged attention's second kernel adds up.
"""

# No `from __future__ import annotations`: TileLang reads the annotations of a kernel as values.
import functools
import importlib
from typing import Any

import torch

from trunnion_cuda.kernels.launch import EVERY_ARCHITECTURE
from trunnion_cuda.kernels.paged_attention import add_parts
from trunnion_cuda.kernels.tuning import TUNER, Config, Space, size_class

ARCHITECTURES = EVERY_ARCHITECTURE
SPACE = Space(
    "mla_decode",
    (
        Config({"HEADS": 16, "KEYS": 32}, num_warps=4, num_stages=1),
        Config({"HEADS": 16, "KEYS": 64}, num_warps=4, num_stages=1),
        Config({"HEADS": 64, "KEYS": 64}, num_warps=8, num_stages=1),
    ),
)
"""Scores are split among warps by keys, 8 each at least: 8 warps need 64 keys."""
SMALL_SHARED_MEMORY = 99 << 10
"""What a program has on sm_120, and less than on the others."""


def shared_bytes(config: Config, latent: int, rope: int) -> int:
    """Of a program with this configuration, about."""
    rows = config["HEADS"] + config["KEYS"] * max(config.num_stages, 1)
    return 2 * (rows * (latent + rope) + config["HEADS"] * config["KEYS"])


def program(
    num_heads: int,
    latent: int,
    rope: int,
    block_size: int,
    query_len: int,
    scale: float,
    splits: int,
    block_heads: int,
    block_keys: int,
    threads: int,
    stages: int,
    *,
    dtype: str = "bfloat16",
    language: Any = None,
) -> Any:
    """The TileLang function `(q_latent, q_rope, cache, block_table, seq_lens, slots, part, part_max, part_sum)`.

    For any number of requests, blocks and columns of the block table. `language` as in `block_fp8_gemm.program`.
    """
    T = language or importlib.import_module("tilelang.language")
    num_reqs, num_blocks, width = T.dynamic("num_reqs, num_blocks, width")
    num_tokens = T.dynamic("num_tokens")
    head_blocks = -(-num_heads // block_heads)
    log2_scale = scale * 1.4426950408889634

    @T.prim_func
    def mla_decode(
        q_latent: T.Tensor((num_tokens, num_heads, latent), dtype),
        q_rope: T.Tensor((num_tokens, num_heads, rope), dtype),
        cache: T.Tensor((num_blocks, block_size, latent + rope), dtype),
        block_table: T.Tensor((num_reqs, width), "int32"),
        seq_lens: T.Tensor((num_reqs,), "int32"),
        slots: T.Tensor((num_tokens,), "int32"),
        part: T.Tensor((splits, num_tokens, num_heads, latent), "float32"),
        part_max: T.Tensor((splits, num_tokens, num_heads), "float32"),
        part_sum: T.Tensor((splits, num_tokens, num_heads), "float32"),
    ):
        with T.Kernel(num_tokens, head_blocks, splits, threads=threads) as (token, head_block, split):
            queries = T.alloc_shared((block_heads, latent), dtype)
            rope_queries = T.alloc_shared((block_heads, rope), dtype)
            keys = T.alloc_shared((block_keys, latent), dtype)
            rope_keys = T.alloc_shared((block_keys, rope), dtype)
            weights = T.alloc_shared((block_heads, block_keys), dtype)
            score = T.alloc_fragment((block_heads, block_keys), "float32")
            gathered = T.alloc_fragment((block_heads, latent), "float32")
            peak = T.alloc_fragment((block_heads,), "float32")
            last_peak = T.alloc_fragment((block_heads,), "float32")
            shrink = T.alloc_fragment((block_heads,), "float32")
            total = T.alloc_fragment((block_heads,), "float32")
            added = T.alloc_fragment((block_heads,), "float32")
            written = T.alloc_var("int32", init=0)

            request = token // query_len
            before = seq_lens[request] - query_len
            for step in T.serial(query_len):
                if slots[request * query_len + step] >= 0:
                    written += 1
            # Placeholders, the last rows of a request, have no keys; padding requests see none at all.
            seen = T.max(before + T.min(token % query_len + 1, written), 0)
            share = T.ceildiv(T.ceildiv(seen, splits), block_keys) * block_keys
            first = split * share
            last = T.min(first + share, seen)

            T.copy(q_latent[token, head_block * block_heads, 0], queries)
            T.copy(q_rope[token, head_block * block_heads, 0], rope_queries)
            T.clear(gathered)
            T.clear(total)
            T.fill(peak, -1e30)
            for tile in T.Pipelined(T.ceildiv(T.max(last - first, 0), block_keys), num_stages=stages):
                for j, feature in T.Parallel(block_keys, latent):
                    at = T.min(first + tile * block_keys + j, last - 1)
                    keys[j, feature] = cache[block_table[request, at // block_size], at % block_size, feature]
                for j, feature in T.Parallel(block_keys, rope):
                    at = T.min(first + tile * block_keys + j, last - 1)
                    rope_keys[j, feature] = cache[
                        block_table[request, at // block_size], at % block_size, latent + feature
                    ]
                T.gemm(queries, keys, score, transpose_B=True, policy=T.GemmWarpPolicy.FullCol, clear_accum=True)
                T.gemm(rope_queries, rope_keys, score, transpose_B=True, policy=T.GemmWarpPolicy.FullCol)
                T.copy(peak, last_peak)
                for i, j in T.Parallel(block_heads, block_keys):
                    score[i, j] = T.if_then_else(
                        first + tile * block_keys + j < last, score[i, j] * log2_scale, -T.infinity("float32")
                    )
                T.reduce_max(score, peak, dim=1, clear=False)
                for i in T.Parallel(block_heads):
                    shrink[i] = T.exp2(last_peak[i] - peak[i])
                for i, j in T.Parallel(block_heads, block_keys):
                    score[i, j] = T.exp2(score[i, j] - peak[i])
                T.reduce_sum(score, added, dim=1)
                for i in T.Parallel(block_heads):
                    total[i] = total[i] * shrink[i] + added[i]
                T.copy(score, weights)
                for i, feature in T.Parallel(block_heads, latent):
                    gathered[i, feature] *= shrink[i]
                T.gemm(weights, keys, gathered, policy=T.GemmWarpPolicy.FullCol)
            for i, feature in T.Parallel(block_heads, latent):
                if head_block * block_heads + i < num_heads:
                    part[split, token, head_block * block_heads + i, feature] = gathered[i, feature]
            for i in T.Parallel(block_heads):
                if head_block * block_heads + i < num_heads:
                    # To the base of e, in which parts are added up.
                    part_max[split, token, head_block * block_heads + i] = peak[i] * 0.6931471805599453
                    part_sum[split, token, head_block * block_heads + i] = total[i]

    return mla_decode


@functools.cache
def _compiled(shape: tuple[Any, ...], config: tuple[int, int, int, int]) -> Any:
    import tilelang

    return tilelang.compile(program(*shape, *config), target="cuda")


def settings(config: Config) -> tuple[int, int, int, int]:
    """The last arguments of `program`."""
    return config["HEADS"], config["KEYS"], 32 * config.num_warps, config.num_stages


def mla_decode(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    scale: float,
    splits: int = 1,
    max_shared_bytes: int = SMALL_SHARED_MEMORY,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """One step of B uniform decodes: q_latent [T, H, R], q_rope [T, H, Dr] -> [T, H, R], all bfloat16 and contiguous.

    T is a multiple of B; kv_cache [num_blocks, block_size, R + Dr] holds the step's own latents already; block_table
    [B, max_blocks], seq_lens [B] (0: a padding request, whose rows become zero), slot_mapping [T] int32. Fit for
    capture once compiled, at the first call of a shape, which is to be in `warm_up`.

    Raises:
        ValueError: a dtype or layout that the kernel cannot take.
    """
    num_tokens, num_heads, latent = q_latent.shape
    tensors = q_latent, q_rope, kv_cache, block_table, seq_lens, slot_mapping
    num_reqs, rope = seq_lens.shape[0], q_rope.shape[2]
    if any(tensor.dtype != torch.bfloat16 for tensor in tensors[:3]) or not all(t.is_contiguous() for t in tensors):
        raise ValueError(f"latent attention takes contiguous bfloat16, not {[str(tensor.dtype) for tensor in tensors]}")
    if num_reqs and num_tokens % num_reqs:
        raise ValueError(f"{num_tokens} tokens are no uniform decode of {num_reqs} requests")
    out = torch.empty(q_latent.shape, dtype=q_latent.dtype, device=q_latent.device) if out is None else out
    if num_tokens == 0:
        return out
    part = torch.empty((splits, *q_latent.shape), dtype=torch.float32, device=out.device)
    part_max, part_sum = (torch.empty(part.shape[:-1], dtype=torch.float32, device=out.device) for _ in range(2))
    shape = num_heads, latent, rope, kv_cache.shape[1], num_tokens // num_reqs, scale, splits
    TUNER.run(
        SPACE,
        (*map(str, shape), size_class(num_tokens)),
        lambda config: _compiled(shape, settings(config))(*tensors, part, part_max, part_sum),
        lambda config: shared_bytes(config, latent, rope) <= max_shared_bytes,
    )
    add_parts(part, part_max, part_sum, out)
    return out
