"""What transformers makes of a checkpoint's tensors: those it used, left out, or has no place for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel
from transformers.utils import logging

from trunnion.adapter.streaming import fill
from trunnion.interfaces.model import TensorAccount
from trunnion.weights.source import TensorInfo

if TYPE_CHECKING:
    from transformers.modeling_utils import LoadStateDictInfo

LEFT_OUT = "transformers' class leaves them out"


def account(module: PreTrainedModel, infos: Mapping[str, TensorInfo], dtype: torch.dtype) -> TensorAccount:
    """Put tensors of the headers' shapes where transformers would put those of the files. `module` lies on meta."""
    there = {name: torch.empty(info.shape, dtype=info.dtype, device="meta") for name, info in infos.items()}
    was_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        found = fill(module, there, dtype=dtype, device=torch.device("meta"))
    finally:
        if was_shown:
            logging.enable_progress_bar()
    return account_of(module, found, infos)


def account_of(module: PreTrainedModel, found: LoadStateDictInfo, infos: Mapping[str, TensorInfo]) -> TensorAccount:
    """What `fill` has found, but for what the module's class says may be left out or left over."""
    spare = set(found.unexpected_keys)
    module._adjust_missing_and_unexpected_keys(found)
    left_out = sorted(spare - found.unexpected_keys)
    problems = {
        "missing": sorted(found.missing_keys),
        "unexpected": sorted(found.unexpected_keys),
        "of a wrong shape": sorted(name for name, *_ in found.mismatched_keys),
        "not to be converted": sorted(found.conversion_errors),
    }
    return TensorAccount(
        used=len(infos) - len(left_out),
        ignored={LEFT_OUT: left_out} if left_out else {},
        problems={kind: names for kind, names in problems.items() if names},
    )
