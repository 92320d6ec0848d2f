"""Attention of requests over a cache: the operators' arguments, most of which are not modelled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ascend_simulator.attention import Call, attend, workspace
from ascend_simulator.rules import Bool, Double, Int, Ints, Tensor, Tensors, Text, rule

SOURCE = "ops-transformer/attention/fused_infer_attention_score/docs/aclnnFusedInferAttentionScoreV3.md"


def _refuse(**given: Any) -> None:
    """What the operator can do and the rule cannot."""
    found = [name for name, value in given.items() if value is not None]
    if found:
        raise ValueError(f"not modelled: {', '.join(found)}")


def _call(
    query: torch.Tensor,
    key: list[torch.Tensor],
    value: list[torch.Tensor],
    num_heads: int,
    num_kv_heads: int,
    **rest: Any,
) -> Call:
    if len(key) != 1 or len(value) != 1:
        raise ValueError(f"lists of {len(key)} keys and {len(value)} values are not modelled, only of one")
    return Call(
        query=query,
        key=key[0],
        value=value[0],
        num_heads=num_heads,
        num_kv_heads=num_kv_heads or num_heads,
        **rest,
    )


def read_arguments(
    query: Tensor,
    key: Tensors,
    value: Tensors,
    pse_shift: Tensor | None,
    atten_mask: Tensor | None,
    actual_seq_lengths: Ints | None,
    actual_seq_lengths_kv: Ints | None,
    dequant_scale1: Tensor | None,
    quant_scale1: Tensor | None,
    dequant_scale2: Tensor | None,
    quant_scale2: Tensor | None,
    quant_offset2: Tensor | None,
    antiquant_scale: Tensor | None,
    antiquant_offset: Tensor | None,
    block_table: Tensor | None,
    query_padding_size: Tensor | None,
    kv_padding_size: Tensor | None,
    key_antiquant_scale: Tensor | None,
    key_antiquant_offset: Tensor | None,
    value_antiquant_scale: Tensor | None,
    value_antiquant_offset: Tensor | None,
    key_shared_prefix: Tensor | None,
    value_shared_prefix: Tensor | None,
    actual_shared_prefix_len: Ints | None,
    query_rope: Tensor | None,
    key_rope: Tensor | None,
    key_rope_antiquant_scale: Tensor | None,
    num_heads: Int,
    scale: Double,
    pre_tokens: Int,
    next_tokens: Int,
    input_layout: Text,
    num_key_value_heads: Int,
    sparse_mode: Int,
    inner_precise: Int,
    block_size: Int,
    antiquant_mode: Int,
    softmax_lse_flag: Bool,
    key_antiquant_mode: Int,
    value_antiquant_mode: Int,
    attention_out: Tensor,
    softmax_lse: Tensor,
) -> Call:
    _refuse(
        pse_shift=pse_shift,
        dequant_scale1=dequant_scale1,
        quant_scale1=quant_scale1,
        dequant_scale2=dequant_scale2,
        quant_scale2=quant_scale2,
        quant_offset2=quant_offset2,
        antiquant_scale=antiquant_scale,
        antiquant_offset=antiquant_offset,
        query_padding_size=query_padding_size,
        kv_padding_size=kv_padding_size,
        key_antiquant_scale=key_antiquant_scale,
        key_antiquant_offset=key_antiquant_offset,
        value_antiquant_scale=value_antiquant_scale,
        value_antiquant_offset=value_antiquant_offset,
        key_shared_prefix=key_shared_prefix,
        value_shared_prefix=value_shared_prefix,
        key_rope_antiquant_scale=key_rope_antiquant_scale,
    )
    return _call(
        query,
        key,
        value,
        num_heads,
        num_key_value_heads,
        mask=atten_mask,
        query_lengths=actual_seq_lengths,
        kv_lengths=actual_seq_lengths_kv,
        block_table=block_table,
        query_rope=query_rope,
        key_rope=key_rope,
        scale=scale,
        pre_tokens=pre_tokens,
        next_tokens=next_tokens,
        layout=input_layout,
        sparse_mode=sparse_mode,
        block_size=block_size,
        wants_lse=softmax_lse_flag,
        out=attention_out,
        lse=softmax_lse,
    )


@rule("aclnnFusedInferAttentionScoreV3", source=SOURCE, reads=read_arguments, check=workspace)
def fused_infer_attention_score(call: Call) -> None:
    attend(call)


def read_arguments_with_sinks(
    query: Tensor,
    key: Tensors,
    value: Tensors,
    pse_shift: Tensor | None,
    atten_mask: Tensor | None,
    actual_seq_lengths: Ints | None,
    actual_seq_lengths_kv: Ints | None,
    dequant_scale1: Tensor | None,
    quant_scale1: Tensor | None,
    dequant_scale2: Tensor | None,
    quant_scale2: Tensor | None,
    quant_offset2: Tensor | None,
    antiquant_scale: Tensor | None,
    antiquant_offset: Tensor | None,
    block_table: Tensor | None,
    query_padding_size: Tensor | None,
    kv_padding_size: Tensor | None,
    key_antiquant_scale: Tensor | None,
    key_antiquant_offset: Tensor | None,
    value_antiquant_scale: Tensor | None,
    value_antiquant_offset: Tensor | None,
    key_shared_prefix: Tensor | None,
    value_shared_prefix: Tensor | None,
    actual_shared_prefix_len: Ints | None,
    query_rope: Tensor | None,
    key_rope: Tensor | None,
    key_rope_antiquant_scale: Tensor | None,
    dequant_scale_query: Tensor | None,
    learnable_sink: Tensor | None,
    num_heads: Int,
    scale: Double,
    pre_tokens: Int,
    next_tokens: Int,
    input_layout: Text,
    num_key_value_heads: Int,
    sparse_mode: Int,
    inner_precise: Int,
    block_size: Int,
    antiquant_mode: Int,
    softmax_lse_flag: Bool,
    key_antiquant_mode: Int,
    value_antiquant_mode: Int,
    query_quant_mode: Int,
    attention_out: Tensor,
    softmax_lse: Tensor,
) -> Call:
    _refuse(dequant_scale_query=dequant_scale_query)
    call = read_arguments(
        query,
        key,
        value,
        pse_shift,
        atten_mask,
        actual_seq_lengths,
        actual_seq_lengths_kv,
        dequant_scale1,
        quant_scale1,
        dequant_scale2,
        quant_scale2,
        quant_offset2,
        antiquant_scale,
        antiquant_offset,
        block_table,
        query_padding_size,
        kv_padding_size,
        key_antiquant_scale,
        key_antiquant_offset,
        value_antiquant_scale,
        value_antiquant_offset,
        key_shared_prefix,
        value_shared_prefix,
        actual_shared_prefix_len,
        query_rope,
        key_rope,
        key_rope_antiquant_scale,
        num_heads,
        scale,
        pre_tokens,
        next_tokens,
        input_layout,
        num_key_value_heads,
        sparse_mode,
        inner_precise,
        block_size,
        antiquant_mode,
        softmax_lse_flag,
        key_antiquant_mode,
        value_antiquant_mode,
        attention_out,
        softmax_lse,
    )
    return replace(call, sinks=learnable_sink)


@rule(
    "aclnnFusedInferAttentionScoreV4",
    source="Ascend/op-plugin op_plugin/ops/opapi/FusedInferAttentionScoreV2KernelNpuOpApi.cpp and "
    "docs/zh/custom_APIs/torch_npu/torch_npu-npu_fused_infer_attention_score_v2.md",
    reads=read_arguments_with_sinks,
    check=workspace,
)
def fused_infer_attention_score_with_sinks(call: Call) -> None:
    """What torch_npu's second form of the operator becomes."""
    attend(call)


def read_dense_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pse_shift: Tensor | None,
    drop_mask: Tensor | None,
    padding_mask: Tensor | None,
    atten_mask: Tensor | None,
    prefix: Ints | None,
    scale: Double,
    keep_prob: Double,
    pre_tokens: Int,
    next_tokens: Int,
    num_heads: Int,
    input_layout: Text,
    inner_precise: Int,
    sparse_mode: Int,
    softmax_max: Tensor,
    softmax_sum: Tensor,
    softmax_out: Tensor | None,
    attention_out: Tensor,
) -> Call:
    _refuse(pse_shift=pse_shift, drop_mask=drop_mask, padding_mask=padding_mask)
    heads_of_keys = {"BNSD": key.shape[1], "BSND": key.shape[-2]}.get(input_layout, num_heads)
    return Call(
        query=query,
        key=key,
        value=value,
        mask=atten_mask,
        query_lengths=None,
        kv_lengths=None,
        block_table=None,
        query_rope=None,
        key_rope=None,
        num_heads=num_heads,
        num_kv_heads=heads_of_keys,
        scale=scale,
        pre_tokens=pre_tokens,
        next_tokens=next_tokens,
        layout=input_layout,
        sparse_mode=sparse_mode,
        block_size=0,
        wants_lse=False,
        out=attention_out,
        lse=attention_out,
    )


@rule(
    "aclnnFlashAttentionScore",
    source="ops-transformer/attention/flash_attention_score/docs/aclnnFlashAttentionScore.md",
    reads=read_dense_arguments,
    check=workspace,
)
def flash_attention_score(call: Call) -> None:
    """What torch's attention in float32 becomes; the sums for a backward pass are not written."""
    attend(call)


@rule(
    "atb::PagedAttention",
    source="Ascend/op-plugin op_plugin/ops/atb/PagedAttentionAtb.cpp",
)
def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lengths: Ints,
    out: Tensor,
    num_heads: Int,
    num_kv_heads: Int,
    scale: Double,
) -> None:
    """One query [N, D] for each request, over caches [blocks, block_size, KV_N, D]; lengths are read on the host."""
    attend(
        Call(
            query=query.unsqueeze(1),
            key=key_cache.flatten(2),
            value=value_cache.flatten(2),
            mask=None,
            query_lengths=None,
            kv_lengths=context_lengths,
            block_table=block_table,
            query_rope=None,
            key_rope=None,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            scale=scale,
            pre_tokens=0,
            next_tokens=0,
            layout="BSND",
            sparse_mode=0,
            block_size=key_cache.shape[1],
            wants_lse=False,
            out=out.unsqueeze(1),
            lse=out,
        )
    )
