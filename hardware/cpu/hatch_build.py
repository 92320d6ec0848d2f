"""Compiles the native operators into a wheel. An editable installation has none: its package builds them on demand."""

from __future__ import annotations

import importlib.util
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeBuildHook(BuildHookInterface):
    """Adds the library to the wheel, whose tag names the platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, unless the wheel is an editable one.

        Raises:
            BuildError: the library cannot be built; there is no wheel then.
        """
        if version == "editable":
            return
        root = Path(self.root)
        builder = _module(root / "trunnion_cpu" / "native_build.py")
        folder = Path(self.directory) / "native"
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / builder.LIBRARY
        builder.build(root / "csrc", target)
        build_data["force_include"][str(target)] = f"trunnion_cpu/{builder.LIBRARY}"
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"


def _module(path: Path) -> ModuleType:
    """By its path: importing the package would import torch, which a build needs no more of than its headers."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
