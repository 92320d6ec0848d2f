"""The library as others use it: installed, found by CMake, linked without gRPC, answering in their process."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import native_build
import numpy as np
import pytest
from serving import write_echo

from trunnion_bundle import load

EXAMPLE = native_build.PACKAGE / "examples" / "embed"
PAGE = native_build.PACKAGE / "docs" / "embedding.md"


def run(*command: object, **variables: str) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280, env={**os.environ, **variables})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def prefix(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installed tree."""
    folder = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", programs, "--prefix", folder)
    return folder


def build(source: Path, prefix: Path, folder: Path, flags: str = "") -> Path:
    run("cmake", "-S", source, "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_CXX_FLAGS={flags}")
    run("cmake", "--build", folder)
    return folder


def test_the_installed_tree_is_whole(prefix: Path) -> None:
    names = {str(path.relative_to(prefix)) for path in prefix.rglob("*") if path.is_file()}
    assert {
        "bin/trunnion-serve-bundle",
        "bin/trunnion-bench-bundle",
        "include/trunnion_bundle/loaded_bundle.h",
    } <= names
    assert {"include/trunnion_bundle/code.h", "include/trunnion_bundle/engine.h"} <= names
    assert any(name.endswith("trunnion_bundle/engine_sim.so") for name in names), names
    assert not [name for name in names if "third_party" in name or "/bundle/" in name]


def test_the_shared_library_in_another_project(prefix: Path, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    sanitizer = pytestconfig.getoption("--sanitize")
    flags = f"-fsanitize={sanitizer}" if sanitizer else ""
    bundle = write_echo(tmp_path / "echo", base_us=2000, max_queue_rows=4096)
    folder = build(Path(__file__).parent / "embed", prefix, tmp_path / "build", flags)
    assert run(folder / "embed_check", bundle) == "ok\n"
    linked = run("ldd", folder / "embed_check")
    assert "libtrunnion_bundle.so" in linked
    assert not [name for name in ("grpc", "protobuf", "python", "torch", "not found") if name in linked], linked


def test_the_example_of_the_page(prefix: Path, dlrm_bundle: Path, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    import torch

    if pytestconfig.getoption("--sanitize"):
        pytest.skip("torch is not instrumented")
    page = PAGE.read_text()
    for name, language in (("CMakeLists.txt", "cmake"), ("rank.cc", "cpp")):
        assert f"```{language}\n{(EXAMPLE / name).read_text()}```" in page, name
    folder = build(EXAMPLE, prefix, tmp_path / "build")
    libraries = str(Path(torch.__file__).parent / "lib")
    found = run(folder / "rank", dlrm_bundle, LD_LIBRARY_PATH=libraries).split()
    wanted = load(dlrm_bundle)(dense=np.full((3, 13), 0.5, np.float32), sparse=np.ones((3, 26), np.int64))["scores"]
    np.testing.assert_allclose([float(word) for word in found], wanted, atol=2e-6)


def test_the_installed_server_finds_its_engines(prefix: Path, tmp_path: Path) -> None:
    """In ../lib/trunnion_bundle; where there is none, the folders that were looked at are named."""
    from serving import serving

    write_echo(tmp_path / "repository" / "echo" / "1")
    with serving(prefix / "bin", tmp_path / "repository") as server:
        server.wait_for_line("model echo version 1 is served on sim")
    shutil.copy(prefix / "bin" / "trunnion-serve-bundle", tmp_path)
    with serving(tmp_path, tmp_path / "repository") as server:
        line = server.wait_for_line("could not be loaded")
        assert f"there is no engine_sim.so in {tmp_path}, {tmp_path}/trunnion_bundle, " in line, line
