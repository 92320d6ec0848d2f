"""What the fused attention operator can run, and why not: asked once per shape of attention.

Limits are those of its documents (torch_npu-npu_fused_infer_attention_score_v2.md) and of what CANN checks before it
launches it (prompt_flash_attention_tiling.cpp, fused_infer_attention_score_tiling_check_feature.cpp), for layout TND.
"""

from __future__ import annotations

import torch

from trunnion.interfaces.attention import AttentionSpec, EncoderSpec, MLASpec
from trunnion_ascend.soc import Soc

OPERATOR = "npu_fused_infer_attention_score_v2"
HEAD_DIMS = (64, 128)
MAX_GROUP = 64
"""Query heads that share a KV head."""
MAX_ROW = 65535
"""Features of a cached row, all KV heads together: an instruction's stride."""
MAX_BLOCK_SIZE = 1024
BLOCK_SIZE_MULTIPLE = 16
MAX_RUNS = 4096
"""Entries of its lists of lengths."""
LATENT_DIMS = (512, 64)
"""Of the latent and of the rotated part."""
LATENT_HEADS = (1, 2, 4, 8, 16, 32, 64, 128)
LATENT_BLOCK_SIZES = (16, 128)
MAX_LATENT_ROWS = 16
"""Queries of one run of latent attention."""


def why_not_fused(spec: AttentionSpec, soc: Soc) -> str | None:
    """Why the operator cannot run layers of this shape, or None if it can."""
    if (reason := _why_no_operator(spec.dtype, soc)) is not None:
        return reason
    if (reason := _why_not_head_dim(spec.head_dim)) is not None:
        return reason
    if spec.num_qo_heads % spec.num_kv_heads or spec.num_qo_heads // spec.num_kv_heads > MAX_GROUP:
        return (
            f"{OPERATOR} shares a KV head among up to {MAX_GROUP} query heads, evenly; not {spec.num_kv_heads} among "
            f"{spec.num_qo_heads}"
        )
    if (row := spec.num_kv_heads * spec.head_dim) > MAX_ROW:
        return f"{OPERATOR} takes cached rows of up to {MAX_ROW} features, not {row}"
    if spec.soft_cap is not None:
        return f"{OPERATOR} has no soft cap; this one is {spec.soft_cap}"
    if spec.cache_dtype is not None:
        return f"{OPERATOR} reads paged caches in the model's dtype, not in {_name(spec.cache_dtype)}"
    return None


def why_not_fused_mla(spec: MLASpec, soc: Soc) -> str | None:
    """Why the operator cannot run latent attention of this shape, or None if it can."""
    if (reason := _why_no_operator(spec.dtype, soc)) is not None:
        return reason
    dims = (spec.kv_lora_rank, spec.rope_head_dim)
    if dims != LATENT_DIMS:
        return f"{OPERATOR} takes latents of {' + '.join(map(str, LATENT_DIMS))} features, not {dims[0]} + {dims[1]}"
    if spec.num_qo_heads not in LATENT_HEADS:
        choices = ", ".join(map(str, LATENT_HEADS))
        return f"{OPERATOR} takes latents with {choices} query heads, not {spec.num_qo_heads}"
    return None


def why_not_fused_encoder(spec: EncoderSpec, soc: Soc) -> str | None:
    """Why the operator cannot run an encoder's layers of this shape, or None if it can."""
    if (reason := _why_no_operator(spec.dtype, soc)) is not None:
        return reason
    return _why_not_head_dim(spec.head_dim)


def _why_not_head_dim(head_dim: int) -> str | None:
    if head_dim in HEAD_DIMS:
        return None
    return f"{OPERATOR} takes head_dim {' or '.join(map(str, HEAD_DIMS))}, not {head_dim}"


def _why_no_operator(dtype: torch.dtype, soc: Soc) -> str | None:
    if not soc.has_fused_attention:
        return f"{OPERATOR} is not for {soc.family}"
    if dtype != torch.bfloat16:
        return f"{OPERATOR} computes in bfloat16 in layout TND, not in {_name(dtype)}"
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
