"""The caches of an executor: allocated as its spec says, or the host's own, held against it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trunnion.contract import CacheTensorSpec, KVCacheSpec, LayerCaches


def allocate_caches(spec: KVCacheSpec, num_blocks: Sequence[int], device: torch.device) -> list[LayerCaches]:
    """Zeroed caches of `num_blocks[group]` blocks (states).

    Raises:
        ValueError: not one count per group, or a count below 2 (block 0 is reserved).
    """
    if len(num_blocks) != len(spec.groups):
        raise ValueError(f"expected {len(spec.groups)} block counts, one per cache group, got {len(num_blocks)}")
    for index, count in enumerate(num_blocks):
        if count < 2:
            raise ValueError(f"num_blocks[{index}] is {count}; at least 2 are needed, block 0 is reserved")
    return [
        [
            {
                tensor.name: torch.zeros(count, *tensor.shape, dtype=tensor.dtype, device=device)
                for tensor in group.tensors
            }
            for _ in group.layers
        ]
        for group, count in zip(spec.groups, num_blocks, strict=True)
    ]


def check_caches(spec: KVCacheSpec, caches: Sequence[LayerCaches], device: torch.device) -> None:
    """Hold `caches[group][layer][name]` against the spec.

    Raises:
        ValueError: a tensor is missing or of the wrong shape, dtype, device or layout.
    """
    if len(caches) != len(spec.groups):
        raise ValueError(f"expected the caches of {len(spec.groups)} groups, got {len(caches)}")
    for index, (group, layers) in enumerate(zip(spec.groups, caches, strict=True)):
        if len(layers) != len(group.layers):
            raise ValueError(f"cache group {index}: expected {len(group.layers)} layers, got {len(layers)}")
        for name, layer in zip(group.layers, layers, strict=True):
            for tensor in group.tensors:
                _check_cache(f"cache of {name}", layer.get(tensor.name), tensor, device)


def _check_cache(what: str, tensor: torch.Tensor | None, spec: CacheTensorSpec, device: torch.device) -> None:
    name = spec.name
    if tensor is None:
        raise ValueError(f"{what}: tensor {name!r} is missing")
    if tuple(tensor.shape[1:]) != spec.shape or tensor.shape[0] < 2:
        raise ValueError(f"{what}: {name!r} has shape {tuple(tensor.shape)}, expected (at least 2, *{spec.shape})")
    if tensor.dtype != spec.dtype:
        raise ValueError(f"{what}: {name!r} has dtype {tensor.dtype}, expected {spec.dtype}")
    if tensor.device.type != device.type:
        raise ValueError(f"{what}: {name!r} lies on {tensor.device}, expected {device}")
    if not tensor.is_contiguous():
        raise ValueError(f"{what}: {name!r} has strides {tensor.stride()}, expected a contiguous tensor")
