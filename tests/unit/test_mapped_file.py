"""Tensors of a mapped file: equal to what was saved, at odd places too, and out of memory once they are done with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from trunnion.errors import UnsupportedError
from trunnion.weights.mapped_file import MappedFile
from trunnion.weights.safetensors_header import HeaderEntry, read_header
from trunnion.weights.safetensors_source import SafetensorsSource

STATUS = Path("/proc/self/status")
MIB = 1 << 20


def test_tensors_are_what_was_saved(tmp_path: Path) -> None:
    """The byte at the begin of the data puts all others at odd addresses."""
    saved = {
        "a": torch.arange(1, dtype=torch.uint8),
        "b": torch.randn(3, 5),
        "c": torch.randn(7).bfloat16(),
        "d": torch.randn(2, 2, 2).to(torch.float8_e4m3fn),
        "e": torch.tensor(3.5, dtype=torch.float64),
        "f": torch.empty(0, 4),
        "g": torch.tensor([True, False]),
    }
    save_file(saved, tmp_path / "model.safetensors")
    header = read_header(tmp_path / "model.safetensors")
    file = MappedFile(tmp_path / "model.safetensors")
    for name, entry in header.items():
        found = file.tensor(name, entry)
        file.give_back(entry)
        assert (found.dtype, found.shape) == (saved[name].dtype, saved[name].shape)
        assert torch.equal(found.view(torch.uint8) if found.dim() else found, _bytes(saved[name])), name


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8) if tensor.dim() else tensor


def test_what_is_written_does_not_reach_the_file(tmp_path: Path) -> None:
    save_file({"a": torch.ones(4)}, tmp_path / "model.safetensors")
    before = (tmp_path / "model.safetensors").read_bytes()
    (entry,) = read_header(tmp_path / "model.safetensors").values()
    MappedFile(tmp_path / "model.safetensors").tensor("a", entry).zero_()
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_a_dtype_that_torch_has_not_is_named(tmp_path: Path) -> None:
    save_file({"a": torch.ones(4)}, tmp_path / "model.safetensors")
    file = MappedFile(tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedError, match="'a' is stored as F6_E3M2; choices: BOOL, "):
        file.tensor("a", HeaderEntry(stored="F6_E3M2", shape=(4,), begin=80, end=83))


@pytest.mark.skipif(not STATUS.is_file(), reason="the system does not say what is in memory")
def test_a_checkpoint_is_not_in_memory_as_a_whole(tmp_path: Path) -> None:
    names = [f"part{index}" for index in range(8)]
    save_file({name: torch.ones(4 * MIB) for name in names}, tmp_path / "model.safetensors")
    before, most = _mapped_bytes(), 0
    for _, tensor in SafetensorsSource(tmp_path).tensors(names):
        assert tensor.sum() == 4 * MIB
        most = max(most, _mapped_bytes() - before)
    assert 16 * MIB <= most < 40 * MIB, "of 128 MiB in tensors of 16"


def _mapped_bytes() -> int:
    """Of files, in this process's memory."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith("RssFile:"))
    return int(line.split()[1]) << 10
