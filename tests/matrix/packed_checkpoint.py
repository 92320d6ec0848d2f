"""Weights alone in 4 or 8 bits as compressed-tensors, AWQ and GPTQ publish them, packed with numpy.

Written without trunnion, from the formats' own descriptions (compressed-tensors' pack_to_int32, AutoAWQ's
WQLinear_GEMM, AutoGPTQ's QuantLinear): these are the truth that its reading is held against.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Tensors = dict[str, torch.Tensor]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""AutoAWQ's `order_map`: the column that lies at each place of a word."""


@dataclass(frozen=True, kw_only=True)
class Integers:
    """A weight [N, K] as numbers: `(values - zero_points[:, groups]) * scales[:, groups]`."""

    values: np.ndarray
    """[N, K], 0 ... 2 ** bits - 1."""
    zero_points: np.ndarray
    """[N, G], in the same range."""
    scales: torch.Tensor
    """[N, G]."""
    groups: np.ndarray
    """[K]: the group of each feature."""
    bits: int

    def dense(self) -> torch.Tensor:
        """[N, K] float32."""
        zeros, scales = self.zero_points[:, self.groups], self.scales.float()[:, torch.from_numpy(self.groups)]
        return torch.from_numpy((self.values - zeros).astype(np.float32)) * scales


def is_packed(settings: Mapping[str, Any]) -> bool:
    """Whether a `quantization_config` is of one of these formats."""
    return settings["quant_method"] in ("awq", "gptq") or settings.get("format") == "pack-quantized"


def ignored_modules(settings: Mapping[str, Any]) -> list[str]:
    """Names and patterns of what is left out."""
    return list(settings.get("ignore") or settings.get("modules_to_not_convert") or [])


def quantise(weight: torch.Tensor, settings: Mapping[str, Any], module: str, dtype: torch.dtype) -> Integers:
    """As `settings` say, scales in `dtype`. Modules that read the same input have the same order of features."""
    weights = _weights(settings)
    bits, group_size = weights["bits"], weights["group_size"]
    size = weight.shape[1]
    group_size = size if group_size is None else group_size
    groups = np.arange(size) // group_size
    if weights["ordered"]:
        seed = zlib.crc32(f"{module.rpartition('.')[0]} {size}".encode())
        groups = groups[np.random.default_rng(seed).permutation(size)]
    largest = 2**bits - 1
    values = np.empty(weight.shape, np.int64)
    zero_points = np.empty((weight.shape[0], groups.max() + 1), np.int64)
    scales = torch.empty(zero_points.shape, dtype=dtype)
    for group in range(zero_points.shape[1]):
        own = weight[:, torch.from_numpy(groups == group)].double()
        low, high = own.amin(1).clamp(max=0), own.amax(1).clamp(min=0)
        if weights["symmetric"]:
            high = torch.maximum(-low, high)
            low = -high
        # Zero points that are stored less 1 are never 0.
        scale = ((high - low) / largest).clamp(min=1e-5).to(dtype)
        zero = (
            torch.full_like(low, 2 ** (bits - 1)) if weights["symmetric"] else (-low / scale).round().clamp(1, largest)
        )
        scales[:, group] = scale
        zero_points[:, group] = zero.numpy()
        found = ((own / scale.double()[:, None]).round() + zero[:, None]).clamp(0, largest)
        values[:, groups == group] = found.numpy()
    return Integers(values=values, zero_points=zero_points, scales=scales, groups=groups, bits=bits)


def published(integers: Integers, settings: Mapping[str, Any]) -> Tensors:
    """The tensors of a module, by their last names."""
    weights = _weights(settings)
    if settings["quant_method"] == "awq":
        return _awq(integers)
    if settings["quant_method"] == "gptq":
        return _gptq(integers, stored_less=0 if settings.get("checkpoint_format") == "gptq_v2" else 1)
    return _compressed(integers, symmetric=weights["symmetric"], ordered=weights["ordered"])


def _weights(settings: Mapping[str, Any]) -> dict[str, Any]:
    if settings["quant_method"] in ("awq", "gptq"):
        group_size = settings["group_size"]
        return {
            "bits": settings["bits"],
            "group_size": None if group_size == -1 else group_size,
            "symmetric": settings.get("sym", False),
            "ordered": settings.get("desc_act", False),
        }
    (group,) = settings["config_groups"].values()
    weights = group["weights"]
    return {
        "bits": weights["num_bits"],
        "group_size": weights["group_size"] if weights["strategy"] == "group" else None,
        "symmetric": weights["symmetric"],
        "ordered": weights.get("actorder") == "group",
    }


def _compressed(integers: Integers, *, symmetric: bool, ordered: bool) -> Tensors:
    """Numbers are signed there, and 2 ** (bits - 1) is added to them when they are packed: what they are here."""
    bits, rows = integers.bits, integers.values.shape[0]
    packed = _words([integers.values[:, place :: 32 // bits] for place in range(32 // bits)], bits)
    found = {
        "weight_packed": _int32(packed),
        "weight_scale": integers.scales.clone(),
        "weight_shape": torch.tensor(integers.values.shape),
    }
    if not symmetric:
        zeros = np.zeros((-(-rows * bits // 32) * (32 // bits), integers.zero_points.shape[1]), np.int64)
        zeros[:rows] = integers.zero_points
        found["weight_zero_point"] = _int32(_words([zeros[place :: 32 // bits] for place in range(32 // bits)], bits))
    if ordered:
        found["weight_g_idx"] = torch.from_numpy(integers.groups.astype(np.int32))
    return found


def _awq(integers: Integers) -> Tensors:
    """Weights lie as [in, out], eight neighbouring outputs in a word."""

    def words(columns: np.ndarray) -> torch.Tensor:
        return _int32(_words([columns[:, place::8] for place in AWQ_ORDER], 4))

    return {
        "qweight": words(integers.values.T),
        "qzeros": words(integers.zero_points.T),
        "scales": integers.scales.t().contiguous(),
    }


def _gptq(integers: Integers, *, stored_less: int) -> Tensors:
    """Weights lie as [in, out], neighbouring inputs in a word; zero points [groups, out], neighbouring outputs."""
    bits, values = integers.bits, integers.values.T
    places = range(32 // bits)
    zeros = integers.zero_points.T - stored_less
    return {
        "qweight": _int32(_words([values[place :: 32 // bits] for place in places], bits)),
        "qzeros": _int32(_words([zeros[:, place :: 32 // bits] for place in places], bits)),
        "scales": integers.scales.t().contiguous(),
        "g_idx": torch.from_numpy(integers.groups.astype(np.int32)),
        # AutoGPTQ's layers have one whether the model has one or not.
        "bias": torch.zeros(values.shape[1], dtype=integers.scales.dtype),
    }


def _words(parts: list[np.ndarray], bits: int) -> np.ndarray:
    """The first of `parts` in the lowest bits of each word."""
    word = np.zeros(parts[0].shape, np.uint32)
    for place, part in enumerate(parts):
        word |= part.astype(np.uint32) << np.uint32(bits * place)
    return word


def _int32(words: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(words.view(np.int32).copy())
