"""Reads how a sentence-transformers folder turns hidden states into an embedding: its modules and its pooling mode."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trunnion.config import PoolingConfig
from trunnion.errors import ConfigError, UnsupportedError
from trunnion.hf_config import read_json_object

MODULES_FILE = "modules.json"
MODES = ("lasttoken", "cls", "mean")

_MODE_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""sentence-transformers' spelling with one flag per mode; newer files name the mode in `pooling_mode`."""


def read_pooling(folder: Path) -> PoolingConfig | None:
    """The pooling that `modules.json` declares; None without that file: such a folder holds a language model.

    A folder with that file is a transformer at the folder's root, then Pooling, then perhaps Normalize. Which modes a
    model runs depends on what it is (`trunnion.layers.pooling`).

    Raises:
        UnsupportedError: other modules or another order, or a pooling mode that no model has.
        ConfigError: a file is not what sentence-transformers writes.
    """
    path = folder / MODULES_FILE
    if not path.is_file():
        return None
    modules = _read_modules(path)
    kinds = [kind for kind, _ in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise UnsupportedError(
            f"{path}: modules {', '.join(kinds) or 'none'} are not supported; "
            "choices: Transformer, Pooling; Transformer, Pooling, Normalize"
        )
    if modules[0][1]:
        raise UnsupportedError(f"{path}: the transformer lies in {modules[0][1]!r}, expected the folder itself")
    config_path = folder / modules[1][1] / "config.json"
    if not config_path.is_file():
        raise ConfigError(f"{config_path}: the pooling module has no config.json")
    modes = _modes(read_json_object(config_path))
    if len(modes) != 1 or modes[0] not in MODES:
        raise UnsupportedError(
            f"{config_path}: pooling mode {' and '.join(modes) or 'none'} is not supported; choices: {', '.join(MODES)}"
        )
    return PoolingConfig(mode=modes[0], normalize="Normalize" in kinds)


def _read_modules(path: Path) -> list[tuple[str, str]]:
    """(class name, folder) of each module, in order. Python paths of the classes differ between versions."""
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
        return [(module["type"].rpartition(".")[2], module["path"]) for module in modules]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: not a list of modules with type and path: {error!r}") from None


def _modes(config: Mapping[str, Any]) -> list[str]:
    named = config.get("pooling_mode")
    if named is not None:
        return [str(mode) for mode in (named if isinstance(named, list) else [named])]
    return [mode for flag, mode in _MODE_FLAGS.items() if config.get(flag)]
