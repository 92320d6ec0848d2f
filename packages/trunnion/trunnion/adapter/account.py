"""What transformers would make of a checkpoint's tensors: its own loading on the meta device, where nothing is read."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.modeling_utils import LoadStateDictConfig
from transformers.utils import logging

from trunnion.interfaces.model import TensorAccount
from trunnion.weights.source import TensorInfo

LEFT_OUT = "transformers' class leaves them out"


def account(module: PreTrainedModel, infos: Mapping[str, TensorInfo], dtype: torch.dtype) -> TensorAccount:
    """Put tensors of the headers' shapes where transformers would put those of the files. `module` lies on meta."""
    there = {name: torch.empty(info.shape, dtype=info.dtype, device="meta") for name, info in infos.items()}
    settings = LoadStateDictConfig(
        device_map={"": torch.device("meta")},
        dtype=dtype,
        dtype_plan=module._get_dtype_plan(dtype),
        weight_mapping=get_model_conversion_mapping(module, None, None),
    )
    was_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        found, _ = convert_and_load_state_dict_in_model(module, there, settings)
    finally:
        if was_shown:
            logging.enable_progress_bar()
    module.tie_weights(missing_keys=found.missing_keys, recompute_mapping=False)
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
