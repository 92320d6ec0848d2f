"""Loads a checkpoint as transformers does, on the host, with its eager attention, and nothing left at random."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trunnion.errors import UnsupportedError, WeightsError
from trunnion.weights.report import first_names


def load_published(folder: Path, dtype: torch.dtype) -> tuple[nn.Module, str]:
    """The module, and the version of transformers.

    Raises:
        UnsupportedError: transformers is not installed, or refuses the checkpoint; the text is its own.
        WeightsError: it would leave parameters at their random initial values.
    """
    if find_spec("transformers") is None:
        raise UnsupportedError("comparing with transformers needs transformers (pip install trunnion[adapter])")
    import transformers
    from transformers.utils import logging

    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    try:
        module, info = _auto_class(folder).from_pretrained(
            folder, dtype=dtype, attn_implementation="eager", local_files_only=True, output_loading_info=True
        )
    except Exception as error:
        # The code is not ours: its words are the reason.
        raise UnsupportedError(f"transformers cannot load {folder}: {' '.join(str(error).split())[:300]}") from error
    if missing := sorted(info["missing_keys"]):
        raise WeightsError(
            f"{folder}: transformers finds no tensors for {len(missing)} parameters: {first_names(missing)}"
        )
    return module.eval(), transformers.__version__


def _auto_class(folder: Path) -> Any:
    """Of a language model; one that also takes images is asked for its text all the same."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    is_causal = type(config) in AutoModelForCausalLM._model_mapping
    takes_images = type(config) in AutoModelForImageTextToText._model_mapping
    return AutoModelForImageTextToText if takes_images and not is_causal else AutoModelForCausalLM
