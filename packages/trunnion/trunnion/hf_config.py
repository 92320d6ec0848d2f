"""Reads a published `config.json` and what belongs to it: dtype, end-of-sequence ids, nesting, generation defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trunnion.config import DTYPES
from trunnion.errors import ConfigError


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` of a model folder; ConfigError names what is not there."""
    path = folder / "config.json"
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such model folder")
    if not path.is_file():
        others = ", ".join(sorted(file.name for file in folder.glob("*.gguf")))
        raise ConfigError(f"{folder}: no config.json" + (f"; name a GGUF file instead: {others}" if others else ""))
    return read_json_object(path)


def read_generation_config(folder: Path) -> dict[str, Any]:
    """`generation_config.json` of a model folder; empty if there is none."""
    path = folder / "generation_config.json"
    return read_json_object(path) if path.is_file() else {}


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; ConfigError in one line if it holds anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def max_positions(config: Mapping[str, Any]) -> int | None:
    """`max_position_embeddings`, None if it is not given; the registry knows families that read it otherwise.

    Raises:
        ConfigError: it is no whole number.
    """
    longest = text_config(config).get("max_position_embeddings")
    if longest is not None and type(longest) is not int:
        raise ConfigError(f"config.json: max_position_embeddings must be an integer, got {longest!r}")
    return longest


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The decoder's own part of `config`: `text_config` where it is nested, else all of it.

    The inner `tie_word_embeddings` and dtype win over the outer ones, which only fill in what the inner lacks.
    """
    inner = config.get("text_config")
    if not isinstance(inner, Mapping):
        return config
    shared: tuple[str, ...] = (
        "tie_word_embeddings",
        "dtype",
        "torch_dtype",
        "eos_token_id",
        "bos_token_id",
        "quantization_config",
    )
    if inner.get("dtype") is not None or inner.get("torch_dtype") is not None:
        shared = tuple(key for key in shared if not key.endswith("dtype"))
    # A null of another field has a meaning of its own: Mistral's window is 4096 where it is absent.
    return {**inner, **{key: config[key] for key in shared if key in config and inner.get(key) is None}}


def checkpoint_dtype(config: Mapping[str, Any], default: torch.dtype = torch.bfloat16) -> torch.dtype:
    """The dtype of `config` (`dtype`; before transformers 4.56 `torch_dtype`), or `default` where it names none.

    Raises:
        ConfigError: a dtype that no model runs in.
    """
    decoder = text_config(config)
    value = decoder.get("dtype") if decoder.get("dtype") is not None else decoder.get("torch_dtype")
    if value is None:
        return default
    name = str(value).removeprefix("torch.")
    if name not in DTYPES:
        raise ConfigError(f"config.json: dtype {value!r} is not supported; choices: {', '.join(DTYPES)}")
    return DTYPES[name]


def eos_token_ids(config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> tuple[int, ...]:
    """End-of-sequence ids: those of `generation_config.json` where it has any, else of `config.json`; may be empty."""
    return _first_token_ids("eos_token_id", config, generation)


def bos_token_id(config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> int | None:
    """The begin-of-sequence id, looked up as `eos_token_ids`; None if there is none."""
    ids = _first_token_ids("bos_token_id", config, generation)
    return ids[0] if ids else None


def _first_token_ids(name: str, config: Mapping[str, Any], generation: Mapping[str, Any] | None) -> tuple[int, ...]:
    for where in (generation or {}, text_config(config)):
        value = where.get(name)
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if any(type(item) is not int or item < 0 for item in ids):
            raise ConfigError(f"{name} must be a token id or a list of them, got {value!r}")
        if ids:
            return tuple(dict.fromkeys(ids))
    return ()
