"""What a worker answers: one JSON object a line, a command and its answer, over its standard input and output.

A worker is one engine in an environment of its own; this module is all that it shares with the others. It imports
nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TextIO

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What an engine is asked to be ready for."""

    threads: int
    max_seqs: int
    """Prompts of one call."""
    max_len: int
    """Tokens of a prompt and its answer."""
    max_tokens: int
    """Tokens of all prompts of one call and their answers."""


@dataclass(frozen=True, kw_only=True)
class Generated:
    """One call's answers, a row for each prompt."""

    tokens: Sequence[Sequence[int]]
    times: Sequence[Sequence[float]]
    """Seconds from the call until each token was there."""


Generate = Callable[[Prompts, int], Generated]
"""Answers all prompts at once, greedily, each with so many new tokens whichever they are."""
Open = Callable[[str, Limits], Generate]
"""Loads the model at a path."""


def serve(open_engine: Open) -> None:
    """Answer commands until the input ends: `open`, which must be the first, and `generate`.

    An answer is `{"ok": ...}`, or `{"error": "one line"}` of an exception, after which the next command may be tried.
    What engines print goes to the standard error.
    """
    answers = _own_output()
    generate: Generate | None = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if command["do"] == "open":
                generate = open_engine(command["path"], Limits(**command["limits"]))
                found: Mapping[str, Any] = {}
            elif generate is None:
                raise RuntimeError("nothing was opened")
            else:
                found = asdict(generate(command["prompts"], command["new_tokens"]))
        except Exception as error:
            text = " ".join(str(error).split())
            print(json.dumps({"error": f"{type(error).__name__}: {text}"}), file=answers, flush=True)
        else:
            print(json.dumps({"ok": found}), file=answers, flush=True)


def joint_steps(first: float, moments: Sequence[float], rows: int) -> list[list[float]]:
    """The times of an engine whose rows step together, from when it was called and when each step was done."""
    return [[moment - first for moment in moments]] * rows


def _own_output() -> TextIO:
    """The standard output for answers alone: from now on what else is written to it goes to the standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers
