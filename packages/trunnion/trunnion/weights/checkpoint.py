"""Opens what the user named: a folder of safetensors, or a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trunnion.config import PoolingConfig
from trunnion.errors import ConfigError
from trunnion.hf_config import read_config, read_generation_config
from trunnion.pooling import read_pooling
from trunnion.weights.mxfp4_source import MXFP4Source
from trunnion.weights.quantization import with_settings_file
from trunnion.weights.quantization_config import read_quantization
from trunnion.weights.safetensors_source import SafetensorsSource
from trunnion.weights.source import WeightSource


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A model as it lies on disk: its configuration and its tensors, in the names of Hugging Face.

    What a file beside `config.json` says about quantisation is in `config`, as if it stood there.
    """

    path: Path
    config: dict[str, Any]
    generation_config: dict[str, Any]
    source: WeightSource
    pooling: PoolingConfig | None = None
    """How rows are pooled; None: it is a language model."""


def open_checkpoint(path: Path) -> Checkpoint:
    """Read configuration and headers of the folder or GGUF file at `path`; no tensor is read.

    Raises:
        ConfigError: nothing there, or no readable `config.json`.
        WeightsError: the files are broken.
        UnsupportedError: a format that is refused: pickle, quantised, an unknown GGUF architecture.
    """
    path = Path(path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise ConfigError(f"{path}: expected a model folder or a .gguf file")
        # Imported here: the `gguf` library is only needed for its own files.
        from trunnion.weights.gguf_source import GGUFSource

        gguf = GGUFSource(path)
        return Checkpoint(path=path, config=gguf.hf_config(), generation_config=gguf.generation_config(), source=gguf)
    config = with_settings_file(path, read_config(path))
    return Checkpoint(
        path=path,
        config=config,
        generation_config=read_generation_config(path),
        source=open_folder(path, config),
        pooling=read_pooling(path),
    )


def open_folder(path: Path, config: Mapping[str, Any]) -> WeightSource:
    """The tensors of the folder at `path`, whose configuration is `config`; errors as of `open_checkpoint`."""
    source = SafetensorsSource(path)
    quantization = read_quantization(config)
    is_mxfp4 = quantization is not None and quantization.method == "mxfp4"
    return MXFP4Source(source) if is_mxfp4 else source
