"""A folder of safetensors files, checked from its headers and streamed shard by shard from mapped memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import torch

from trunnion.errors import UnsupportedError, WeightsError
from trunnion.hf_config import read_json_object
from trunnion.weights.mapped_file import MappedFile
from trunnion.weights.quantization import refuse_quantized_folder, refuse_quantized_names, with_settings_file
from trunnion.weights.quantization_config import read_quantization
from trunnion.weights.report import first_names
from trunnion.weights.safetensors_header import TORCH_DTYPES, HeaderEntry, read_header
from trunnion.weights.source import TensorInfo

INDEX_NAME = "model.safetensors.index.json"
PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt")


class SafetensorsSource:
    """The tensors of a model folder.

    File names come from the index where there is one; without it `model*.safetensors` is preferred over other files,
    and `consolidated*` (Mistral's own names) is refused.

    Raises:
        WeightsError: a shard is missing, truncated, malformed, or two shards hold the same tensor.
        ConfigError: the index or `config.json` is not a JSON object.
        UnsupportedError: pickle or adapter checkpoints, or quantised ones of a kind that is not read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        refuse_quantized_folder(folder)
        path = folder / "config.json"
        config = with_settings_file(folder, read_json_object(path) if path.is_file() else {})
        is_quantized = read_quantization(config) is not None
        weight_map = read_index(folder)
        files = _files_without_index(folder) if weight_map is None else sorted(set(weight_map.values()))
        self._entries: dict[Path, dict[str, HeaderEntry]] = {}
        self._infos: dict[str, TensorInfo] = {}
        _check_present(folder, files, weight_map)
        for file in files:
            self._add_file(folder / file)
        if weight_map is not None:
            self._check_index(weight_map)
        if not is_quantized:
            refuse_quantized_names(self.description, self._infos)

    @property
    def description(self) -> str:
        return str(self._folder)

    @property
    def infos(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def tensors(self, names: Collection[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """The named tensors, file by file in file order."""
        for path, stored in self._entries.items():
            wanted = [name for name in stored if name in names]
            if not wanted:
                continue
            file = MappedFile(path)
            for name in wanted:
                yield name, file.tensor(name, stored[name])
                # Else a whole checkpoint would be in memory twice by the time that it is loaded.
                file.give_back(stored[name])

    def _add_file(self, path: Path) -> None:
        header = read_header(path)
        self._entries[path] = header
        for name, entry in header.items():
            if name in self._infos:
                raise WeightsError(f"duplicated tensor {name!r}: in {self._infos[name].file} and in {path.name}")
            self._infos[name] = TensorInfo(
                shape=entry.shape,
                stored=entry.stored,
                nbytes=entry.end - entry.begin,
                file=path.name,
                dtype=TORCH_DTYPES.get(entry.stored),
            )

    def _check_index(self, weight_map: Mapping[str, str]) -> None:
        absent = [name for name in weight_map if name not in self._infos]
        if absent:
            raise WeightsError(
                f"{self._folder}: {len(absent)} tensors are in the index but in no shard: {first_names(absent)}"
            )
        for name, file in weight_map.items():
            if self._infos[name].file != file:
                raise WeightsError(
                    f"{self._folder}: the index places {name!r} in {file}, it lies in {self._infos[name].file}"
                )


def read_index(folder: Path) -> dict[str, str] | None:
    """Tensor -> file, as the index of `folder` has it; None if there is no index.

    Raises:
        ConfigError, WeightsError, UnsupportedError: it is no index, or names files that are not read.
    """
    if not (folder / INDEX_NAME).is_file():
        return None
    weight_map = read_json_object(folder / INDEX_NAME).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{folder / INDEX_NAME}: no weight_map")
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise WeightsError(f"{folder / INDEX_NAME}: {name!r} lies in {file!r}, which is not a file name")
        if not file.endswith(".safetensors"):
            raise UnsupportedError(f"{folder / INDEX_NAME}: {file} is not a safetensors file")
    return weight_map


def _files_without_index(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise WeightsError(f"{folder}: no such folder")
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    chosen = [name for name in found if name.startswith("model")]
    if not chosen:
        chosen = [name for name in found if not name.startswith(("consolidated", "adapter_"))]
    if chosen:
        return chosen
    if any(name.startswith("adapter_") for name in found):
        raise UnsupportedError(f"{folder} holds only an adapter ({found[0]}): merge it into its base model")
    if found:
        raise UnsupportedError(f"{folder} holds only {found[0]} (Mistral's own names): use the Hugging Face files")
    pickles = sorted(path.name for pattern in PICKLE_PATTERNS for path in folder.glob(pattern))
    if pickles:
        raise UnsupportedError(
            f"{folder} holds only pickle files ({first_names(pickles, 3)}), which can run code when read: convert them "
            "to safetensors (transformers: model.save_pretrained(dir, safe_serialization=True))"
        )
    raise WeightsError(f"{folder}: no safetensors file")


def _check_present(folder: Path, files: list[str], weight_map: Mapping[str, str] | None) -> None:
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        lost = [name for name, file in (weight_map or {}).items() if file == missing[0]]
        raise WeightsError(
            f"{folder}: the index names {first_names(missing)}, which is missing (holds {first_names(lost, 3)})"
        )
