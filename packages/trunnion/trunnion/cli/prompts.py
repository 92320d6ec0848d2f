"""Prompts before they are tokens: where they are read from, and what makes them unusable."""

from __future__ import annotations

import sys

from trunnion.cli.messages import UsageProblem


def read_prompt() -> str:
    """All of standard input as one prompt."""
    if sys.stdin.isatty():
        raise UsageProblem('no prompt; give one in quotes, or on stdin: echo "..." | trunnion generate --model ...')
    return sys.stdin.read().removesuffix("\n")


def check_prompt(text: str, what: str) -> None:
    """A prompt has something to say, in UTF-8: bytes that are none came in as lone surrogates."""
    if not text.strip():
        raise UsageProblem(f"{what} is empty")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageProblem(f"{what} is not UTF-8 at character {error.start}") from error
