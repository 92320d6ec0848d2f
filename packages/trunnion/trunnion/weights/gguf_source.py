"""A GGUF file as a weight source: tensors under their Hugging Face names, dequantised one at a time or as they lie."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, dequantize

from trunnion.errors import UnsupportedError, WeightsError
from trunnion.weights.gguf_config import GGUFMetadata, hf_config_from
from trunnion.weights.gguf_header import GGUFTensor, read_gguf_header
from trunnion.weights.gguf_names import ARCHITECTURES
from trunnion.weights.report import first_names
from trunnion.weights.source import TensorInfo

ROPE_FACTORS = "rope_freqs.weight"
"""Per-frequency divisors of Llama 3's rope; they become part of the config, not a parameter."""

_PLAIN = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}


class GGUFSource:
    """The tensors of one GGUF file (architectures llama, qwen2, qwen3 and gemma3).

    Raises:
        ConfigError, WeightsError: the file is damaged.
        UnsupportedError: another architecture, or a tensor that the architecture does not have.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        metadata, stored = read_gguf_header(path)
        name = str(metadata.get("general.architecture"))
        if name not in ARCHITECTURES:
            raise UnsupportedError(f"{path}: unknown GGUF architecture {name!r}; supported: {', '.join(ARCHITECTURES)}")
        self._architecture = ARCHITECTURES[name]
        self._metadata = GGUFMetadata(path=path, architecture=name, values=metadata)
        factors = stored.pop(ROPE_FACTORS, None)
        self._rope_factors = None if factors is None else self._read(factors)
        self._stored: dict[str, GGUFTensor] = {}
        unknown = []
        for tensor in stored.values():
            hf_name = self._architecture.hf_name(tensor.name)
            if hf_name is None:
                unknown.append(tensor.name)
            else:
                self._stored[hf_name] = tensor
        if unknown:
            raise UnsupportedError(
                f"{path}: {len(unknown)} tensors are not of a plain {name} model: {first_names(unknown)}"
            )
        self._infos = {hf_name: self._info(tensor) for hf_name, tensor in self._stored.items()}
        self._kept: frozenset[str] = frozenset()

    @property
    def description(self) -> str:
        return str(self._path)

    @property
    def infos(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def keeping(self, names: Collection[str]) -> GGUFSource:
        """This file with the named matrices as rows of blocks, `[rows, bytes]` uint8, and not dequantised."""
        kept = copy.copy(self)
        kept._kept = frozenset(names)
        kept._infos = {
            hf_name: dataclasses.replace(info, shape=(info.shape[0], info.nbytes // info.shape[0]), dtype=torch.uint8)
            if hf_name in kept._kept
            else info
            for hf_name, info in self._infos.items()
        }
        return kept

    def hf_config(self) -> dict[str, Any]:
        """What this model's `config.json` would say."""
        shapes = {name: info.shape for name, info in self._infos.items()}
        return hf_config_from(self._metadata, self._architecture, shapes, self._dtype_name(), self._rope_factors)

    def generation_config(self) -> dict[str, Any]:
        """What this model's `generation_config.json` would say."""
        return self._metadata.generation_config()

    def tensors(self, names: Collection[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """The named tensors in file order; a quantised one as float32, or as rows of blocks where those are kept."""
        heads, kv_heads = self._metadata.heads()
        for hf_name, tensor in self._stored.items():
            if hf_name not in names:
                continue
            if hf_name in self._kept:
                read = torch.from_numpy(self._bytes(tensor)).view(tensor.shape[0], -1)
            else:
                read = self._read(tensor)
            yield hf_name, self._architecture.restore(hf_name, read, heads, kv_heads)

    def _bytes(self, tensor: GGUFTensor) -> np.ndarray:
        return np.fromfile(self._path, dtype=np.uint8, count=tensor.nbytes, offset=tensor.begin)

    def _read(self, tensor: GGUFTensor) -> torch.Tensor:
        raw = self._bytes(tensor)
        plain = _PLAIN.get(tensor.type)
        if plain is not None:
            return torch.from_numpy(raw).view(plain).reshape(tensor.shape)
        try:
            values = dequantize(raw.reshape(*tensor.shape[:-1], -1), tensor.type)
        except NotImplementedError:
            raise UnsupportedError(
                f"{self._path}: {tensor.name} is stored as {tensor.type.name}, which the gguf library cannot dequantise"
            ) from None
        if values.shape != tensor.shape:
            raise WeightsError(f"{self._path}: {tensor.name} dequantises to {values.shape}, expected {tensor.shape}")
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))

    def _info(self, tensor: GGUFTensor) -> TensorInfo:
        return TensorInfo(
            shape=tensor.shape,
            stored=tensor.type.name,
            nbytes=tensor.nbytes,
            file=self._path.name,
            dtype=_PLAIN.get(tensor.type, torch.float32),
        )

    def _dtype_name(self) -> str:
        """The plain type that holds most of the file, else float32: what blocks dequantise to, rounded no further."""
        bytes_by_type: Counter[GGMLQuantizationType] = Counter()
        for tensor in self._stored.values():
            bytes_by_type[tensor.type] += tensor.nbytes
        most = bytes_by_type.most_common(1)[0][0] if bytes_by_type else GGMLQuantizationType.F32
        return str(_PLAIN.get(most, torch.float32)).removeprefix("torch.")
