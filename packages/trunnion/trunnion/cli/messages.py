"""What goes to the user besides the answer: one line on stderr, an exit code, a traceback only with --debug."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from trunnion.errors import TrunnionError

EXIT_UNEXPECTED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


class UsageProblem(TrunnionError, ValueError):
    """An option or prompt that cannot be used as given."""


def prepare_streams() -> None:
    """Give the process the streams it was started without, and let none of them fail over a character."""
    streams = {"stdin": ("r", "surrogateescape"), "stdout": ("w", "replace"), "stderr": ("w", "replace")}
    for name, (mode, errors) in streams.items():
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=errors)


def note(text: str) -> None:
    """One line on stderr."""
    print(" ".join(text.split("\n")), file=sys.stderr, flush=True)


def guarded(run: Callable[[], int], *, debug: bool) -> int:
    """Run a command; turn what it raises into one line and an exit code."""
    try:
        return run()
    except TrunnionError as error:
        return _report(str(error), EXIT_USAGE, debug=debug)
    except KeyboardInterrupt:
        return _report("interrupted", EXIT_INTERRUPTED, debug=False)
    except SystemExit as exit:
        # typer's answer to a broken pipe: whoever read the output has gone.
        return exit.code if isinstance(exit.code, int) else EXIT_UNEXPECTED
    except Exception as error:
        if (code := getattr(error, "exit_code", None)) is not None and hasattr(error, "format_message"):
            return _report(f"{error.format_message()} (see --help)", code, debug=debug)
        hint = "" if debug else " (--debug shows where)"
        return _report(f"{type(error).__name__}: {error}{hint}", EXIT_UNEXPECTED, debug=debug)


def _report(text: str, code: int, *, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    note(f"trunnion: {text}")
    return code
