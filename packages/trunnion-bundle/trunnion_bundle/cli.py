"""`trunnion bundle`: the commands and their options; what a command needs is imported when it runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from trunnion_bundle.errors import BundleError
from trunnion_bundle.programs import SERVER, replace_process

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
EXPORT_HELP = (
    "MODULE or FILE.py, and a function that returns the arguments of trunnion_bundle.save but the folder, as a dict: "
    "'trunnion_bundle.examples.dlrm:recipe'. The function's name may be left out if it is 'recipe'."
)

FORWARDED = {
    "serve": (SERVER, "Serve bundles in C++"),
    "bench": ("trunnion-bench-bundle", "Load a server"),
}
"""Commands that are programs of C++: their options are theirs."""


def main(arguments: Sequence[str] | None = None, prog: str = "trunnion bundle") -> int:
    """Run one command; its exit code: 0, 1 if a check failed, 2 for a mistake of the user's."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    try:
        if words[:1] and words[0] in FORWARDED:
            return replace_process(FORWARDED[words[0]][0], [*words[1:], *_defaults(*words)])
        options = build_parser(prog).parse_args(words)
        return int(options.run(options) or 0)
    except BundleError as error:
        if debug:
            raise
        print(f"{prog}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has gone.
        sys.stdout = None
        return EXIT_FAILED


def _defaults(command: str, *words: str) -> list[str]:
    """What a server is told that says nothing of it: where this environment has a PJRT plugin."""
    from trunnion_bundle.pjrt_compile import server_defaults

    return [] if command != "serve" or {"--settings", "--help", "-h"} & set(words) else server_defaults()


def build_parser(prog: str) -> argparse.ArgumentParser:
    """All commands."""
    parser = argparse.ArgumentParser(prog=prog, description="Write, inspect, change, check and serve model bundles.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, about: str, run: Callable[[argparse.Namespace], int | None]) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=about, description=about)
        added.add_argument("--debug", action="store_true", help="show tracebacks")
        added.set_defaults(run=run)
        return added

    _add_making(command)
    _add_looking(command)
    _add_changing(command)
    _add_running(command)
    return parser


Command = Callable[[str, str, Callable[[argparse.Namespace], "int | None"]], argparse.ArgumentParser]


def _folder(parser: argparse.ArgumentParser, name: str = "folder") -> None:
    parser.add_argument(name, type=Path, metavar="DIR", help="a bundle")


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _allow_plugins(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow-plugins", action="store_true", help="run its plugins: code of whoever wrote the bundle"
    )


def _note(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--note", default="", help="for the history")


def _add_making(command: Command) -> None:
    export = command("export", "Write a bundle from a model in Python.", _export)
    export.add_argument("recipe", metavar="RECIPE", help=EXPORT_HELP)
    export.add_argument("folder", type=Path, metavar="DIR", help="an absent or empty folder")
    export.add_argument(
        "--platform", action="append", metavar="NAME", help="may be given several times [this machine's]"
    )
    _note(export)
    compile_ = command("compile", "Add a lowering for another platform.", _compile)
    _folder(compile_)
    compile_.add_argument("--platform", required=True, metavar="NAME", help="such as cpu-x86_64-avx2 or pjrt-cpu")
    compile_.add_argument("--plugin", type=Path, metavar="FILE", help="of PJRT, for pjrt-NAME [of this environment]")
    _note(compile_)


def _add_looking(command: Command) -> None:
    show = command("show", "Print what a bundle answers, how, and where it runs.", _show)
    _folder(show)
    _json(show)
    show.add_argument("--cold-start", action="store_true", help="load it here, and print how long that takes")
    _allow_plugins(show)
    check = command("check", "Check files, weights, answers, padding, neighbours and index ranges.", _check)
    _folder(check)
    _json(check)
    check.add_argument("--platform", metavar="NAME", help="run this lowering only [all that run here]")
    check.add_argument("--quiet", action="store_true", help="print only what did not pass")
    _allow_plugins(check)
    diff = command("diff", "Print what differs between two bundles; exit code 1 if anything does.", _diff)
    _folder(diff, "first")
    _folder(diff, "second")
    history = command("history", "Print who changed what.", _history)
    _folder(history)
    _json(history)


def _add_changing(command: Command) -> None:
    set_ = command("set", "Change the serving policy; nothing is exported or compiled.", _set)
    _folder(set_)
    set_.add_argument(
        "changes", nargs="+", metavar="KEY=VALUE", help="VALUE is JSON: 'allowed_sizes=[1,8]', max_delay_us=500"
    )
    set_.add_argument("--signature", action="append", metavar="NAME", help="may be given several times [all]")
    _note(set_)
    rollback = command("rollback", "Restore the policy of an entry of the history.", _rollback)
    _folder(rollback)
    rollback.add_argument("hash", metavar="HASH", help="of the entry, or its first digits; see history")
    _note(rollback)


def _add_running(command: Command) -> None:
    run = command("run", "Answer one request in Python.", _run)
    _folder(run)
    run.add_argument("--signature", metavar="NAME", help="[the default]")
    run.add_argument("--platform", metavar="NAME", help="[the best that runs here]")
    _allow_plugins(run)
    given = run.add_mutually_exclusive_group()
    given.add_argument("--inputs", metavar="JSON", help="an object of nested lists by input; - reads standard input")
    given.add_argument(
        "--file", type=Path, metavar="FILE", help="safetensors with input.NAME, as in golden/ [the first golden]"
    )
    for name, (program, about) in FORWARDED.items():
        # Listed for --help; `main` hands its words on unread.
        command(name, f"{about}: {name} --help, and see {program}.", lambda _: EXIT_USAGE)


def _export(options: argparse.Namespace) -> None:
    from trunnion_bundle.recipes import load_recipe
    from trunnion_bundle.saving import save

    arguments = load_recipe(options.recipe)
    if options.platform:
        arguments = {**arguments, "platforms": options.platform}
    opened = save(options.folder, **arguments, note=options.note)
    print(
        f"{options.folder}: {opened.bundle.name}, {', '.join(opened.bundle.lowerings)}, {opened.entries[-1].hash[:12]}"
    )


def _compile(options: argparse.Namespace) -> None:
    from trunnion_bundle.edits import compile_for

    opened = compile_for(options.folder, options.platform, note=options.note, plugin=options.plugin)
    print(f"{options.folder}: {', '.join(opened.bundle.lowerings)}, {opened.entries[-1].hash[:12]}")


def _show(options: argparse.Namespace) -> None:
    from trunnion_bundle.show import print_bundle

    print_bundle(
        options.folder, as_json=options.json, cold_start=options.cold_start, allow_plugins=options.allow_plugins
    )


def _check(options: argparse.Namespace) -> int:
    from trunnion_bundle.show import print_check

    return print_check(
        options.folder, platform=options.platform, as_json=options.json, quiet=options.quiet,
        allow_plugins=options.allow_plugins,
    )  # fmt: skip


def _diff(options: argparse.Namespace) -> int:
    from trunnion_bundle.show import print_diff

    return print_diff(options.first, options.second)


def _history(options: argparse.Namespace) -> None:
    from trunnion_bundle.show import print_history

    print_history(options.folder, as_json=options.json)


def _set(options: argparse.Namespace) -> None:
    from trunnion_bundle.edits import set_policy
    from trunnion_bundle.folder import open_for_edit
    from trunnion_bundle.recipes import read_changes

    names = options.signature or list(open_for_edit(options.folder).bundle.signatures)
    opened = set_policy(
        options.folder,
        dict.fromkeys(names, read_changes(options.changes)),
        note=options.note or " ".join(options.changes),
    )
    print(f"{options.folder}: {', '.join(options.changes)}, {opened.entries[-1].hash[:12]}")


def _rollback(options: argparse.Namespace) -> None:
    from trunnion_bundle.edits import rollback

    opened = rollback(options.folder, options.hash, note=options.note)
    print(f"{options.folder}: {opened.entries[-1].note}, {opened.entries[-1].hash[:12]}")


def _run(options: argparse.Namespace) -> None:
    from trunnion_bundle.one_shot import answer

    text = sys.stdin.read() if options.inputs == "-" else options.inputs
    allow = options.allow_plugins
    print(answer(options.folder, options.signature, options.platform, text, options.file, allow_plugins=allow))


if __name__ == "__main__":
    sys.exit(main())
