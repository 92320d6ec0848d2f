"""Opens what is to be checked: a folder, a `config.json` alone, or a GGUF file; broken weights do not hide the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trunnion.config import PoolingConfig
from trunnion.errors import TrunnionError
from trunnion.hf_config import eos_token_ids, read_config, read_generation_config, read_json_object
from trunnion.pooling import read_pooling
from trunnion.text.gguf_metadata import read_gguf_metadata
from trunnion.text.tokenizer import folder_chat_template, load_folder_tokenizer
from trunnion.weights.checkpoint import open_checkpoint, open_folder
from trunnion.weights.quantization import with_settings_file
from trunnion.weights.quantization_config import read_quantization
from trunnion.weights.safetensors_source import INDEX_NAME, PICKLE_PATTERNS, read_index
from trunnion.weights.source import WeightSource

WEIGHT_PATTERNS = ("*.safetensors", INDEX_NAME, *PICKLE_PATTERNS)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """As much of a checkpoint as there is."""

    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    source: WeightSource | None
    """None: there are no weights, or they cannot be read."""
    problem: str | None = None
    """Why there is no source, if there are weights."""
    names: tuple[str, ...] = ()
    """Of tensors, from an index, where there is no source."""
    pooling: PoolingConfig | None = None
    has_chat_template: bool | None = None
    """None: there is no tokenizer to have one."""
    end_ids: tuple[int, ...] = ()


def open_for_check(path: Path) -> Opened:
    """Read what lies at `path`.

    Raises:
        ConfigError, UnsupportedError, WeightsError: there is no configuration that can be read.
    """
    if path.is_dir():
        return _open_folder(path)
    if path.suffix == ".json":
        config = read_json_object(path)
        return Opened(config=config, generation_config={}, source=None, end_ids=eos_token_ids(config))
    checkpoint = open_checkpoint(path)
    return Opened(
        config=checkpoint.config,
        generation_config=checkpoint.generation_config,
        source=checkpoint.source,
        has_chat_template=bool(read_gguf_metadata(path).get("tokenizer.chat_template")),
        end_ids=eos_token_ids(checkpoint.config, checkpoint.generation_config),
    )


def _open_folder(path: Path) -> Opened:
    config = with_settings_file(path, read_config(path))
    generation_config = read_generation_config(path)
    source, problem = None, None
    names: tuple[str, ...] = ()
    if any(True for pattern in WEIGHT_PATTERNS for _ in path.glob(pattern)):
        try:
            source = open_folder(path, config)
        except TrunnionError as error:
            problem, names = str(error), _names(path, config)
    has_tokenizer = (path / "tokenizer.json").is_file()
    return Opened(
        config=config,
        generation_config=generation_config,
        source=source,
        problem=problem,
        names=names,
        pooling=read_pooling(path),
        has_chat_template=folder_chat_template(path) is not None if has_tokenizer else None,
        end_ids=eos_token_ids(config, generation_config) or (_own_end(path) if has_tokenizer else ()),
    )


def _names(path: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Of an index that can be read, unless it has other names than the source that would be made of it (MXFP4)."""
    try:
        quantization = read_quantization(config)
        if quantization is not None and quantization.method == "mxfp4":
            return ()
        return tuple(read_index(path) or ())
    except TrunnionError:
        return ()


def _own_end(path: Path) -> tuple[int, ...]:
    """The tokenizer's, where no configuration names one."""
    found = load_folder_tokenizer(path).token_id("eos_token")
    return () if found is None else (found,)
