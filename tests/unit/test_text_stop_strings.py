"""Stop strings in streamed text: however the text is cut, what is shown is what stands before the first stop."""

from __future__ import annotations

import random

import pytest

from trunnion.text.stop_strings import StopStrings


def _stream(pieces: list[str], stops: list[str]) -> tuple[str, str | None]:
    matcher = StopStrings(stops)
    shown = "".join(matcher.push(piece) for piece in pieces)
    return shown + matcher.flush(), matcher.matched


def _cut(text: str, rng: random.Random) -> list[str]:
    cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(6)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.mark.parametrize("seed", range(200))
def test_first_stop_ends_the_text_however_it_is_cut(seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choice("ab\n") for _ in range(30))
    stops = ["".join(rng.choice("ab\n") for _ in range(rng.randint(2, 5)))]
    shown, matched = _stream(_cut(text, rng), stops)
    assert shown == text.split(stops[0])[0]
    assert (matched is not None) == (stops[0] in text)


def test_the_stop_that_begins_first_counts() -> None:
    assert _stream(list("one END two STOP"), ["STOP", "END"]) == ("one ", "END")


def test_nothing_of_a_stop_is_ever_shown() -> None:
    matcher = StopStrings(["\n\nUser:"])
    assert matcher.push("Hi\n") == "Hi"
    assert matcher.push("\nUs") == ""
    assert matcher.push("er") == ""
    assert matcher.push(": no") == ""
    assert (matcher.matched, matcher.flush(), matcher.push("more")) == ("\n\nUser:", "", "")


def test_text_that_only_began_a_stop_is_released() -> None:
    matcher = StopStrings(["aab"])
    assert [matcher.push(piece) for piece in ["a", "a", "a", "c"]] == ["", "", "a", "aac"]
    assert matcher.push("xaa") + matcher.flush() == "xaa"


def test_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        StopStrings([""])
