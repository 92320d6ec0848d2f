"""Precompiled executables of a PJRT plugin, made from a bundle's StableHLO by the program trunnion-compile-bundle."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from dataclasses import replace
from pathlib import Path

from trunnion_bundle.contract import Bundle
from trunnion_bundle.errors import BundleError
from trunnion_bundle.lowerings import PjrtLowering, PjrtModule
from trunnion_bundle.programs import find_program

PREFIX = "pjrt-"
PROGRAM = "trunnion-compile-bundle"


def default_plugin(platform: str = "cpu") -> Path | None:
    """The PJRT plugin of this environment for a platform of PJRT, if a package brings one."""
    found = importlib.util.find_spec("lammps_jax_pjrt_cpu") if platform == "cpu" else None
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "pjrt_c_api_cpu_plugin.so"


def server_defaults(allow_plugins: bool = False) -> list[str]:
    """Options of a server that is told nothing else: the PJRT plugin of this environment."""
    plugin = default_plugin()
    settings = ["--settings", json.dumps({"pjrt_plugin": str(plugin)})] if plugin else []
    return [*settings, *(["--allow-plugins"] if allow_plugins else [])]


def lower(folder: Path, bundle: Bundle, platform: str, target: Path, plugin: Path | None) -> PjrtLowering:
    """Compile every program of the bundle's StableHLO to executables for `platform` under `target`.

    Args:
        platform: `pjrt-cpu` and the like.
        plugin: of PJRT; None: the default one of the platform.

    Raises:
        BundleError: no StableHLO for the platform, no plugin, a plugin of another platform, or one that fails.
    """
    word = platform.removeprefix(PREFIX)
    sources = [
        lowering
        for lowering in bundle.lowerings.values()
        if isinstance(lowering, PjrtLowering) and lowering.program == "mlir" and word in lowering.platforms
    ]
    if not sources:
        raise BundleError(f"{folder} has no StableHLO for {word!r}; it has: {', '.join(bundle.lowerings)}")
    library = plugin or default_plugin(word)
    if library is None:
        raise BundleError(f"no PJRT plugin for {word!r} was given, and this environment has none; see --plugin")
    source, prefix = sources[0], f"lowerings/{platform}"
    pairs = [
        (folder / program.path, f"{prefix}/{name}/{i}.executable")
        for name, module in source.modules.items()
        for i, program in enumerate(module.programs)
    ]
    facts = _run(library, [(path, target / made) for path, made in pairs])
    if facts["platform"] != word:
        raise BundleError(f"{library}: its platform is {facts['platform']!r}; {platform} needs {word!r}")
    modules = {
        name: PjrtModule(
            arguments=module.arguments,
            programs=tuple(
                replace(program, path=f"{prefix}/{name}/{i}.executable") for i, program in enumerate(module.programs)
            ),
        )
        for name, module in source.modules.items()
    }
    return replace(
        source, program="executable", plugin_version=facts["version"], topology=facts["topology"], modules=modules
    )


def _run(plugin: Path, pairs: list[tuple[Path, Path]]) -> dict[str, str]:
    for _, made in pairs:
        made.parent.mkdir(parents=True, exist_ok=True)
    words = [str(word) for pair in pairs for word in pair]
    done = subprocess.run(
        [str(find_program(PROGRAM)), str(plugin), *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        reason = next((line for line in lines if line.startswith(PROGRAM)), lines[-1] if lines else "no reason")
        raise BundleError(
            reason if done.returncode > 0 else f"{PROGRAM} ended with signal {-done.returncode}: {reason}"
        )
    found: dict[str, str] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
