"""Loads an adapted model: weights as transformers would, with the account that ports give, then the self-test."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import transformers
from transformers.utils import logging

from trunnion.adapter.account import account_of
from trunnion.adapter.self_test import settle
from trunnion.adapter.streaming import fill, stored_tensors
from trunnion.errors import WeightsError
from trunnion.weights.report import WeightReport, first_names

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from trunnion.adapter.model import AdaptedCausalLM
    from trunnion.interfaces.model import TensorAccount
    from trunnion.weights.checkpoint import Checkpoint


def load(
    model: AdaptedCausalLM, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device, progress: bool
) -> WeightReport:
    """Fill `model` from `checkpoint`, on `device`, and test its ways there until one will do.

    Weights go to the device a few tensors at a time. Of several ranks each needs the whole module for the self-test: it
    stays on the host, in views of the files where transformers takes tensors as they are stored.

    Raises:
        WeightsError: a tensor is missing, left over or of another shape.
        UnsupportedError: the self-test fails.
    """
    start = time.perf_counter()
    with _progress_bars(progress):
        module, found = read_module(model, checkpoint, dtype, device if model.is_alone else None)
    module = module.eval().requires_grad_(False)
    num_parameters = len(list(module.parameters()))
    model.attach(module, device)
    error = settle(model, device)
    model.settle()
    infos = checkpoint.source.infos
    return WeightReport(
        source=f"{checkpoint.path}, by transformers",
        num_parameters=num_parameters,
        num_used=found.used,
        ignored={reason: tuple(names) for reason, names in found.ignored.items()},
        tied=(),
        conversions={},
        bytes_read=sum(each.nbytes for each in infos.values()),
        bytes_loaded=sum(each.numel() * each.element_size() for each in model.module.parameters()),
        seconds=time.perf_counter() - start,
        notes=(
            f"adapter: {model.why_adapted}; the module of transformers {transformers.__version__} runs "
            f"on this repository's attention, and its self-test is off by {error:.1e} of the logits",
            *model.notes(),
            model.describe(),
        ),
    )


def read_module(
    model: AdaptedCausalLM, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device | None
) -> tuple[PreTrainedModel, TensorAccount]:
    """The whole module with the weights of `checkpoint`, on `device`, or on the host if it is None.

    Raises:
        WeightsError: a tensor is missing, left over or of another shape.
    """
    module, infos = model.make_whole(), checkpoint.source.infos
    with stored_tensors(Path(checkpoint.path), infos, device) as tensors:
        found = fill(module, tensors, dtype=dtype, device=device or torch.device("cpu"))
    settled = account_of(module, found, infos)
    for kind, names in settled.problems.items():
        raise WeightsError(f"{checkpoint.path}: {len(names)} tensors {kind}: {first_names(list(names))}")
    return module, settled


@contextmanager
def _progress_bars(shown: bool) -> Iterator[None]:
    was_shown = logging.is_progress_bar_enabled()
    (logging.enable_progress_bar if shown else logging.disable_progress_bar)()
    try:
        yield
    finally:
        (logging.enable_progress_bar if was_shown else logging.disable_progress_bar)()
