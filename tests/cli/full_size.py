"""Checkpoints as large as the published ones, and empty: their headers are all that can be read in seconds."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

PUBLISHED = Path(__file__).resolve().parents[2] / "models" / "tests" / "configs" / "published"


def full_size_headers(config: Mapping[str, Any], folder: Path) -> None:
    """A folder whose files are as large as the published ones, and empty: only headers can be read in seconds."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    there = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        tensors = AutoModelForCausalLM.from_config(there, dtype=torch.bfloat16).state_dict()
    if there.tie_word_embeddings:
        del tensors["lm_head.weight"]
    header: dict[str, Any] = {}
    size = 0
    for name, tensor in tensors.items():
        nbytes = tensor.numel() * 2
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [size, size + nbytes]}
        size += nbytes
    raw = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        os.truncate(file.fileno(), 8 + len(raw) + size)
