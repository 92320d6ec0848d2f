"""Checks of what the fused operator takes as it is, beside those of every group."""

from __future__ import annotations

import torch

from trunnion.contract import LayerCaches
from trunnion.interfaces.attention import MLASpec
from trunnion_ascend.capabilities import BLOCK_SIZE_MULTIPLE, LATENT_BLOCK_SIZES, MAX_BLOCK_SIZE, OPERATOR


def check_block_size(size: int) -> None:
    """ValueError: the fused operator does not take blocks of this many tokens."""
    if size % BLOCK_SIZE_MULTIPLE or not 0 < size <= MAX_BLOCK_SIZE:
        choices = f"multiples of {BLOCK_SIZE_MULTIPLE} up to {MAX_BLOCK_SIZE}"
        raise ValueError(f"block_size {size} is not for {OPERATOR}; choices: {choices}")


def check_latent_caches(spec: MLASpec, caches: LayerCaches) -> None:
    """ValueError: a cache does not have the group's features and dtype, or blocks of a size that is not taken."""
    widths = {"latent_cache": spec.kv_lora_rank, "rope_cache": spec.rope_head_dim}
    for index, layer in enumerate(caches):
        for name, width in widths.items():
            cache = layer[name]
            if cache.dim() != 3 or cache.shape[2] != width or cache.dtype != spec.dtype or not cache.is_contiguous():
                raise ValueError(
                    f"layer {index}: {name} is {_shape(cache)} {cache.dtype} with strides {cache.stride()}, expected "
                    f"[num_blocks, block_size, {width}] {spec.dtype}, contiguous"
                )
            if cache.shape[1] not in LATENT_BLOCK_SIZES:
                choices = " or ".join(map(str, LATENT_BLOCK_SIZES))
                raise ValueError(f"block_size {cache.shape[1]} is not for latents in {OPERATOR}; choices: {choices}")


def check_latent_rows(spec: MLASpec, *, q_latent: torch.Tensor, q_rope: torch.Tensor, out: torch.Tensor) -> None:
    """ValueError: arguments of `run` that are not the group's."""
    expected = {"q_latent": spec.kv_lora_rank, "q_rope": spec.rope_head_dim, "out": spec.kv_lora_rank}
    for (name, width), rows in zip(expected.items(), (q_latent, q_rope, out), strict=True):
        if tuple(rows.shape) != (q_latent.shape[0], spec.num_qo_heads, width) or rows.dtype != spec.dtype:
            raise ValueError(f"{name} {_shape(rows)} {rows.dtype} does not have the heads of {spec}")
    if not out.is_contiguous():
        raise ValueError(f"out has strides {out.stride()}, expected contiguous rows")


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
