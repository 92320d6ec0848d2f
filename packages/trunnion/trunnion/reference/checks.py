"""Checks of what an attention group is given, for groups whose kernels take it as it is: they read past rows."""

from __future__ import annotations

import torch

from trunnion.contract import LayerCaches
from trunnion.interfaces.attention import AttentionSpec


def check_caches(spec: AttentionSpec, caches: LayerCaches) -> None:
    """ValueError: a cache does not have the group's heads and dtype, or layers have blocks of different sizes."""
    expected = (spec.num_kv_heads, spec.head_dim)
    sizes = {cache.shape[1] for layer in caches for cache in layer.values()}
    for index, layer in enumerate(caches):
        for name, cache in layer.items():
            if tuple(cache.shape[2:]) != expected or not cache.is_contiguous():
                raise ValueError(
                    f"layer {index}: {name} has shape {tuple(cache.shape)} and strides {cache.stride()}, expected "
                    f"[num_blocks, block_size, {expected[0]}, {expected[1]}], contiguous"
                )
            if cache.dtype != spec.stored_dtype:
                raise ValueError(f"layer {index}: {name} is {cache.dtype}, expected {spec.stored_dtype}")
    if len(sizes) > 1:
        raise ValueError(f"layers of one group have blocks of {sorted(sizes)} tokens, expected one size")


def check_rows(
    spec: AttentionSpec,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sinks: torch.Tensor | None,
    out: torch.Tensor | None,
) -> None:
    """ValueError: arguments of `run` that are not the group's."""
    heads = (spec.num_qo_heads, spec.head_dim)
    if q.shape[1:] != heads or k.shape[1:] != (spec.num_kv_heads, spec.head_dim) or k.shape != v.shape:
        raise ValueError(f"q {_shape(q)}, k {_shape(k)} and v {_shape(v)} do not have the heads of {spec}")
    if {q.dtype, k.dtype, v.dtype} != {spec.dtype}:
        raise ValueError(f"q {q.dtype}, k {k.dtype} and v {v.dtype} are not all {spec.dtype}")
    if out is not None and (out.shape != q.shape or out.dtype != q.dtype or not out.is_contiguous()):
        raise ValueError(f"out {_shape(out)} {out.dtype} {out.stride()} is not like q {_shape(q)} and contiguous")
    if spec.has_sinks != (sinks is not None):
        raise ValueError(f"{'no sinks' if sinks is None else 'sinks'} for {spec}")
    if sinks is not None and (sinks.shape != heads[:1] or sinks.dtype != torch.float32 or not sinks.is_contiguous()):
        raise ValueError(f"sinks {_shape(sinks)} {sinks.dtype} are not {spec.num_qo_heads} contiguous float32")


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
