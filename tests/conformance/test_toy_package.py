"""A package that only inherits passes conformance, from a folder that is not installed; a broken one does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
INHERITED = '''
"""A package that replaces nothing."""
from trunnion.reference import ReferenceHardware

class ToyHardware(ReferenceHardware):
    name = "toy"

HARDWARE = ToyHardware
'''
BROKEN = '''
"""A package whose attention forgets the window."""
import dataclasses
from trunnion.interfaces.attention import AttentionSpec
from trunnion.reference import ReferenceHardware
from trunnion.reference.attention import ReferenceAttentionGroup

class Windowless(ReferenceAttentionGroup):
    def __init__(self, spec, num_layers, device):
        super().__init__(spec, num_layers, device)
        self.spec = dataclasses.replace(spec, window=None)

class ToyHardware(ReferenceHardware):
    name = "toy"

    def group_class(self, spec):
        return (Windowless, None) if isinstance(spec, AttentionSpec) else super().group_class(spec)

HARDWARE = ToyHardware
'''


def _conformance(tmp_path: Path, source: str, *selection: str) -> subprocess.CompletedProcess[str]:
    package = tmp_path / "trunnion_toy"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "hardware.py").write_text(source)
    modules = selection or tuple(str(file) for file in sorted(HERE.glob("test_*.py")) if file != Path(__file__))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *modules, "--hardware", str(tmp_path)]
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    return subprocess.run(command, capture_output=True, text=True, cwd=HERE, env=environment, timeout=300)


def test_an_empty_package_passes(tmp_path: Path) -> None:
    """Everything is inherited."""
    result = _conformance(tmp_path, INHERITED)
    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed" in result.stdout


def test_a_broken_package_fails(tmp_path: Path) -> None:
    """A window that is ignored turns conformance red, and only where windows are."""
    result = _conformance(tmp_path, BROKEN, str(HERE / "test_groups.py"))
    assert result.returncode == 1, result.stdout + result.stderr
    failures = [line for line in result.stdout.splitlines() if line.startswith("FAILED")]
    assert failures
    assert all("window" in line for line in failures), result.stdout
