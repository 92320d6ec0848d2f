"""Streams a checkpoint into a module of transformers that lies on meta, through transformers' own conversions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.modeling_utils import LoadStateDictConfig

from trunnion.weights.source import TensorInfo

if TYPE_CHECKING:
    from transformers.modeling_utils import LoadStateDictInfo

ASYNC_LOAD = "HF_DEACTIVATE_ASYNC_LOAD"
"""Environment variable of transformers, which it reads at each load."""


class StoredTensor:
    """A tensor of an open file, read when transformers asks for its elements.

    Args:
        device: where it is copied to at once, with nothing of it left on the host; None: it is a view of the file.
    """

    def __init__(self, file: Any, name: str, device: torch.device | None) -> None:
        self._file = file
        self._name = name
        self._device = device

    def __getitem__(self, everything: Any) -> torch.Tensor:
        tensor: torch.Tensor = self._file.get_tensor(self._name)
        return tensor if self._device is None else tensor.to(self._device, copy=True)


@contextmanager
def stored_tensors(
    folder: Path, infos: Mapping[str, TensorInfo], device: torch.device | None
) -> Iterator[dict[str, StoredTensor]]:
    """The tensors of a folder of safetensors by name, to be read while this lasts."""
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(safe_open(folder / name, framework="pt", device="cpu"))
            for name in sorted({info.file for info in infos.values()})
        }
        yield {name: StoredTensor(files[info.file], name, device) for name, info in infos.items()}


@contextmanager
def _on_this_thread() -> Iterator[None]:
    """Devices are called on the thread that made the executor: this is how transformers is told to start no others."""
    before = os.environ.get(ASYNC_LOAD)
    os.environ[ASYNC_LOAD] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[ASYNC_LOAD]
        else:
            os.environ[ASYNC_LOAD] = before


def fill(
    module: PreTrainedModel, tensors: Mapping[str, Any], *, dtype: torch.dtype, device: torch.device
) -> LoadStateDictInfo:
    """Put `tensors` into `module`, which lies on meta, as `from_pretrained` would, and say what did not fit.

    Transformers reads one tensor at a time, and converts (fuses experts, splits projections) on `device`. What it
    computes instead of loading, like the frequencies of ropes, is computed there too, unless that is meta.
    """
    where = {"": device}
    settings = LoadStateDictConfig(
        device_map=where,
        dtype=dtype,
        dtype_plan=module._get_dtype_plan(dtype),
        weight_mapping=get_model_conversion_mapping(module, None, None),
    )
    found: LoadStateDictInfo
    with _on_this_thread():
        found, _ = convert_and_load_state_dict_in_model(module, dict(tensors), settings)
    if device.type != "meta":
        module.mark_tied_weights_as_initialized(found)
        module._move_missing_keys_from_meta_to_device(found.missing_and_mismatched(), where, None, None)
        module._initialize_missing_keys(False)
    module.tie_weights(missing_keys=found.missing_keys, recompute_mapping=False)
    return found
