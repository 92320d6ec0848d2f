"""The process of one rank above 0: `python -m trunnion_host.worker`, started by the serving host of rank 0."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
from collections.abc import Sequence
from pathlib import Path

from trunnion_host import _serving_abi as abi
from trunnion_host.serving_types import HostConfig

EXIT_FATAL = 70
"""EX_SOFTWARE of sysexits.h, as the host's own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve rank 0 until it closes. What goes wrong is said to rank 0, which says it to the user."""
    parser = argparse.ArgumentParser(prog="python -m trunnion_host.worker", description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--socket", type=int, required=True, help="descriptor of the connection to rank 0")
    parser.add_argument("--init-method", required=True, help="where the ranks meet, a torch.distributed URL")
    parser.add_argument("--config", required=True, help="the host's HostConfig, as JSON")
    parser.add_argument("--library", type=Path, help="the shared library; by default the installed extension module")
    given = parser.parse_args(arguments)
    config = HostConfig(**json.loads(given.config))
    options = abi.worker_options(config, given.rank, given.socket, given.init_method)
    return int(abi.load(given.library).trn_worker_run(ctypes.byref(options), None, 0))


if __name__ == "__main__":
    # The rest of an interpreter's end could wait for a collective that will not come.
    os._exit(EXIT_FATAL if main() else 0)
