"""Import-linter contracts, generated from the folders: who may import what between the distributions.

A new hardware folder or a new module of the common package is covered without an edit here: rules list what is allowed,
and everything else that exists is forbidden.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

BASE = ("contract", "errors", "interfaces")
"""What the agreement between packages consists of."""
MODELS_MAY = (*BASE, "config", "hf_config", "layers", "ops", "rope", "weights")
HARDWARE_MAY = (*BASE, "config", "ops", "reference", "debug", "layers")
HARDWARE_MAY_OF_RUNNER = ("buckets", "captured_steps", "graph_break", "input_buffers")
LAYERS_MAY_NOT = ("cli", "debug", "reference", "registry", "runner")
OPS_MAY_NOT = ("cli", "debug", "layers", "parallel", "reference", "registry", "runner", "weights")


def modules(package: Path) -> list[str]:
    """Names of the direct submodules and subpackages of a package that exist."""
    files = (path.stem for path in package.glob("*.py") if path.stem != "__init__")
    folders = (path.name for path in package.iterdir() if any(path.glob("*.py")))
    return sorted({*files, *folders})


def render(root: Path) -> str:
    """The whole configuration for import-linter."""
    common = root / "packages" / "trunnion" / "trunnion"
    hardware = sorted(f"trunnion_{path.parent.name}" for path in root.glob("hardware/*/pyproject.toml"))
    siblings = {
        "trunnion_models": root / "models" / "trunnion_models",
        "trunnion_host": root / "packages" / "trunnion-host" / "trunnion_host",
        "trunnion_bundle": root / "packages" / "trunnion-bundle" / "trunnion_bundle",
    }
    others = [name for name, folder in siblings.items() if (folder / "__init__.py").is_file()]
    existing = modules(common)

    def named(names: Iterable[str], *, other_than: bool = False) -> list[str]:
        wanted = set(existing) - set(names) if other_than else set(existing) & set(names)
        return [f"trunnion.{name}" for name in sorted(wanted - {"_versions"})]

    config = ConfigParser()
    simulators = sorted(path.parent.name for path in root.glob("hardware/*/simulator/*/__init__.py"))
    roots = ["trunnion", *others, *hardware, *simulators]
    config["importlinter"] = {"root_packages": _rows(roots), "exclude_type_checking_imports": "True"}

    def forbid(identifier: str, title: str, sources: list[str], targets: list[str], ignore: Iterable[str] = ()) -> None:
        if not sources or not targets:
            return
        config[f"importlinter:contract:{identifier}"] = {
            "name": title,
            "type": "forbidden",
            "source_modules": _rows(sources),
            "forbidden_modules": _rows(targets),
            "allow_indirect_imports": "True",
            "unmatched_ignore_imports_alerting": "none",
            **({"ignore_imports": _rows(ignore)} if ignore else {}),
        }

    above = [*hardware, *others]
    forbid(
        "common",
        "the common package imports no hardware, no models and no host; the command line starts the host",
        ["trunnion"],
        above,
        ignore=["trunnion.cli.** -> trunnion_host", "trunnion.cli.** -> trunnion_host.**"],
    )
    forbid("base", "interfaces and contract stand on nothing", named(BASE), named(BASE, other_than=True))
    forbid("layers", "layers know no runner and no reference", named(["layers"]), named(LAYERS_MAY_NOT))
    forbid("ops", "operators know no layers", named(["ops"]), named(OPS_MAY_NOT))
    if "trunnion_models" in others:
        targets = [*named(MODELS_MAY, other_than=True), *(name for name in above if name != "trunnion_models")]
        forbid("models", "models use the vocabulary of the common package only", ["trunnion_models"], targets)
    if "trunnion_host" in others:
        targets = [name for name in above if name != "trunnion_host"]
        forbid("host", "the host imports no hardware and no models", ["trunnion_host"], targets)
    if "trunnion_bundle" in others:
        targets = ["trunnion", *(name for name in above if name != "trunnion_bundle")]
        forbid("bundle", "bundles stand on nothing of the others", ["trunnion_bundle"], targets)
    runner = [f"trunnion.runner.{name}" for name in modules(common / "runner") if name not in HARDWARE_MAY_OF_RUNNER]
    allowed = (*HARDWARE_MAY, "runner")
    for package in hardware:
        targets = [*named(allowed, other_than=True), *runner, *(name for name in above if name != package)]
        forbid(package, f"{package} uses interfaces, ops, reference and the runner's tools", [package], targets)
    if simulators:
        forbid("simulators", "simulated devices know nothing of what runs on them", simulators, ["trunnion", *above])
    rows: list[str] = []
    for section in config.sections():
        rows += [f"[{section}]", *(f"{key} = {value}" for key, value in config[section].items()), ""]
    return "\n".join(rows)


def _rows(names: Iterable[str]) -> str:
    return "".join(f"\n    {name}" for name in names)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, required=True, metavar="FILE", help="where the configuration goes")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    arguments = parser.parse_args()
    arguments.write.write_text(render(arguments.root))
    return 0


if __name__ == "__main__":
    sys.exit(main())
