"""Commands run side by side, their lines printed as they come, each behind the name of its command."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock


def run_side_by_side(
    commands: Mapping[str, Sequence[str]], variables: Mapping[str, str], *, at_once: int
) -> dict[str, bool]:
    """Start the commands in order, at most `at_once` at a time; by name, whether each exited with 0."""
    lock = Lock()

    def say(name: str, line: str) -> None:
        with lock:
            print(f"[{name}] {line.rstrip()}", flush=True)

    def run(name: str) -> bool:
        say(name, "started")
        process = subprocess.Popen(
            commands[name], env=dict(variables), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdout is not None
        with process:
            for line in process.stdout:
                say(name, line)
        return process.returncode == 0

    with ThreadPoolExecutor(at_once) as pool:
        return dict(zip(commands, pool.map(run, commands), strict=True))
