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
def programs(pytestconfig: pytest.Config) -> Path:
    """The folder of the built programs and engines."""
    return native_build.build(*native_build.definitions(pytestconfig.getoption("--sanitize")))


@pytest.fixture(scope="session")
def sanitizer_reports(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that programs write reports to, if they are built with a sanitizer."""
    folder = tmp_path_factory.mktemp("sanitizer")
    suppressed = Path(__file__).resolve().parent / "thread-sanitizer.txt"
    options = f"log_path={folder}/report:suppressions={suppressed}:history_size=4"
    with pytest.MonkeyPatch.context() as patch:
        if pytestconfig.getoption("--sanitize") == "thread":
            patch.setenv("TSAN_OPTIONS", options)
        for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS"):
            patch.setenv(name, f"log_path={folder}/report:print_stacktrace=1")
        yield folder
    assert not take_reports(folder), "a server that all tests share was reported"


@pytest.fixture(autouse=True)
def no_sanitizer_report(sanitizer_reports: Path) -> Iterator[None]:
    """Fails the test whose programs were reported."""
    yield
    assert not (text := take_reports(sanitizer_reports)), text


def take_reports(folder: Path) -> str:
    """What was reported since the last time."""
    texts = []
    for path in sorted(folder.iterdir()):
        texts.append(path.read_text())
        path.unlink()
    return "\n".join(texts)


@pytest.fixture(scope="session")
def sim_server(programs: Path, sanitizer_reports: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the example as model `sim`, which tests share and leave as it is."""
    repository = tmp_path_factory.mktemp("repository")
    write_sim(repository / "sim" / "1")
    with serving(programs, repository) as server:
        yield server
        assert server.process.poll() is None, "".join(server.lines)
