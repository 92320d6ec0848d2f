"""Calls whose launches are compiled: shapes of models that are served, one per way through each kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch

from trunnion_cuda.kernels import (
    activation,
    cache_write,
    gated_delta,
    grouped_int_experts,
    grouped_int_linear,
    latent_attention,
    merge_states,
    moe,
    norm,
    paged_attention,
    quantised_experts,
    quantised_linear,
    rotary_embedding,
    routing,
    row_quantisation,
    sampled_ids,
)
from trunnion_cuda.kernels.launch import EVERY_ARCHITECTURE, SM80, SM90A, SM100A, SM120A, WITH_FP8

BF16, FP32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
MMA_SYNC, WGMMA, TCGEN05 = "mma.sync", "wgmma", "tcgen05.mma"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call of a kernel's function, which is recorded and not run."""

    name: str
    call: Callable[[], object]
    architectures: tuple[str, ...] = EVERY_ARCHITECTURE
    mma: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Kernel -> architecture -> the kind of tensor core instruction that it must have there."""
    quick: bool = False
    """Compiled on every change, for one architecture in each family; the others nightly."""


def _small_tiles(*kernels: str) -> Mapping[str, Mapping[str, str]]:
    """Fewer than 64 rows: Ampere's instructions everywhere."""
    return MappingProxyType(dict.fromkeys(kernels, MappingProxyType(dict.fromkeys(EVERY_ARCHITECTURE, MMA_SYNC))))


def _large_tiles(*kernels: str) -> Mapping[str, Mapping[str, str]]:
    """From 64 rows on, Hopper's and Blackwell's own."""
    kinds = {SM80: MMA_SYNC, SM90A: WGMMA, SM100A: TCGEN05, SM120A: MMA_SYNC}
    return MappingProxyType(dict.fromkeys(kernels, MappingProxyType(kinds)))


def _empty(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def _ints(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int32)


def _rotary(writes: torch.dtype | None, interleaved: bool = False, section: list[int] | None = None) -> object:
    q, k, v = _empty(17, 32, 128), _empty(17, 8, 128), _empty(17, 8, 128)
    table, slots = _empty(4096, 128, dtype=FP32), _ints(17)
    positions = _ints(17) if section is None else _ints(17, 3)
    if writes is None and section is not None:
        return rotary_embedding.mrope_embedding(q, k, positions, table, section)
    if writes is None:
        return rotary_embedding.rotary_embedding(q, k, positions, table, interleaved)
    caches = (_empty(64, 16, 8, 128, dtype=writes) for _ in range(2))
    return rotary_embedding.rotary_and_write(
        q, k, v, positions, table, interleaved, *caches, slots, section=section, k_scale=0.5, v_scale=0.5
    )


def _write(dtype: torch.dtype) -> None:
    k, v = _empty(17, 8, 96), _empty(17, 8, 96)
    caches = (_empty(64, 16, 8, 96, dtype=dtype) for _ in range(2))
    cache_write.write_cache(k, v, *caches, _ints(17), first_scale=0.5, second_scale=0.5)


def _experts(num_tokens: int, dtype: torch.dtype = BF16) -> object:
    w13, w2 = _empty(64, 2 * 768, 2048, dtype=dtype), _empty(64, 2048, 768, dtype=dtype)
    routing = _empty(num_tokens, 8, dtype=FP32), torch.empty((num_tokens, 8), dtype=torch.int64)
    return moe.fused_experts(_empty(num_tokens, 2048, dtype=dtype), w13, w2, *routing)


def _gpt_oss_experts(num_tokens: int) -> object:
    """Of gpt-oss-20b: biases and a clamped activation."""
    w13, w2 = _empty(32, 2 * 2880, 2880), _empty(32, 2880, 2880)
    routing = _empty(num_tokens, 4, dtype=FP32), torch.empty((num_tokens, 4), dtype=torch.int64)
    biases = _empty(32, 2 * 2880), _empty(32, 2880)
    return moe.fused_experts(_empty(num_tokens, 2880), w13, w2, *routing, *biases, 1.702, 7.0)


def _attention(
    query_len: int,
    *,
    heads: tuple[int, int, int] = (32, 8, 128),
    dtype: torch.dtype = BF16,
    cache: torch.dtype | None = None,
    uniform: bool = False,
    splits: int = 1,
    special: bool = False,
) -> object:
    num_heads, kv_heads, head_dim = heads
    num_reqs = 8
    q = _empty(num_reqs * query_len, num_heads, head_dim, dtype=dtype)
    caches = [_empty(64, 16, kv_heads, head_dim, dtype=cache or dtype) for _ in range(2)]
    keys = paged_attention.PagedKeys(
        block_table=_ints(num_reqs, 256),
        seq_lens=_ints(num_reqs),
        query_start_loc=None if uniform else _ints(num_reqs + 1),
        max_query_len=query_len,
        kv_start=_ints(num_reqs) if special else None,
        slot_mapping=_ints(num_reqs * query_len) if special else None,
    )
    options = {"window": 512, "soft_cap": 30.0, "sinks": _empty(num_heads, dtype=FP32)} if special else {}
    return paged_attention.paged_attention(q, *caches, keys, scale=0.1, splits=splits, **options)


def _latent(
    query_len: int,
    *,
    num_heads: int = 24,
    parts: tuple[int, int] = (512, 64),
    dtype: torch.dtype = BF16,
    uniform: bool = False,
    splits: int = 1,
) -> object:
    num_reqs, (latent, rope) = 8, parts
    rows = num_reqs * query_len
    keys = paged_attention.PagedKeys(
        block_table=_ints(num_reqs, 256),
        seq_lens=_ints(num_reqs),
        query_start_loc=None if uniform else _ints(num_reqs + 1),
        max_query_len=query_len,
        slot_mapping=_ints(rows),
    )
    queries = (_empty(rows, num_heads, size, dtype=dtype) for size in parts)
    cache = _empty(64, 16, latent + rope, dtype=dtype)
    return latent_attention.latent_attention(*queries, cache, keys, scale=0.1, splits=splits)


def _merge(num_heads: int, head_dim: int, dtype: torch.dtype = BF16) -> None:
    out, other = (_empty(17, num_heads, head_dim, dtype=dtype) for _ in range(2))
    lse, other_lse = (_empty(17, num_heads, dtype=FP32) for _ in range(2))
    merge_states.merge_states(out, lse, other, other_lse)


def _delta_rule(num_tokens: int, dtype: torch.dtype = BF16) -> object:
    q, k = (_empty(2, num_tokens, 16, 128, dtype=dtype) for _ in range(2))
    v, state = _empty(2, num_tokens, 32, 128, dtype=dtype), _empty(2, 32, 128, 128, dtype=FP32)
    g, beta = (_empty(2, num_tokens, 32, dtype=FP32) for _ in range(2))
    return gated_delta.gated_delta_rule(q, k, v, g, beta, state)


def _recurrent_decode(length: int) -> object:
    num_reqs, channels = 8, 2 * 16 * 128 + 32 * 128
    columns = gated_delta.StateColumns(
        state_indices=_ints(num_reqs, length),
        has_initial_state=_ints(num_reqs),
        num_accepted=_ints(num_reqs) if length > 1 else None,
    )
    rows = num_reqs * length
    return gated_delta.recurrent_decode(
        _empty(rows, channels), _empty(rows, 32, dtype=FP32), _empty(rows, 32, dtype=FP32), _empty(channels, 4), None,
        _empty(16, channels, 3), _empty(16, 32, 128, 128, dtype=FP32), columns, num_k_heads=16,
    )  # fmt: skip


def _quantised_linear(num_tokens: int, dtype: torch.dtype, block: int = 0) -> object:
    values, weight = _empty(num_tokens, 4096, dtype=dtype), _empty(6144, 4096, dtype=dtype)
    like = _empty(num_tokens, 4096)
    if block:
        scales, weight_scale = _empty(num_tokens, 32, dtype=FP32), _empty(48, 32, dtype=FP32)
        return quantised_linear.multiply(values, scales, weight, weight_scale, None, like, block, block)
    scales, weight_scale = _empty(num_tokens, 1, dtype=FP32), _empty(6144, dtype=FP32)
    return quantised_linear.multiply(values, scales, weight, weight_scale, _empty(6144), like)


def _grouped_int(
    num_tokens: int, bits: int, group_size: int, *, zeros: bool = True, dtype: torch.dtype = BF16
) -> object:
    groups = -(-4096 // group_size)
    zero_points = _empty(6144, groups, dtype=torch.uint8) if zeros else None
    weight, scales = _empty(6144, 4096 * bits // 8, dtype=torch.uint8), _empty(6144, groups, dtype=dtype)
    x, bias = _empty(num_tokens, 4096, dtype=dtype), _empty(6144, dtype=dtype)
    return grouped_int_linear.grouped_int_linear(x, weight, scales, zero_points, bias, bits, group_size)


def _grouped_int_experts(num_tokens: int, bits: int = 4, *, zeros: bool = True, dtype: torch.dtype = BF16) -> object:
    sizes = (1536, 2048), (2048, 768)
    weights = [
        tensor
        for rows, columns in sizes
        for tensor in (
            _empty(64, rows, columns * bits // 8, dtype=torch.uint8),
            _empty(64, rows, columns // 128, dtype=dtype),
            _empty(64, rows, columns // 128, dtype=torch.uint8) if zeros else None,
        )
    ]
    routing = _empty(num_tokens, 8, dtype=FP32), torch.empty((num_tokens, 8), dtype=torch.int64)
    x = _empty(num_tokens, 2048, dtype=dtype)
    return grouped_int_experts.grouped_int_experts(x, *weights, *routing, bits, 128, 128)


def _quantised_experts(num_tokens: int, dtype: torch.dtype, blocks: bool = False) -> object:
    sizes, scales = ((1536, 2048), (2048, 768)), ((12, 16), (16, 6)) if blocks else ((1536,), (2048,))
    routing = _empty(num_tokens, 8, dtype=FP32), torch.empty((num_tokens, 8), dtype=torch.int64)
    w13, w2 = (
        quantised_experts.Weights(
            _empty(64, *size, dtype=dtype), _empty(64, *of_size, dtype=FP32), *((128, 128) if blocks else ())
        )
        for size, of_size in zip(sizes, scales, strict=True)
    )
    return quantised_experts.sum_of_experts(_empty(num_tokens, 2048), w13, w2, *routing)


def cases() -> tuple[Case, ...]:
    """All of them; names are unique."""
    row, weight = _empty(17, 7168), _empty(7168)
    gemm, large_gemm = (tiles("_grouped_gemm_kernel") for tiles in (_small_tiles, _large_tiles))
    latent = _small_tiles("_latent_kernel")
    decode, prefill = (tiles("_attention_kernel") for tiles in (_small_tiles, _large_tiles))
    chunks = _small_tiles("_inverse_kernel", "_chunks_kernel")
    linear = _small_tiles("_linear_kernel")
    grouped, int_experts = _small_tiles("_grouped_int_kernel"), _small_tiles("_grouped_int_experts_kernel")
    experts, large_experts = (tiles("_scaled_experts_kernel") for tiles in (_small_tiles, _large_tiles))
    # Tensor memory takes no int8 from Triton.
    int8_experts = {"_scaled_experts_kernel": {**large_experts["_scaled_experts_kernel"], SM100A: MMA_SYNC}}
    return (
        Case(name="rms_norm", call=lambda: norm.rms_norm(row, weight, 1e-6, False), quick=True),
        Case(name="rms_norm_heads", call=lambda: norm.rms_norm(_empty(17, 32, 128), _empty(128), 1e-6, True)),
        Case(name="rms_norm_fp32", call=lambda: norm.rms_norm(row.float(), weight.float(), 1e-6, False)),
        Case(name="fused_add_rms_norm", quick=True, call=lambda: norm.fused_add_rms_norm(
            row, row, weight, 1e-6, False)),
        Case(name="fused_add_rms_norm_16384", call=lambda: norm.fused_add_rms_norm(
            _empty(3, 16384), _empty(3, 16384), _empty(16384), 1e-6, False)),
        Case(name="rms_norm_gated", call=lambda: norm.rms_norm_gated(
            _empty(17, 32, 128), _empty(17, 32, 128), _empty(128), 1e-6)),
        Case(name="rms_norm_int8", call=lambda: norm.rms_norm_quantised(row, weight, 1e-6, False, torch.int8)),
        Case(name="rms_norm_fp8", call=lambda: norm.rms_norm_quantised(row, weight, 1e-6, False, FP8, 128, row),
             architectures=WITH_FP8, quick=True),
        Case(name="silu_and_mul", call=lambda: activation.silu_and_mul(_empty(17, 2 * 14336)), quick=True),
        Case(name="gelu_tanh_and_mul", call=lambda: activation.gelu_tanh_and_mul(_empty(17, 2 * 14336))),
        Case(name="rotary_embedding", call=lambda: _rotary(None), quick=True),
        Case(name="rotary_embedding_interleaved", call=lambda: _rotary(None, interleaved=True)),
        Case(name="mrope_embedding", call=lambda: _rotary(None, section=[16, 24, 24])),
        Case(name="rotary_and_write", call=lambda: _rotary(BF16), quick=True),
        Case(name="rotary_and_write_fp8", call=lambda: _rotary(FP8), architectures=WITH_FP8),
        Case(name="write_cache", call=lambda: _write(BF16), quick=True),
        Case(name="write_cache_fp8", call=lambda: _write(FP8), architectures=WITH_FP8),
        Case(name="take_sampled", call=lambda: sampled_ids.take_sampled(_ints(300), _ints(17)), quick=True),
        Case(name="pad_rows", call=lambda: sampled_ids.pad_rows(_ints(64, 17), _ints(1), None)),
        Case(name="topk_softmax", call=lambda: routing.topk_softmax(_empty(17, 128), 8, True), quick=True),
        Case(name="grouped_topk", call=lambda: routing.grouped_topk(_empty(17, 160), 6, 8, 3, False)),
        Case(name="biased_grouped_topk", call=lambda: routing.biased_grouped_topk(
            _empty(17, 256, dtype=FP32), _empty(256, dtype=FP32), 8, 8, 4, True)),
        Case(name="fused_experts_decode", call=lambda: _experts(4), mma=gemm, quick=True),
        Case(name="fused_experts_prefill", call=lambda: _experts(4096), mma=large_gemm),
        Case(name="fused_experts_mixed", call=lambda: _experts(512), mma={}),
        Case(name="fused_experts_biased_decode", call=lambda: _gpt_oss_experts(4), mma=gemm),
        Case(name="fused_experts_biased_prefill", call=lambda: _gpt_oss_experts(8192), mma=large_gemm),
        Case(name="fused_experts_fp32", call=lambda: _experts(64, FP32), mma=gemm),
        Case(name="attention_decode", call=lambda: _attention(1, uniform=True), mma=decode, quick=True),
        Case(name="attention_decode_split", call=lambda: _attention(1, uniform=True, splits=8), mma=decode),
        Case(name="attention_decode_special", call=lambda: _attention(4, uniform=True, special=True), mma=decode),
        Case(name="attention_decode_fp8", call=lambda: _attention(1, uniform=True, cache=FP8), mma=decode,
             architectures=WITH_FP8),
        Case(name="attention_prefill", call=lambda: _attention(128), mma=prefill, quick=True),
        Case(name="attention_prefill_special", call=lambda: _attention(128, special=True), mma=prefill),
        Case(name="attention_prefill_256", call=lambda: _attention(128, heads=(8, 4, 256)), mma=prefill),
        Case(name="attention_prefill_96", call=lambda: _attention(128, heads=(9, 3, 96)), mma=prefill),
        Case(name="latent_decode", call=lambda: _latent(1, uniform=True), mma=latent, quick=True),
        Case(name="latent_decode_split", call=lambda: _latent(1, uniform=True, splits=8), mma=latent),
        Case(name="latent_prefill", call=lambda: _latent(128), mma=latent, quick=True),
        Case(name="latent_prefill_256", call=lambda: _latent(128, num_heads=5, parts=(256, 32))),
        Case(name="latent_decode_fp32", call=lambda: _latent(1, dtype=FP32, uniform=True), mma=latent),
        Case(name="latent_prefill_fp32", call=lambda: _latent(128, dtype=FP32), mma=latent),
        Case(name="attention_prefill_fp32", call=lambda: _attention(128, heads=(8, 4, 64), dtype=FP32), mma=decode),
        Case(name="merge_states", call=lambda: _merge(32, 128), quick=True),
        Case(name="merge_states_latent", call=lambda: _merge(128, 512)),
        Case(name="merge_states_fp32", call=lambda: _merge(9, 96, FP32)),
        Case(name="causal_conv1d_silu", call=lambda: gated_delta.causal_conv1d_silu(
            _empty(2, 33, 8192), _empty(2, 8192, 3), _empty(8192, 4), None), quick=True),
        Case(name="quantise_rows_int8", call=lambda: row_quantisation.quantise_rows(row, torch.int8), quick=True),
        Case(name="quantise_rows_static", architectures=WITH_FP8, call=lambda: row_quantisation.quantise_rows(
            row, FP8, scale=_empty(1, dtype=FP32))),
        Case(name="quantise_rows_groups", architectures=WITH_FP8, call=lambda: row_quantisation.quantise_rows(
            row, FP8, 128), quick=True),
        Case(name="linear_int8_decode", call=lambda: _quantised_linear(4, torch.int8), mma=linear, quick=True),
        Case(name="linear_int8_prefill", call=lambda: _quantised_linear(512, torch.int8)),
        Case(name="linear_fp8_decode", call=lambda: _quantised_linear(4, FP8), architectures=WITH_FP8),
        Case(name="linear_fp8_blocks", call=lambda: _quantised_linear(4, FP8, 128), architectures=WITH_FP8,
             quick=True),
        Case(name="linear_fp8_blocks_prefill", call=lambda: _quantised_linear(512, FP8, 128), architectures=WITH_FP8),
        Case(name="grouped_int_decode", call=lambda: _grouped_int(4, 4, 128), mma=grouped, quick=True),
        Case(name="grouped_int_rows", call=lambda: _grouped_int(4, 8, 4096, zeros=False), mma=grouped),
        Case(name="grouped_int_small_groups", call=lambda: _grouped_int(4, 4, 32), mma=grouped),
        Case(name="grouped_int_prefill", call=lambda: _grouped_int(512, 4, 128)),
        Case(name="grouped_int_fp32", call=lambda: _grouped_int(4, 4, 128, dtype=FP32)),
        Case(name="grouped_int_experts_decode", call=lambda: _grouped_int_experts(4), mma=int_experts, quick=True),
        Case(name="grouped_int_experts_8", call=lambda: _grouped_int_experts(4, 8, zeros=False), mma=int_experts),
        Case(name="grouped_int_experts_prefill", call=lambda: _grouped_int_experts(4096)),
        Case(name="grouped_int_experts_fp32", call=lambda: _grouped_int_experts(4, dtype=FP32)),
        Case(name="experts_int8_decode", call=lambda: _quantised_experts(4, torch.int8), mma=experts, quick=True),
        Case(name="experts_int8_mixed", call=lambda: _quantised_experts(512, torch.int8)),
        Case(name="experts_int8_prefill", call=lambda: _quantised_experts(4096, torch.int8), mma=int8_experts),
        Case(name="experts_fp8_decode", call=lambda: _quantised_experts(4, FP8), mma=experts, architectures=WITH_FP8),
        Case(name="experts_fp8_prefill", call=lambda: _quantised_experts(4096, FP8), mma=large_experts,
             architectures=WITH_FP8),
        Case(name="experts_fp8_blocks", call=lambda: _quantised_experts(4, FP8, True), mma=experts,
             architectures=WITH_FP8, quick=True),
        Case(name="experts_fp8_blocks_mixed", call=lambda: _quantised_experts(512, FP8, True), architectures=WITH_FP8),
        Case(name="experts_fp8_blocks_prefill", call=lambda: _quantised_experts(4096, FP8, True), mma=large_experts,
             architectures=WITH_FP8),
        Case(name="gated_delta_tokens", call=lambda: _delta_rule(8)),
        Case(name="gated_delta_chunks", call=lambda: _delta_rule(1000), mma=chunks, quick=True),
        Case(name="gated_delta_tokens_fp32", call=lambda: _delta_rule(1000, FP32)),
        Case(name="recurrent_decode", call=lambda: _recurrent_decode(1), quick=True),
        Case(name="recurrent_decode_drafts", call=lambda: _recurrent_decode(4)),
    )  # fmt: skip
