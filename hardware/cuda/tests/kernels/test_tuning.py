"""Configurations: bounded, measured once while warming up, remembered by device, and never measured in a capture."""

from __future__ import annotations

from pathlib import Path

import pytest

from trunnion_cuda.kernels.tuning import Config, Space, Tuner, size_class

SLOW, FAST, LARGE = Config({"M": 16}), Config({"M": 32}, num_warps=8), Config({"M": 128})
SPACE = Space("toy", (SLOW, FAST, LARGE))
TIMES = {16: 3.0, 32: 1.0, 128: 2.0}


class Toy:
    """A kernel whose time is known; `ran` is what it was launched with."""

    def __init__(self, tuner: Tuner) -> None:
        self.tuner = tuner
        self.ran: list[int] = []

    def __call__(self, key: int = 0, largest: int = 1000) -> Config:
        return self.tuner.run(SPACE, (key,), self._run, lambda config: config["M"] <= largest)

    def _run(self, config: Config) -> Config:
        self.ran.append(config["M"])
        return config

    def measure(self, call: object) -> float:
        return TIMES[call()["M"]]


def test_the_first_that_fits_runs_until_tuned() -> None:
    toy = Toy(Tuner())
    assert toy() is SLOW and toy.ran == [16]


def test_tuning_takes_the_fastest_and_measures_once() -> None:
    toy = Toy(Tuner())
    with toy.tuner.tuning(toy.measure, capturing=False):
        assert toy() is FAST and toy.ran == [16, 32, 128, 32]
        assert toy() is FAST and len(toy.ran) == 5
        assert toy(1, largest=20) is SLOW
    assert toy() is FAST and toy(2) is SLOW
    # A call of the same key that the choice does not fit.
    assert toy(0, largest=20) is SLOW
    assert toy.tuner.choices() == {"toy|0": 1}


def test_a_capture_is_never_tuned_in() -> None:
    toy = Toy(Tuner())
    with (
        pytest.raises(ValueError, match="cannot be tuned while the stream is capturing"),
        toy.tuner.tuning(toy.measure, capturing=True),
    ):
        toy()
    assert toy.ran == []


def test_choices_are_remembered_for_the_same_device(tmp_path: Path) -> None:
    toy, again, other = Toy(Tuner()), Toy(Tuner()), Toy(Tuner())
    with toy.tuner.tuning(toy.measure, capturing=False):
        toy(7)
    toy.tuner.save(tmp_path / "new" / "choices.json", "H200, triton 3.7.1")
    assert again.tuner.load(tmp_path / "new" / "choices.json", "H200, triton 3.7.1")
    assert again(7) is FAST and again.ran == [32]
    assert not other.tuner.load(tmp_path / "new" / "choices.json", "A100, triton 3.7.1")
    assert not other.tuner.load(tmp_path / "none.json", "H200, triton 3.7.1")
    assert other(7) is SLOW


def test_token_counts_share_choices() -> None:
    assert [size_class(n) for n in (0, 1, 3, 64, 65, 100_000)] == [1, 1, 4, 64, 128, 4096]
