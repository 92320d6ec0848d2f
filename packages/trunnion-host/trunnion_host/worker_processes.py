"""Starts the ranks above 0 as processes of their own, each connected to this one by a socket pair."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from trunnion_host.serving_types import HostConfig

END_SECONDS = 15.0
"""How long processes that were asked to end may take before they are killed."""


class WorkerProcesses:
    """Ranks 1 ... `tp_size` - 1. Each ends by itself when this process closes its end of the connection, or dies.

    They have this process's standard error, and a process group of their own: Ctrl-C on a terminal is rank 0's affair.
    """

    def __init__(self, config: HostConfig, library: Path | None) -> None:
        # File systems that several ranks may share locks on are not a given; this folder is on this machine.
        self._folder = tempfile.TemporaryDirectory(prefix="trunnion-")
        self.init_method = f"file://{self._folder.name}/ranks"
        self.sockets: list[int] = []
        """This side's ends, in the order of ranks; whoever takes them over closes them."""
        self.processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(1, config.tp_size):
                self._start(rank, config, library)
        except BaseException:
            for descriptor in self.sockets:
                os.close(descriptor)
            self.end()
            raise

    def _start(self, rank: int, config: HostConfig, library: Path | None) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            # -P: a module of the current folder must not stand in for an installed one.
            command = [sys.executable, "-P", "-m", "trunnion_host.worker", f"--rank={rank}"]
            command += [f"--socket={theirs.fileno()}", f"--init-method={self.init_method}"]
            command += [f"--config={json.dumps(dataclasses.asdict(config))}"]
            command += [f"--library={library}"] if library is not None else []
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
            self.processes.append(process)
            self.sockets.append(ours.detach())

    def forget_rendezvous(self) -> None:
        """Once all ranks have met, their meeting place can go."""
        self._folder.cleanup()

    def kill(self) -> None:
        """End them at once."""
        for process in self.processes:
            process.kill()

    def end(self) -> None:
        """Wait until the processes have ended, which they do when their connection is closed; kill those that stay."""
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
        self.kill()
        for process in self.processes:
            process.wait()
        self._folder.cleanup()
