"""A worker process as the runner sees it: asked one thing at a time, timed, watched, and ended."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

END_SECONDS = 10
TICKS = os.sysconf("SC_CLK_TCK")


class WorkerError(Exception):
    """Why a worker gave no answer, in one line. `is_dead`: nor will it give another."""

    def __init__(self, reason: str, *, is_dead: bool) -> None:
        super().__init__(reason)
        self.is_dead = is_dead


class Worker:
    """One process that speaks `protocol`; its standard error goes to a file.

    Args:
        command: what is started.
        variables: its whole environment.
        log: the file; its last line is the reason when the process dies.
    """

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
        self._log = log
        self._left = b""
        with log.open("wb") as errors:
            # A session of its own, so that all it starts can be ended with it, even if it is gone before them.
            self._process = subprocess.Popen(
                command,
                env=dict(variables),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)

    def ask(self, what: str, timeout: float, **arguments: Any) -> Mapping[str, Any]:
        """The answer to a command.

        Raises:
            WorkerError: the worker says why it cannot, has died, or is killed: no answer within `timeout` seconds.
        """
        until = time.monotonic() + timeout
        command = json.dumps({"do": what, **arguments}).encode() + b"\n"
        line = self._line(until) if self._send(command, until) else None
        if line is None:
            self._kill()
            raise WorkerError(f"no answer to {what!r} within {timeout:.0f} s", is_dead=True)
        try:
            answer = json.loads(line)
        except ValueError:
            self._kill()
            raise WorkerError(f"answered {what!r} with {line[:80]!r}", is_dead=True) from None
        if "error" in answer:
            raise WorkerError(answer["error"], is_dead=False)
        found: Mapping[str, Any] = answer["ok"]
        return found

    def peak_bytes(self) -> int:
        """The most memory that it and its children have had resident, pages of mapped files included."""
        return sum(_peak(process) for process in self._family())

    def cpu_seconds(self) -> float:
        """Processor time that it and its children have used."""
        return sum(_cpu_seconds(process) for process in self._family())

    def close(self) -> None:
        """End it, and what it started that has not ended with it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._wait()
        self._kill()
        self._process.stdout.close()

    def _send(self, command: bytes, until: float) -> bool:
        """Whether all of a command was taken in time."""
        assert self._process.stdin is not None
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdin, selectors.EVENT_WRITE)
            while command:
                if not ready.select(max(0.0, until - time.monotonic())):
                    return False
                try:
                    command = command[os.write(self._process.stdin.fileno(), command) :]
                except BrokenPipeError:
                    raise self._died() from None
        return True

    def _line(self, until: float) -> bytes | None:
        """The next line of its output; None: there was none in time."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._left:
                if not ready.select(max(0.0, until - time.monotonic())):
                    return None
                found = os.read(self._process.stdout.fileno(), 1 << 16)
                if not found:
                    raise self._died()
                self._left += found
        line, _, self._left = self._left.partition(b"\n")
        return line

    def _died(self) -> WorkerError:
        code = self._wait()
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        return WorkerError(f"ended with {how}: {lines[-1] if lines else 'no word'}"[:300], is_dead=True)

    def _wait(self) -> int:
        """Its exit code; it is killed if it does not end by itself."""
        try:
            return self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill()
            return self._process.wait()

    def _kill(self) -> None:
        """Kill what is left of it and of all that it started."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def _family(self) -> list[int]:
        """Its process and all descendants."""
        found = [self._process.pid]
        for process in found:
            for tasks in Path(f"/proc/{process}/task").glob("*/children"):
                try:
                    found += map(int, tasks.read_text().split())
                except OSError:
                    continue
        return found


def _peak(process: int) -> int:
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def _cpu_seconds(process: int) -> float:
    try:
        # The name, which may hold anything, is in parentheses.
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS
