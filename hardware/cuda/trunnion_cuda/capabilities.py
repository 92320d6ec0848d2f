"""What FlashInfer's kernels can run, and why not: asked once per shape of attention, before anything is compiled."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from trunnion.interfaces.attention import AttentionSpec, EncoderSpec, MLASpec

BACKEND = "fa2"
"""FlashInfer's kernels for every architecture from sm_80, also on sm_90, for which it has others ("fa3"): the simulated
device cannot run those, so that nobody has seen their plans in graphs."""
DTYPES = (torch.bfloat16, torch.float16)
CACHE_DTYPES = (None, torch.float8_e4m3fn)
HEAD_DIMS = (64, 128, 256)
LATENT_DIMS = (512, 64)
"""Of the latent and of the rotated part: DeepSeek's, which FlashInfer's kernel was written for."""
LATENT_HEADS = (1, 2, 4, 8, 16, 32, 64, 128)
"""A tile of 64 or 128 rows holds whole queries: FlashInfer drops a key of a query that two tiles share."""


def why_not_flashinfer(spec: AttentionSpec) -> str | None:
    """Why FlashInfer's kernels cannot run layers of this shape, or None if they can."""
    reason = _why_not_shape(spec.dtype, spec.head_dim)
    if reason is not None:
        return reason
    if spec.num_qo_heads % spec.num_kv_heads:
        return f"{spec.num_qo_heads} query heads cannot share {spec.num_kv_heads} KV heads evenly"
    if spec.cache_dtype not in CACHE_DTYPES:
        return f"caches of another dtype than the model's are float8_e4m3fn here, not {_name(spec.cache_dtype)}"
    if spec.has_sinks and spec.cache_dtype is not None:
        return (
            f"sinks with a cache in {_name(spec.cache_dtype)} would be one more kernel to compile, which nobody tried"
        )
    if spec.has_sinks and spec.soft_cap is not None:
        return f"FlashInfer's kernels with sinks have no soft cap; this one is {spec.soft_cap}"
    return None


def why_not_flashinfer_encoder(spec: EncoderSpec) -> str | None:
    """Why FlashInfer's ragged prefill cannot run an encoder's layers of this shape, or None if it can."""
    return _why_not_shape(spec.dtype, spec.head_dim)


def why_no_prefix_levels(spec: AttentionSpec) -> str | None:
    """Why layers of a shape that FlashInfer runs cannot attend to shared pages in a level of their own, or None."""
    if spec.window is not None:
        return f"a window of {spec.window} tokens does not see all that requests share"
    if spec.has_sinks:
        return "FlashInfer's kernels add the sinks to the sum of each level, so that they would count twice"
    return None


def why_not_flashinfer_mla(spec: MLASpec) -> str | None:
    """Why FlashInfer's latent attention cannot run layers of this shape, or None if it can."""
    if spec.dtype not in DTYPES:
        return f"FlashInfer's latent attention computes in {_names(DTYPES)}, not in {_name(spec.dtype)}"
    dims = (spec.kv_lora_rank, spec.rope_head_dim)
    if dims != LATENT_DIMS:
        return (
            f"FlashInfer's latent attention has {' + '.join(map(str, LATENT_DIMS))} features, not {dims[0]} + {dims[1]}"
        )
    if spec.num_qo_heads not in LATENT_HEADS:
        choices = ", ".join(map(str, LATENT_HEADS))
        return f"FlashInfer's latent attention drops keys with {spec.num_qo_heads} query heads, not with {choices}"
    return None


def _why_not_shape(dtype: torch.dtype, head_dim: int) -> str | None:
    if dtype not in DTYPES:
        return f"FlashInfer computes in {_names(DTYPES)}, not in {_name(dtype)}"
    if head_dim not in HEAD_DIMS:
        return f"FlashInfer has no kernel for head_dim {head_dim}; it has {', '.join(map(str, HEAD_DIMS))}"
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _names(dtypes: Iterable[torch.dtype]) -> str:
    return " and ".join(map(_name, dtypes))
