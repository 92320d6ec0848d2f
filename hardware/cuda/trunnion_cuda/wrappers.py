"""FlashInfer's wrappers for a shape of attention, and what each of their plans is told. Those of flashinfer 0.7.4."""

from __future__ import annotations

import flashinfer
import torch

from trunnion.interfaces.attention import AttentionSpec
from trunnion_cuda.capabilities import BACKEND
from trunnion_cuda.workspaces import float_workspace

TENSOR_CORE_GROUP = 4
"""Query heads per KV head from which a decode is faster on tensor cores, though they compute rows nobody asked for."""
LAYOUT = "NHD"

DecodeWrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper
PrefillWrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper
RaggedWrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper


def decode_wrapper(spec: AttentionSpec, device: torch.device, **buffers: object) -> DecodeWrapper:
    """For requests of one token; `buffers` are those of graph mode."""
    workspace = float_workspace(device)
    if spec.has_sinks:
        return flashinfer.BatchDecodeWithAttentionSinkWrapper(
            float_workspace_buffer=workspace, kv_layout=LAYOUT, backend=BACKEND, **_compiled(spec), **buffers
        )
    return DecodeWrapper(
        float_workspace_buffer=workspace,
        kv_layout=LAYOUT,
        backend=BACKEND,
        use_tensor_cores=spec.num_qo_heads // spec.num_kv_heads >= TENSOR_CORE_GROUP,
        **buffers,
    )


def prefill_wrapper(spec: AttentionSpec, device: torch.device, **buffers: object) -> PrefillWrapper:
    """For requests of any number of tokens, keys and values in the cache."""
    workspace = float_workspace(device)
    if spec.has_sinks:
        return flashinfer.BatchAttentionWithAttentionSinkWrapper(
            float_workspace_buffer=workspace, kv_layout=LAYOUT, backend=BACKEND, **_compiled(spec), **buffers
        )
    return PrefillWrapper(float_workspace_buffer=workspace, kv_layout=LAYOUT, backend=BACKEND, **buffers)


def ragged_wrapper(spec: AttentionSpec, device: torch.device) -> RaggedWrapper | None:
    """For requests without cached tokens, keys and values as the model gives them; None where there is none.

    FlashInfer has none with sinks. Beside a cache in float8 it would attend to other values than the next chunk finds.
    """
    if spec.has_sinks or spec.cache_dtype is not None:
        return None
    return RaggedWrapper(float_workspace_buffer=float_workspace(device), kv_layout=LAYOUT, backend=BACKEND)


def ragged_encoder_wrapper(device: torch.device) -> RaggedWrapper:
    """For requests whose tokens see each other, without a cache."""
    return RaggedWrapper(float_workspace_buffer=float_workspace(device), kv_layout=LAYOUT, backend=BACKEND)


def shape(spec: AttentionSpec, head_dim: str) -> dict[str, object]:
    """Arguments of a plan that do not change from step to step; wrappers differ in what they call the head's size."""
    return {
        "num_qo_heads": spec.num_qo_heads,
        "num_kv_heads": spec.num_kv_heads,
        head_dim: spec.head_dim,
        "pos_encoding_mode": "NONE",
        "window_left": _window_left(spec),
        "logits_soft_cap": spec.soft_cap or 0.0,
        "sm_scale": spec.scale,
        "q_data_type": spec.dtype,
        "kv_data_type": spec.stored_dtype,
    }


def _compiled(spec: AttentionSpec) -> dict[str, object]:
    """What the kernels with sinks are compiled for."""
    return {
        "q_data_type": spec.dtype,
        "kv_data_type": spec.dtype,
        "head_dim_qk": spec.head_dim,
        "head_dim_vo": spec.head_dim,
        "window_left": _window_left(spec),
    }


def _window_left(spec: AttentionSpec) -> int:
    # FlashInfer does not count the query itself.
    return -1 if spec.window is None else spec.window - 1
