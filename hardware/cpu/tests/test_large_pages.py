"""Weights move to large pages: the same values, shared as before, and nothing moved twice."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch
from torch import nn

from trunnion_cpu import large_pages
from trunnion_cpu.large_pages import LEAST_BYTES, large_bytes, to_large_pages

pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system gives no large pages on request")


class Weights(nn.Module):
    """A tied weight, a piece of a larger tensor, a transposed one, and odd sizes."""

    def __init__(self) -> None:
        super().__init__()
        rows = LEAST_BYTES // 4096
        self.embed = nn.Parameter(torch.randn(rows, 1024).bfloat16(), requires_grad=False)
        self.head = self.embed
        self.same_memory = nn.Parameter(self.embed.data, requires_grad=False)
        self.odd = nn.Parameter(torch.randn(7, 13), requires_grad=False)
        self.packed = nn.Parameter(torch.randint(-128, 127, (rows, 2048), dtype=torch.int8), requires_grad=False)
        self.piece = nn.Parameter(torch.randn(8, 8)[2:4], requires_grad=False)
        self.turned = nn.Parameter(torch.randn(6, 5).T, requires_grad=False)
        self.register_buffer("scale", torch.tensor(3.0))
        self.register_buffer("nothing", torch.empty(0))


@pytest.fixture
def weights() -> Weights:
    torch.manual_seed(0)
    return Weights()


def test_values_and_sharing_stay(weights: Weights) -> None:
    before = {name: tensor.clone() for name, tensor in weights.state_dict().items()}
    stays = {name: getattr(weights, name).data_ptr() for name in ("piece", "turned")}
    line = to_large_pages([weights])
    assert "bytes" in line and not line.startswith("no: 0")
    for name, tensor in weights.state_dict().items():
        assert torch.equal(tensor, before[name]) and tensor.dtype == before[name].dtype, name
        assert tensor.data_ptr() % 64 == 0 or name in stays, name
    assert weights.head is weights.embed
    assert weights.same_memory.data_ptr() == weights.embed.data_ptr()
    assert {name: getattr(weights, name).data_ptr() for name in stays} == stays
    moved = {weights.get_parameter(name).untyped_storage().data_ptr() for name in ("embed", "odd", "packed")}
    assert len(moved) == 1
    weights.packed.data.zero_()
    assert torch.equal(weights.odd, before["odd"]) and torch.equal(weights.embed, before["embed"])


def test_nothing_is_moved_twice(weights: Weights) -> None:
    to_large_pages([weights])
    places = {name: tensor.data_ptr() for name, tensor in weights.state_dict().items()}
    assert to_large_pages([weights]) == "no: 0 bytes are few"
    assert {name: tensor.data_ptr() for name, tensor in weights.state_dict().items()} == places


def test_few_weights_stay() -> None:
    layer = nn.Linear(8, 8)
    place = layer.weight.data_ptr()
    assert to_large_pages([layer]) == "no: 320 bytes are few"
    assert layer.weight.data_ptr() == place


def test_the_system_says_what_it_gave() -> None:
    memory = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    arena = torch.frombuffer(memory, dtype=torch.uint8)
    arena.fill_(1)
    assert large_bytes(arena.data_ptr()) == 0
    assert large_bytes(1) is None


def test_large_pages_are_counted_in_bytes_of_one_mapping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = tmp_path / "smaps"
    mapping = "{}-{} rw-p 00000000 00:00 0 \nSize: 8192 kB\nAnonHugePages: {:>8} kB\nVmFlags: rd wr\n"
    maps.write_text(mapping.format("1000", "2000", 2048) + mapping.format("2000", "3000", 4096))
    monkeypatch.setattr(large_pages, "MAPS", maps)
    assert [large_bytes(address) for address in (0x1FFF, 0x2000, 0x3000)] == [2 << 20, 4 << 20, None]
