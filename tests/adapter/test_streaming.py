"""Weights go from the files to the device a few tensors at a time: the host never holds the checkpoint."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from trunnion.adapter import streaming
from trunnion.adapter.loading import read_module
from trunnion.adapter.model import AdaptedCausalLM, AdaptedConfig
from trunnion.config import BuildContext
from trunnion.reference import ReferenceHardware
from trunnion.weights.checkpoint import Checkpoint, open_checkpoint

from .tiny_configs import tiny_config

META = torch.device("meta")


class HostCount:
    """Opens files in the place of safetensors, and counts the bytes of what was read and is still held."""

    def __init__(self) -> None:
        self.held = self.peak = self.largest = self.total = 0
        self.threads: set[int] = set()

    @contextmanager
    def open(self, path: Path, **options: Any) -> Iterator[HostCount]:
        with safe_open(path, **options) as self._file:
            yield self

    def get_tensor(self, name: str) -> torch.Tensor:
        self.threads.add(threading.get_ident())
        tensor = self._file.get_tensor(name).clone()
        size = tensor.nbytes
        self.held += size
        self.peak, self.largest, self.total = max(self.peak, self.held), max(self.largest, size), self.total + size
        weakref.finalize(tensor, self._let_go, size)
        return tensor

    def _let_go(self, size: int) -> None:
        self.held -= size


def checkpoint_of(model_type: str, folder: Path) -> tuple[AdaptedCausalLM, Checkpoint]:
    """A checkpoint in bfloat16 of more layers than tiny ones have, and the model for it, on meta."""
    config = tiny_config(model_type)
    config.num_hidden_layers = 24
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    checkpoint = open_checkpoint(folder)
    with META:
        ctx = BuildContext(hardware=ReferenceHardware(), dtype=torch.bfloat16)
        return AdaptedCausalLM(AdaptedConfig.from_hf(checkpoint.config), ctx), checkpoint


@pytest.mark.parametrize("model_type", ["stablelm", "olmoe"])
def test_the_host_holds_a_few_tensors_at_a_time(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fused experts among them; meta stands for a device, as it has no memory on the host."""
    model, checkpoint = checkpoint_of(model_type, tmp_path)
    count = HostCount()
    monkeypatch.setattr(streaming, "safe_open", count.open)
    module, found = read_module(model, checkpoint, torch.bfloat16, META)
    assert found.used == len(checkpoint.source.infos) and not found.problems
    assert {parameter.device for parameter in module.parameters()} == {META}
    assert count.total == sum(info.nbytes for info in checkpoint.source.infos.values())
    assert count.peak == count.largest < count.total / 6, vars(count)
    # A device's calls come from one thread.
    assert count.threads == {threading.get_ident()}


def in_file(module: torch.nn.Module, file: Path) -> set[bool]:
    """Whether the parameters lie in mapped memory of `file`."""
    ranges = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(file)):
            begin, end = line.split()[0].split("-")
            ranges.append(range(int(begin, 16), int(end, 16)))
    return {any(parameter.data_ptr() in each for each in ranges) for parameter in module.parameters()}


def test_what_runs_is_no_view_of_the_file(tmp_path: Path) -> None:
    model, checkpoint = checkpoint_of("stablelm", tmp_path)
    module, _ = read_module(model, checkpoint, torch.bfloat16, torch.device("cpu"))
    assert in_file(module, tmp_path / "model.safetensors") == {False}


def test_of_several_ranks_the_whole_is_views_of_the_file(tmp_path: Path) -> None:
    model, checkpoint = checkpoint_of("stablelm", tmp_path)
    module, _ = read_module(model, checkpoint, torch.bfloat16, None)
    assert in_file(module, tmp_path / "model.safetensors") == {True}
