"""The command line of the peers' bench."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contestants import ENGINES, MODELS, WIDTHS
from results import OURS


def parse(arguments: Sequence[str], about: str) -> argparse.Namespace:
    """The options; those that cannot be end the process with the choices. `about` is what `--help` says first."""
    parser = argparse.ArgumentParser(
        prog="bench-cpu --peers", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    others = [name for name in ENGINES if name != OURS]
    parser.add_argument(
        "--peers", type=_choices("peer", others), default=others, metavar="NAMES", help=f"all, or of {','.join(others)}"
    )
    parser.add_argument(
        "--models", type=_choices("model", MODELS), default=list(MODELS), metavar="NAMES", help="(default: all)"
    )
    parser.add_argument(
        "--widths",
        type=_choices("width", WIDTHS),
        default=list(WIDTHS),
        metavar="BITS",
        help=f"bits of a weight: {','.join(map(str, WIDTHS))} (default: all)",
    )
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="of each engine (default: all cores)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of which the median counts (default: 3)")
    parser.add_argument("--quick", action="store_true", help="one round of few tokens, and no second start")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with charts here")
    parser.add_argument("--add", action="store_true", help="keep the groups that --json has and that are not run now")
    session = parser.add_argument_group("set by the session")
    session.add_argument("--python", action="append", default=[], metavar="NAME=PATH", help="an engine's environment")
    session.add_argument("--missing", action="append", default=[], metavar="NAME=REASON", help="why there is none")
    options = parser.parse_args(arguments)
    if options.add and options.json is None:
        parser.error("--add needs --json")
    for name in ("threads", "rounds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}, expected at least 1")
    options.rounds = 1 if options.quick else options.rounds
    options.peers = [OURS, *options.peers]
    options.python, options.missing = _pairs(options.python), _pairs(options.missing)
    return options


def _choices(what: str, known: Sequence[Any]) -> Any:
    by_text = {str(value): value for value in known}

    def parse(text: str) -> list[Any]:
        words = list(by_text) if text == "all" else text.split(",")
        if unknown := [word for word in words if word not in by_text]:
            raise argparse.ArgumentTypeError(f"no {what} {', '.join(unknown)}; choices: all, {', '.join(by_text)}")
        return [by_text[word] for word in dict.fromkeys(words)]

    return parse


def _pairs(words: Sequence[str]) -> Mapping[str, str]:
    return {name: value for name, _, value in (word.partition("=") for word in words)}
