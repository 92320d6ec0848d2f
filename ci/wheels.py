"""Build the wheels of one hardware with the constraints they were tested under and their checksums: dist/<hardware>/.

Runs in the hardware's environment (`nox -s wheels-<hardware>`), whose installed versions become constraints.txt. What
is called `bundle` are the wheels that export and serve bundles. With
`--aot` it also writes dist/<hardware>-aot/: the hardware's wheel with kernels compiled by `python -m <package>.ahead`,
whose options may follow.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from versions import TABLE, Distribution, distributions, read_table

ROOT = Path(__file__).resolve().parent.parent
NOT_CARRIED = ("libtorch.so", "libtorch_cpu.so", "libc10.so")
"""Linked by name, to the torch of whoever installs the wheel."""

BUNDLE = "bundle"
BUNDLE_WHEELS = ("trunnion", "trunnion-bundle")
"""Distributions of dist/bundle/; the first only adds the command `trunnion bundle`."""
BUNDLE_TESTED = "trunnion-bundle[torch,client]"


def build(dist: Distribution, target: Path) -> Path:
    """Build one wheel into `target`; a Linux binary gets the oldest manylinux tag that its symbols allow."""
    with TemporaryDirectory() as scratch:
        pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", scratch)
        subprocess.run((*pip, str(dist.folder)), check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        if "-linux_" in wheel.name:
            left_out = (word for name in NOT_CARRIED for word in ("--exclude", name))
            repair = (sys.executable, "-m", "auditwheel", "repair", *left_out, "-w", str(target))
            subprocess.run((*repair, str(wheel)), check=True)
        else:
            shutil.move(wheel, target)
    (built,) = target.glob(f"{dist.name.replace('-', '_')}-*.whl")
    return built


def build_source(dist: Distribution, target: Path) -> Path:
    """Write the source distribution of `dist` to `target`, by its own build backend."""
    backend = tomllib.loads(dist.pyproject.read_text())["build-system"]["build-backend"]
    code = f"import {backend} as backend; print(backend.build_sdist({str(target)!r}))"
    done = subprocess.run((sys.executable, "-c", code), cwd=dist.folder, check=True, capture_output=True, text=True)
    return target / done.stdout.split()[-1]


def installed_closure(names: Iterable[str]) -> dict[str, str]:
    """Name -> public version of everything that `names` need, as installed here."""
    found: dict[str, str] = {}
    waiting = [Requirement(name) for name in names]
    seen: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        dist = distribution(requirement.name)
        # A local part ("+cpu") names one build; the constraint must let the installer's choice of build pass.
        found[canonicalize_name(requirement.name)] = Version(dist.version).public
        for line in dist.requires or ():
            child = Requirement(line)
            extras = ("", *requirement.extras)
            if child.marker is None or any(child.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(child)
    return found


def write_checksums(target: Path) -> None:
    """SHA256SUMS over the folder, in the format of `sha256sum --check`."""
    files = sorted(path for path in target.iterdir() if path.name != "SHA256SUMS")
    rows = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (target / "SHA256SUMS").write_text("".join(rows))


def build_ahead(dist: Distribution, options: Sequence[str]) -> Path:
    """The wheel of a copy of `dist` in which compiled kernels lie, under a local version -> its folder.

    Raises:
        SystemExit: the table knows no local version for it: it compiles nothing ahead.
    """
    local = read_table(ROOT)["ahead"].get(dist.hardware)
    if local is None:
        raise SystemExit(f"{dist.name} compiles no kernels ahead; [ahead] in {TABLE} does not name {dist.hardware}")
    target = fresh(ROOT / "dist" / f"{dist.hardware}-aot")
    package = dist.versions.parent.name
    with TemporaryDirectory() as scratch:
        copy = replace(dist, folder=Path(scratch) / dist.folder.name)
        shutil.copytree(dist.folder, copy.folder, ignore=shutil.ignore_patterns("__pycache__", "tests", "simulator"))
        cubins = copy.folder / package / "ahead" / "cubins"
        command = (sys.executable, "-m", f"{package}.ahead", "--out", str(cubins), *options)
        subprocess.run(command, check=True)
        text = copy.pyproject.read_text()
        copy.pyproject.write_text(re.sub(r'(?m)^(version = "[^"+]*)"', rf'\1+{local}"', text, count=1))
        wheel = build(copy, target)
    print(f"built {os.path.relpath(wheel, ROOT)}, {wheel.stat().st_size / 2**20:.1f} MiB", flush=True)
    write_checksums(target)
    return target


def fresh(folder: Path) -> Path:
    """The folder, empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def wanted_distributions(hardware: str) -> list[Distribution]:
    """Those of a hardware and what it stands on, or those of bundles, which stand on none of them."""
    if hardware == BUNDLE:
        return [dist for dist in distributions(ROOT) if dist.name in BUNDLE_WHEELS]
    return [
        dist for dist in distributions(ROOT) if dist.hardware in (None, hardware) and dist.name != "trunnion-bundle"
    ]


def main(hardware: str, arguments: Sequence[str] = ()) -> int:
    """Build; `arguments` are empty, or `--aot` and options of what compiles ahead."""
    if arguments and arguments[0] != "--aot":
        raise SystemExit(f"unknown argument {arguments[0]!r}; choices: --aot")
    target = fresh(ROOT / "dist" / hardware)
    wanted = wanted_distributions(hardware)
    for dist in wanted:
        print(f"built {os.path.relpath(build(dist, target), ROOT)}", flush=True)
    for dist in wanted:
        if dist.name in read_table(ROOT)["source"].get(hardware, ()):
            source = build_source(dist, target)
            print(f"wrote {os.path.relpath(source, ROOT)}; it was not built here for another machine", flush=True)
    tested = [BUNDLE_TESTED] if hardware == BUNDLE else [dist.name for dist in wanted]
    versions = installed_closure(tested)
    rows = [f"{name}=={version}\n" for name, version in sorted(versions.items())]
    (target / "constraints.txt").write_text("# What these wheels were tested with.\n" + "".join(rows))
    write_checksums(target)
    for dist in wanted if arguments else ():
        if dist.hardware == hardware:
            build_ahead(dist, arguments[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
