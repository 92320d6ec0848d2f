"""Builds the server, the load tool and the engines into a wheel. An editable installation has none of them."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LINKED = ("libabsl-dev", "libc-ares-dev", "libgrpc-dev", "libprotobuf-dev", "libre2-dev", "libssl-dev", "zlib1g-dev")
"""Packages of Debian whose static libraries the programs contain; their licences go along."""


class NativeBuildHook(BuildHookInterface):
    """Adds `bin/` to the package; the wheel's tag names the platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, unless the wheel is an editable one.

        Raises:
            RuntimeError: the programs cannot be built; there is no wheel then.
        """
        if version == "editable":
            return
        root = Path(self.root)
        # Not below self.directory, which is a fresh one each time that a front end asks.
        folder = root / "build"
        installed = folder / "installed"
        options = ("-DCMAKE_BUILD_TYPE=Release", "-DTRUNNION_BUNDLE_STATIC=ON", "-DTRUNNION_BUNDLE_ENGINE_FOLDER=bin")
        torch = f"-DTRUNNION_BUNDLE_TORCH={_torch_folder()}"
        _run("cmake", "-G", "Ninja", *options, torch, "-S", str(root), "-B", str(folder / "native"))
        _run("cmake", "--build", str(folder / "native"), "--parallel", "2", "--target", "programs")
        shutil.rmtree(installed, ignore_errors=True)
        install = ("cmake", "--install", str(folder / "native"), "--strip", "--component", "programs")
        _run(*install, "--prefix", str(installed))
        include = build_data["force_include"]
        include[str(installed / "bin")] = "trunnion_bundle/bin"
        include[str(root / "include/third_party/httplib.LICENSE")] = "trunnion_bundle/bin/licenses/cpp-httplib.txt"
        for name in LINKED:
            licence = Path("/usr/share/doc") / name / "copyright"
            if licence.is_file():
                include[str(licence)] = f"trunnion_bundle/bin/licenses/{name}.txt"
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"


def _torch_folder() -> Path:
    """Of the package, which is not imported: only its headers and libraries are needed."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise RuntimeError("the engine of AOTInductor is built against the package torch, which is not installed")
    return Path(found.origin).parent


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        output = f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
        raise RuntimeError(f"{' '.join(command)}\n{output}\nsystem-packages.txt lists what it needs")
