"""What the tests of the C++ share: its programs, built once, and a server of the simulated device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import native_build
from serving import Server, serving, write_sim


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of the built programs and engines."""
    return native_build.build(*native_build.torch_definitions())


@pytest.fixture(scope="session")
def sim_server(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the example as model `sim`, which tests share and leave as it is."""
    repository = tmp_path_factory.mktemp("repository")
    write_sim(repository / "sim" / "1")
    with serving(programs, repository) as server:
        yield server
        assert server.process.poll() is None, "".join(server.lines)
