"""Commands that other distributions bring: an entry point in the group `trunnion.commands`, imported when it is run."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata

import typer

from trunnion.errors import UnsupportedError

COMMANDS_GROUP = "trunnion.commands"


def installed_commands() -> dict[str, metadata.EntryPoint]:
    """Command's name -> a function of the words after it that returns the exit code; none is imported.

    Raises:
        UnsupportedError: two distributions claim one name.
    """
    found: dict[str, metadata.EntryPoint] = {}
    for entry in metadata.entry_points(group=COMMANDS_GROUP):
        if entry.name in found and found[entry.name].value != entry.value:
            raise UnsupportedError(f"command {entry.name!r} is both {found[entry.name].value} and {entry.value}")
        found[entry.name] = entry
    return found


def add_installed(app: typer.Typer) -> None:
    """Add them to `app`; their words are theirs to read, `--help` among them."""
    unread = {"allow_extra_args": True, "allow_interspersed_args": False, "ignore_unknown_options": True}
    for name, entry in installed_commands().items():
        about = f"See {name} --help; from the distribution {entry.dist.name}." if entry.dist else f"See {name} --help."
        app.command(name, help=about, context_settings={**unread, "help_option_names": []})(_forward(entry))


def _forward(entry: metadata.EntryPoint) -> Callable[[typer.Context], int]:
    def command(context: typer.Context) -> int:
        return int(entry.load()(context.args))

    return command
