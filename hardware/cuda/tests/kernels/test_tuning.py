"""Configurations: bounded, timed once while warming up, kept by content, and never timed in a step or a capture."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

from trunnion_cuda import tuned_choices
from trunnion_cuda.kernels.tuning import Budget, Config, Space, Tuner, size_class
from trunnion_cuda.tuned_choices import ChoicesFile

SLOW, FAST, LARGE = Config({"M": 16}), Config({"M": 32}, num_warps=8), Config({"M": 128})
SPACE = Space("toy", (SLOW, FAST, LARGE))
TIMES = {16: 3.0, 32: 1.0, 128: 2.0}


def budget(max_seconds: float = 100.0, max_timings: int = 100) -> Budget:
    """Whose clock goes on by a second with each question."""
    return Budget(max_seconds=max_seconds, max_timings=max_timings, clock=itertools.count().__next__)


class Toy:
    """A kernel whose time is known; `ran` is what it was launched with."""

    def __init__(self) -> None:
        self.tuner = Tuner()
        self.ran: list[int] = []

    def __call__(self, *key: int | str, largest: int = 1000) -> Config:
        return self.tuner.run(SPACE, key or (0,), self._run, lambda config: config["M"] <= largest)

    def _run(self, config: Config) -> Config:
        self.ran.append(config["M"])
        return config

    def measure(self, call: object) -> float:
        return TIMES[call()["M"]]

    def tuning(self, budget: Budget, *, capturing: bool = False):
        return self.tuner.tuning(self.measure, budget, lambda: capturing)


def test_the_first_that_fits_runs_until_tuned() -> None:
    toy = Toy()
    assert toy() is SLOW and toy.ran == [16]


def test_the_choice_follows_the_clock_and_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    toy, spent = Toy(), budget()
    with toy.tuning(spent):
        assert toy() is FAST and toy.ran == [16, 32, 128, 32]
        assert toy() is FAST and len(toy.ran) == 5
        assert toy(1, largest=20) is SLOW, "nothing to choose from is not timed"
        monkeypatch.setitem(TIMES, 128, 0.5)
        assert toy(7) is LARGE
    assert spent.timings == {"toy": 6}
    assert toy() is FAST
    # A call of the same kind that the choice does not fit.
    assert toy(0, largest=20) is SLOW
    assert toy.tuner.choices() == {("toy", (0,)): 1, ("toy", (7,)): 2}


def test_a_step_never_tunes() -> None:
    """Whatever it calls: after `tuning` nothing is timed."""
    toy = Toy()
    with toy.tuning(budget()):
        toy("a", 4)
    toy.ran.clear()
    assert toy("b", 4) is SLOW and toy("a", 4) is FAST and toy("a", 64) is FAST
    assert toy.ran == [16, 32, 32]


def test_a_capture_never_tunes() -> None:
    toy = Toy()
    with (
        pytest.raises(ValueError, match="toy cannot be tuned while the stream is capturing"),
        toy.tuning(budget(), capturing=True),
    ):
        toy()
    assert toy.ran == []


def test_a_size_without_a_choice_takes_the_nearest_and_says_so() -> None:
    toy = Toy()
    toy.tuner.take([("toy", ("a", 4), 1), ("toy", ("a", 1024), 2), ("other", ("a", 16), 0)])
    assert toy("a", 16) is FAST and toy("a", 512) is LARGE and toy("b", 4) is SLOW
    assert toy("a", 4) is FAST
    assert toy.tuner.stand_ins == {
        "toy|a,16": "the choice for size 4",
        "toy|a,512": "the choice for size 1024",
        "toy|b,4": "its first configuration",
    }
    # A choice of its own takes its place.
    toy.tuner.take([("toy", ("a", 16), 2)])
    assert toy("a", 16) is LARGE and toy.tuner.stand_ins == {}


@pytest.mark.parametrize(("limits", "timed"), [((100.0, 7), 2), ((2.0, 100), 1), ((0.0, 100), 0)], ids=str)
def test_timings_are_bounded(limits: tuple[float, int], timed: int) -> None:
    """By their number and by seconds; kinds of calls that are left over are counted."""
    toy, spent = Toy(), budget(*limits)
    with toy.tuning(spent):
        for size in (64, 32, 16):
            toy("a", size)
    assert spent.timings.total() == 3 * timed and spent.refused.total() == 3 - timed
    assert len(toy.tuner.choices()) == timed


def test_choices_are_kept_beside_those_of_other_models(tmp_path: Path) -> None:
    file, toy, other, again = ChoicesFile(tmp_path / "new" / "choices.json"), Toy(), Toy(), Toy()
    assert file.load(toy.tuner) is None
    with toy.tuning(budget()):
        toy("a", None, 7)
    with other.tuning(budget()):
        other("b", 7)
    assert file.save(toy.tuner) is None and file.save(other.tuner) is None
    assert file.load(again.tuner) is None
    spent = budget()
    with again.tuning(spent):
        assert again("a", None, 7) is FAST and again("b", 7) is FAST
    assert again.ran == [32, 32] and not spent.timings, "a second start times nothing"


@pytest.mark.parametrize(
    "content", ["", "{}", '[["toy", [0], -1]]', '[["toy", [], 1]]', '[["toy", [[0]], 1]]', "[[]]", "\\xff"], ids=repr
)
def test_a_spoiled_file_is_named_and_harmless(tmp_path: Path, content: str) -> None:
    file, toy = ChoicesFile(tmp_path / "choices.json"), Toy()
    file.path.write_bytes(content.encode("latin1").decode("unicode_escape").encode("latin1"))
    problem = file.load(toy.tuner)
    assert problem is not None and str(file.path) in problem and toy.tuner.choices() == {}
    with toy.tuning(budget()):
        assert toy(3) is FAST
    assert file.save(toy.tuner) is None and json.loads(file.path.read_text()) == [["toy", [3], 1]]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    problem = ChoicesFile(tmp_path / "file" / "choices.json").save(Tuner())
    assert problem is not None and "cannot be written, the next start will time again" in problem


def test_a_choice_past_the_space_is_not_taken() -> None:
    toy = Toy()
    toy.tuner.take([("toy", (0,), 9)])
    assert toy() is SLOW


def test_files_are_of_one_device_compiler_and_source(monkeypatch: pytest.MonkeyPatch) -> None:
    device, found = torch.device("cuda", 0), set()
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    found.add(tuned_choices.choices_file(device).path)
    assert tuned_choices.choices_file(device).path in found
    for target, name, value in (
        (torch.cuda, "get_device_name", lambda device: "H100"),
        (torch.cuda, "get_device_capability", lambda device: (10, 0)),
        (tuned_choices, "version", lambda package: "0"),
        (tuned_choices, "_digest", lambda files: "edited"),
    ):
        monkeypatch.setattr(target, name, value)
        found.add(tuned_choices.choices_file(device).path)
    assert len(found) == 5


def test_token_counts_share_choices() -> None:
    assert [size_class(n) for n in (0, 1, 3, 64, 65, 100_000)] == [1, 1, 4, 64, 128, 4096]
