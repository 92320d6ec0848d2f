"""Experts in MXFP4 as gpt-oss publishes them, packed with numpy, and what they are made dense.

Written without trunnion, from the format's description (OCP Microscaling Formats 1.0) and the published checkpoints:
this is the truth that its reading is held against.
"""

from __future__ import annotations

import re

import numpy as np
import torch

Tensors = dict[str, torch.Tensor]
BLOCK = 32
E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
STACK = re.compile(r"\.experts\.(gate_up|down)_proj$")


def published(tensors: Tensors) -> Tensors:
    """A checkpoint as transformers saves it, its stacks of experts [E, in, out] in blocks along `in` and scales."""
    found = {name: tensor for name, tensor in tensors.items() if not STACK.search(name)}
    for name in tensors.keys() - found.keys():
        codes, exponents = quantise(tensors[name].float().mT.numpy())
        found[f"{name}_blocks"] = torch.from_numpy(np.ascontiguousarray(codes[..., 0::2] | codes[..., 1::2] << 4))
        found[f"{name}_scales"] = torch.from_numpy(np.ascontiguousarray((exponents + 127).astype(np.uint8)))
    return found


def dense(tensors: Tensors) -> Tensors:
    """What `published` rounds the weights to, in the layout that they came in."""
    found = dict(tensors)
    for name in [name for name in tensors if STACK.search(name)]:
        codes, exponents = quantise(tensors[name].float().mT.numpy())
        signs = np.where(codes & 8, -1.0, 1.0)
        values = signs * E2M1[codes & 7] * 2.0 ** exponents[..., None]  # [E, out, in / 32, 32]
        found[name] = torch.from_numpy(values.reshape(*values.shape[:2], -1).astype(np.float32)).mT.contiguous()
    return found


def quantise(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[E, out, in] -> codes [E, out, in / 32, 32] uint8 (sign, then the magnitude's place in E2M1), exponents [...]."""
    blocks = rows.astype(np.float64).reshape(*rows.shape[:2], -1, BLOCK)
    largest = np.abs(blocks).max(-1).clip(min=2.0**-120)
    exponents = np.floor(np.log2(largest)).astype(np.int64) - 2
    scaled = np.abs(blocks) / 2.0 ** exponents[..., None]
    places = np.abs(scaled[..., None] - E2M1).argmin(-1)
    return (places | np.where(blocks < 0, 8, 0)).astype(np.uint8), exponents
