"""Decode of multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) over a paged cache of latents, in TileLang.

All heads attend to one latent key of R + Dr features whose first R are the value, so that one read serves H heads
twice. For a request of s tokens: `2 s H (2 R + Dr)` FLOPs and `s (R + Dr) b` bytes per tile of heads: with 16 heads
memory bandwidth is the limit, with 128 (about 240 FLOPs per byte) it meets the tensor cores. Long requests are split
among programs, whose parts the paged attention's second kernel adds up.
"""

# No `from __future__ import annotations`: TileLang reads the annotations of a kernel as values.
import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

from trunnion.ops.quantised import TINY
from trunnion_cuda.kernels.latent_call import LatentCall, probe
from trunnion_cuda.kernels.launch import EVERY_ARCHITECTURE
from trunnion_cuda.kernels.paged_attention import add_parts, parts_in
from trunnion_cuda.kernels.tile_kernels import Kernel, TileKernels, why_not_here
from trunnion_cuda.kernels.tuning import Config

ARCHITECTURES = EVERY_ARCHITECTURE
OPERATOR = "latent_decode"
"""How reports call what this is an implementation of."""
CONFIGS = (
    Config({"HEADS": 16, "KEYS": 32}, num_warps=4, num_stages=1),
    Config({"HEADS": 16, "KEYS": 64}, num_warps=4, num_stages=1),
    Config({"HEADS": 64, "KEYS": 64}, num_warps=8, num_stages=1),
)
"""Scores are split among warps by keys, 8 each at least: 8 warps need 64 keys."""
FEATURES, ROPE_FEATURES = 64, 16
"""Latents come in multiples of the first: 8 warps share the gathered features, 8 each at least. Turned features in
multiples of the other, which a product takes at once."""
Shape = tuple[int, int, int, int, int, float, int]
"""The first arguments of `program`."""


def shared_bytes(config: Config, latent: int, rope: int) -> int:
    """Of a program with this configuration: its tiles, and at most a KiB for what warps tell each other of sums."""
    rows = config["HEADS"] + config["KEYS"] * max(config.num_stages, 1)
    return 2 * (rows * (latent + rope) + config["HEADS"] * config["KEYS"]) + 1024


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

    For any number of requests, blocks and columns of the block table, and queries of any strides between tokens and
    heads. Without splits `part` takes the result, in `dtype`. Rows of padding requests (seq_lens 0) become zero;
    placeholders (slots -1), the last rows of a request, see what came before them. `language` as in
    `block_fp8_gemm.program`.
    """
    T = language or importlib.import_module("tilelang.language")
    num_reqs, num_blocks, width = T.dynamic("num_reqs, num_blocks, width")
    num_tokens = T.dynamic("num_tokens")
    latent_token, latent_head, rope_token, rope_head = T.dynamic("latent_token, latent_head, rope_token, rope_head")
    head_blocks = -(-num_heads // block_heads)
    log2_scale = scale * 1.4426950408889634
    result = "float32" if splits > 1 else dtype

    @T.prim_func
    def mla_decode(
        q_latent: T.StridedTensor((num_tokens, num_heads, latent), (latent_token, latent_head, 1), dtype),
        q_rope: T.StridedTensor((num_tokens, num_heads, rope), (rope_token, rope_head, 1), dtype),
        cache: T.Tensor((num_blocks, block_size, latent + rope), dtype),
        block_table: T.Tensor((num_reqs, width), "int32"),
        seq_lens: T.Tensor((num_reqs,), "int32"),
        slots: T.Tensor((num_tokens,), "int32"),
        part: T.Tensor((splits, num_tokens, num_heads, latent), result),
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
            for i in T.Parallel(block_heads):
                shrink[i] = 1.0 if splits > 1 else 1.0 / T.max(total[i], 1e-30)
            for i, feature in T.Parallel(block_heads, latent):
                if head_block * block_heads + i < num_heads:
                    part[split, token, head_block * block_heads + i, feature] = T.cast(
                        gathered[i, feature] * shrink[i], result
                    )
            for i in T.Parallel(block_heads):
                if head_block * block_heads + i < num_heads:
                    # To the base of e, in which parts are added up.
                    part_max[split, token, head_block * block_heads + i] = peak[i] * 0.6931471805599453
                    part_sum[split, token, head_block * block_heads + i] = total[i]

    return mla_decode


def settings(config: Config) -> tuple[int, int, int, int]:
    """The last arguments of `program`."""
    return config["HEADS"], config["KEYS"], 32 * config.num_warps, config.num_stages


def compiled(shape: Shape, config: Config) -> Kernel:
    """The kernel of `program` for the current device; takes seconds, and needs nvcc."""
    import tilelang

    return tilelang.compile(program(*shape, *settings(config)), target="cuda")


def is_candidate(call: LatentCall) -> bool:
    """Whether the kernel is written for such calls: uniform decodes with slots, in bfloat16, of whole tiles."""
    _, latent, rope = call.sizes
    is_uniform = call.keys.query_start_loc is None and call.keys.slot_mapping is not None
    return is_uniform and call.cache.dtype == torch.bfloat16 and latent % FEATURES == 0 and rope % ROPE_FEATURES == 0


class TileDecodes(TileKernels):
    """The kernels of a process.

    Args:
        why_not: why there are none here, or None.
        compile: as `compiled`.
        max_shared_bytes: what a program may have on the device.
    """

    def __init__(self, why_not: str | None, compile: Callable[[Shape, Config], Kernel], max_shared_bytes: int) -> None:
        super().__init__(OPERATOR, "decodes", why_not)
        self._compile = compile
        self._max_shared_bytes = max_shared_bytes

    def fits(self, config: Config, call: LatentCall, *, may_compile: bool) -> bool:
        """Whether `run` may be asked for a candidate: not for what would compile, unless it may."""
        num_heads, latent, rope = call.sizes
        if self.why_not is not None or not _is_laid_out(call):
            return False
        if shared_bytes(config, latent, rope) > self._max_shared_bytes or config["HEADS"] > 16 >= num_heads:
            return False
        return may_compile or (_shape(call), settings(config)) in self

    def run(self, config: Config, call: LatentCall, *, other: Callable[[LatentCall], None]) -> None:
        """Attend. A kernel that was just compiled must agree with `other`, which does the same by other means.

        Raises:
            CannotRunError: see `TileKernels.kernel`.
        """
        shape = _shape(call)
        kernel = self.kernel(
            (shape, settings(config)),
            lambda: self._compile(shape, config),
            lambda made: _difference(made, other, probe(call, call.splits * 2 * config["KEYS"] + 5)),
        )
        _launch(kernel, call)


def _shape(call: LatentCall) -> Shape:
    return *call.sizes, call.cache.shape[1], call.keys.max_query_len, call.scale, call.splits


def _is_laid_out(call: LatentCall) -> bool:
    """On a device, with a cache of whole vectors."""
    slots = call.keys.slot_mapping
    assert slots is not None, "a candidate has slots"
    packed = call.cache, call.out, call.keys.block_table, call.keys.seq_lens, slots
    return call.cache.is_cuda and call.cache.data_ptr() % 16 == 0 and all(tensor.is_contiguous() for tensor in packed)


def _launch(kernel: Kernel, call: LatentCall) -> None:
    (num_tokens, num_heads, _), keys = call.q_latent.shape, call.keys
    assert keys.slot_mapping is not None, "a candidate has slots"
    if call.parts is None:
        # Peaks and sums go nowhere.
        _, *sums = parts_in(None, (1, num_tokens, num_heads), 0, call.out.device)
        parts = (call.out.unsqueeze(0), *sums)
    else:
        parts = call.parts
    slots = keys.slot_mapping[:num_tokens]
    kernel(call.q_latent, call.q_rope, call.cache, keys.block_table, keys.seq_lens, slots, *parts)


def _difference(kernel: Kernel, other: Callable[[LatentCall], None], call: LatentCall) -> float:
    """Of the row that differs most; waits for the device."""
    results = []
    for attend in (other, lambda call: _launch(kernel, call)):
        for written in (call.out, *(call.parts or ())):
            written.fill_(torch.nan)
        attend(call)
        if call.parts is not None:
            add_parts(*call.parts, call.out)
        results.append(call.out.float())
    wanted, found = results
    return ((found - wanted).norm(dim=-1) / wanted.norm(dim=-1).clamp(min=TINY)).max().item()


@functools.cache
def tile_decodes() -> TileDecodes:
    """The one of a process, which has one device, as its tuner."""
    if (reason := why_not_here(ARCHITECTURES)) is not None:
        return TileDecodes(reason, compiled, 0)
    return TileDecodes(None, compiled, torch.cuda.get_device_properties().shared_memory_per_block_optin)
