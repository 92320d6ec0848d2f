"""How many threads a rank computes with where nobody says it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from trunnion.reference import ReferenceHardware, host_threads
from trunnion.reference.host_threads import cpu_quota, default_threads, physical_cores


def test_threads_count_cores_not_hyperthreads(tmp_path: Path) -> None:
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    assert physical_cores({0, 1, 2, 3}, tmp_path) == 2
    assert physical_cores({0, 2}, tmp_path) == 1
    assert physical_cores({7, 8, 9}, tmp_path) == 3


@pytest.mark.parametrize(("text", "expected"), [("max 100000\n", None), ("250000 100000\n", 2), ("50000 100000\n", 1)])
def test_threads_heed_the_quota(tmp_path: Path, text: str, expected: int | None) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert cpu_quota(tmp_path / "cpu.max") == expected
    assert cpu_quota(tmp_path / "absent") is None


def test_threads_follow_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert default_threads() == 5


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("asked", "of_torch", "num_ranks", "expected"),
    [
        ("", 64, 1, 6),
        ("", 64, 4, 1),
        ("", 64, 2, 3),
        ("", 64, 8, 1),
        ("", 2, 1, 2),
        ("9", 9, 4, 9),
        ("9", 3, 1, 3),
        ("many", 64, 1, 6),
    ],
)
def test_ranks_share_usable_cores(
    monkeypatch: pytest.MonkeyPatch, threads: None, asked: str, of_torch: int, num_ranks: int, expected: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    monkeypatch.setattr(host_threads, "usable_cores", lambda: 6)
    torch.set_num_threads(of_torch)
    assert ReferenceHardware().default_threads(num_ranks) == expected
