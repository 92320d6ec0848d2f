"""Build the wheels of one hardware with the constraints they were tested under and their checksums: dist/<hardware>/.

Runs in the hardware's environment (`nox -s wheels-<hardware>`), whose installed versions become constraints.txt.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from versions import Distribution, distributions

ROOT = Path(__file__).resolve().parent.parent


def build(dist: Distribution, target: Path) -> Path:
    """Build one wheel into `target`; a Linux binary gets the oldest manylinux tag that its symbols allow."""
    with TemporaryDirectory() as scratch:
        pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", scratch)
        subprocess.run((*pip, str(dist.folder)), check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        if "-linux_" in wheel.name:
            subprocess.run((sys.executable, "-m", "auditwheel", "repair", "-w", str(target), str(wheel)), check=True)
        else:
            shutil.move(wheel, target)
    (built,) = target.glob(f"{dist.name.replace('-', '_')}-*.whl")
    return built


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


def main(hardware: str) -> int:
    target = ROOT / "dist" / hardware
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    wanted = [dist for dist in distributions(ROOT) if dist.hardware in (None, hardware)]
    for dist in wanted:
        print(f"built {os.path.relpath(build(dist, target), ROOT)}", flush=True)
    versions = installed_closure(dist.name for dist in wanted)
    rows = [f"{name}=={version}\n" for name, version in sorted(versions.items())]
    (target / "constraints.txt").write_text("# What these wheels were tested with.\n" + "".join(rows))
    write_checksums(target)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
