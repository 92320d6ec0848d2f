"""Loads an adapted model's weights as transformers does, with the account that ports give."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from trunnion.adapter.self_test import settle
from trunnion.errors import WeightsError
from trunnion.weights.report import WeightReport, first_names

if TYPE_CHECKING:
    from trunnion.adapter.model import AdaptedCausalLM
    from trunnion.weights.checkpoint import Checkpoint


def load(
    model: AdaptedCausalLM, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device, progress: bool
) -> WeightReport:
    """Fill `model` from `checkpoint`, on `device`, and test its ways there until one will do.

    Transformers loads into host memory first. What its classes say may be left out or left over, may be.

    Raises:
        WeightsError: a tensor is missing, left over or of another shape.
        UnsupportedError: the self-test fails.
    """
    start = time.perf_counter()
    with _progress_bars(progress):
        module, info = AutoModelForCausalLM.from_pretrained(
            Path(checkpoint.path), dtype=dtype, output_loading_info=True, local_files_only=True, use_safetensors=True
        )
    for what, verb in (("missing_keys", "missing"), ("unexpected_keys", "unexpected"), ("mismatched_keys", "misfit")):
        if names := sorted(map(str, info[what])):
            raise WeightsError(f"{checkpoint.path}: {len(names)} tensors {verb}: {first_names(names)}")
    module = module.eval().requires_grad_(False)
    num_parameters, names = len(list(module.parameters())), module.state_dict().keys()
    model.attach(module, device)
    error = settle(model, device)
    model.settle()
    infos = checkpoint.source.infos
    patterns = module._keys_to_ignore_on_load_unexpected or ()
    # A pattern may fit what is loaded as well: transformers asks it of what has no place alone.
    others = infos.keys() - names
    left_out = tuple(sorted(name for name in others if any(re.search(pattern, name) for pattern in patterns)))
    return WeightReport(
        source=f"{checkpoint.path}, by transformers",
        num_parameters=num_parameters,
        num_used=len(infos) - len(left_out),
        ignored={"transformers' class leaves them out": left_out} if left_out else {},
        tied=(),
        conversions={},
        bytes_read=sum(each.nbytes for each in infos.values()),
        bytes_loaded=sum(each.numel() * each.element_size() for each in model.module.parameters()),
        seconds=time.perf_counter() - start,
        notes=(
            f"adapter: no port of {type(module).__name__}; the module of transformers {transformers.__version__} runs "
            f"on this repository's attention, and its self-test is off by {error:.1e} of the logits",
            *model.notes(),
            model.describe(),
        ),
    )


@contextmanager
def _progress_bars(shown: bool) -> Iterator[None]:
    was_shown = logging.is_progress_bar_enabled()
    (logging.enable_progress_bar if shown else logging.disable_progress_bar)()
    try:
        yield
    finally:
        (logging.enable_progress_bar if was_shown else logging.disable_progress_bar)()
