"""Runs decoders of `transformers` that have no port: the module is theirs, attention and caches are ours."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from trunnion.errors import UnsupportedError

if TYPE_CHECKING:
    from trunnion.adapter.model import AdaptedCausalLM


def adapter_class(config: Mapping[str, Any], why_no_port: str, *, is_other: bool = False) -> type[AdaptedCausalLM]:
    """The class that runs transformers' module of a `config.json` in the place of a port.

    Args:
        is_other: the checkpoint is no folder of a language model, but one that pools, or a GGUF file.

    Raises:
        UnsupportedError: `why_no_port`, and why the adapter cannot take its place.
    """
    if is_other:
        raise UnsupportedError(why_no_port)
    if find_spec("transformers") is None:
        raise UnsupportedError(f"{why_no_port}; without a port, transformers must be installed (trunnion[adapter])")
    # Imports transformers, which takes seconds and which ports do without.
    from trunnion.adapter.model import AdaptedCausalLM, read_config

    try:
        read_config(config)
    except UnsupportedError as error:
        raise UnsupportedError(f"{why_no_port}; adapter: {error}") from None
    return AdaptedCausalLM
