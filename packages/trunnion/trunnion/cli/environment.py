"""`trunnion env`: what is installed, what fits together, and what does not."""

from __future__ import annotations

import importlib
import json
import platform
import re
import sys
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from trunnion.interfaces.hardware import EnvironmentProblem
from trunnion.reference.host_threads import default_threads
from trunnion.registry import hardware, hardware_names

_CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "bf16", "sve")


def environment(*, as_json: bool) -> int:
    """Print the environment and its problems; 1 if one of them is fatal."""
    host, problems = _host()
    report: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "distributions": _distributions(),
        "hardware": {},
        "facts": {},
        "host": host,
        "cpu_flags": _cpu_flags(Path("/proc/cpuinfo")),
        "threads": default_threads(),
    }
    problems += unmet_requirements(report["distributions"])
    for name in hardware_names():
        found = _hardware_problems(name)
        report["hardware"][name] = "not usable" if any(problem.fatal for problem in found) else "ok"
        problems += found
        report["facts"] |= {f"{name} {what}": fact for what, fact in _hardware_facts(name).items()}
    if not report["hardware"]:
        problems.append(EnvironmentProblem(what="hardware package", found="none", needed="one", fatal=True))
    report["problems"] = [
        {"what": problem.what, "found": problem.found, "needed": problem.needed, "fatal": problem.fatal}
        for problem in problems
    ]
    print(json.dumps(report) if as_json else _as_text(report))
    return int(any(problem.fatal for problem in problems))


def unmet_requirements(distributions: Mapping[str, str]) -> list[EnvironmentProblem]:
    """What the distributions ask of each other and of the rest, and do not get (`_versions.REQUIRES` of each)."""
    problems = []
    for name in distributions:
        module = f"{name.replace('-', '_')}._versions"
        if find_spec(module.partition(".")[0]) is None or find_spec(module) is None:
            continue
        requires: Mapping[str, str] = getattr(importlib.import_module(module), "REQUIRES", {})
        for required, specifier in requires.items():
            found = _version(required)
            if found is None or not meets(found, specifier):
                problems.append(
                    EnvironmentProblem(
                        what=f"{required}, for {name}", found=found or "not installed", needed=specifier, fatal=True
                    )
                )
    return problems


def meets(version: str, specifier: str) -> bool:
    """Whether a version satisfies `==x` or `>=x`; a local part such as `+cpu` does not count.

    Raises:
        ValueError: another kind of specifier.
    """
    match = re.fullmatch(r"(==|>=)\s*([\w.]+)", specifier)
    if match is None:
        raise ValueError(f"version specifier {specifier!r} is neither ==x nor >=x")
    operator, wanted = match.groups()
    if operator == "==":
        return _release(version) == _release(wanted)
    return _release(version) >= _release(wanted)


def _release(version: str) -> tuple[int, ...]:
    numbers = [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _distributions() -> dict[str, str]:
    names = {dist.metadata["Name"]: dist.version for dist in metadata.distributions()}
    return {name: version for name, version in sorted(names.items()) if name and name.startswith("trunnion")}


def _host() -> tuple[dict[str, Any], list[EnvironmentProblem]]:
    """The C++ library: where it lies and its ABI version."""
    from trunnion.cli.serving import REMEDY, library_facts

    try:
        return library_facts(), []
    except Exception as error:  # a broken library must not hide the rest of the report
        problem = EnvironmentProblem(what="C++ host", found=str(error), needed=REMEDY, fatal=True)
        return {"library": None}, [problem]


def _hardware_problems(name: str) -> list[EnvironmentProblem]:
    try:
        return list(hardware(name).check_environment())
    except Exception as error:  # a broken package must not hide the rest of the report
        found = f"{type(error).__name__}: {error}"
        return [EnvironmentProblem(what=f"hardware {name}", found=found, needed="an importable package", fatal=True)]


def _hardware_facts(name: str) -> Mapping[str, str]:
    try:
        return hardware(name).environment_facts()
    except Exception:  # said by the package's problems already
        return {}


def _cpu_flags(cpuinfo: Path) -> list[str]:
    if not cpuinfo.is_file():
        return []
    for line in cpuinfo.read_text(errors="replace").splitlines():
        if line.lower().startswith(("flags", "features")):
            present = set(line.partition(":")[2].split())
            return [flag for flag in _CPU_FLAGS if flag in present]
    return []


def _as_text(report: Mapping[str, Any]) -> str:
    lines = [
        f"python      {report['python']} ({sys.executable})",
        f"platform    {report['platform']}",
        f"torch       {report['torch']}",
        *(f"{name:<16}{version}" for name, version in report["distributions"].items()),
        *(f"hardware    {name}: {state}" for name, state in report["hardware"].items()),
        *(f"{what:<15} {fact}" for what, fact in report["facts"].items()),
        "C++ host    " + (", ".join(f"{key} {value}" for key, value in report["host"].items())),
        f"CPU flags   {' '.join(report['cpu_flags']) or 'none of those that matter'}",
        f"threads     {report['threads']}",
    ]
    for problem in report["problems"]:
        kind = "FATAL" if problem["fatal"] else "warning"
        lines.append(f"{kind}: {problem['what']}: found {problem['found']}; needed: {problem['needed']}")
    return "\n".join([*lines, "" if report["problems"] else "no problems"]).rstrip()
