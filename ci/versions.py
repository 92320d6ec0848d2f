"""Write `versions.toml` into every pyproject.toml and _versions.py, or say which files differ from it.

Without arguments it writes; with `--check` it exits with 1 and names the files that differ.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TABLE = Path("ci/versions.toml")

_HEADER = re.compile(r"^\[(?P<name>[^\[\]]+)\]\s*$")
_ARRAY = re.compile(r"^(?P<key>[\w.-]+)\s*=\s*\[")
_REQUIREMENT = re.compile(r'"(?P<name>[A-Za-z0-9._-]+)(?P<extras>\[[^\]"]*\])?(?P<spec>[^";]*)(?P<marker>;[^"]*)?"')
_SCALAR = {"version": "version", "requires-python": "python"}


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """One folder with a pyproject.toml; `package` is the folder that is imported."""

    folder: Path
    name: str
    hardware: str | None

    @property
    def pyproject(self) -> Path:
        return self.folder / "pyproject.toml"

    @property
    def versions(self) -> Path:
        return self.folder / self.name.replace("-", "_") / "_versions.py"


def read_table(root: Path) -> Mapping[str, Any]:
    """The contents of `ci/versions.toml`."""
    return tomllib.loads((root / TABLE).read_text())


def distributions(root: Path) -> list[Distribution]:
    """Every distribution of the tree, common ones first."""
    places = [*sorted((root / "packages").glob("*")), root / "models", *sorted((root / "hardware").glob("*"))]
    found = []
    for folder in places:
        if (folder / "pyproject.toml").is_file():
            name = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["name"]
            hardware = folder.name if folder.parent.name == "hardware" else None
            found.append(Distribution(folder=folder, name=name, hardware=hardware))
    return found


def specifiers(table: Mapping[str, Any], siblings: list[str], hardware: str | None) -> dict[str, str]:
    """Distribution name -> version specifier, as one distribution must declare it."""
    specs = {name: f">={version}" for name, version in {**table["floors"], **table["build"]}.items()}
    specs |= dict.fromkeys(siblings, f"=={table['trunnion']['version']}")
    pins = table["hardware"].get(hardware, {}) if hardware else {}
    return specs | {name: f"=={version}" for name, version in pins.items()}


def render_pyproject(text: str, table: Mapping[str, Any], specs: Mapping[str, str]) -> str:
    """The pyproject.toml with the table's versions; nothing else changes.

    Raises:
        ValueError: a dependency that the table does not list.
    """
    lines, section, in_requirements = [], "", False
    for line in text.splitlines():
        if header := _HEADER.match(line):
            section = header["name"]
        if array := _ARRAY.match(line):
            in_requirements = _holds_requirements(section, array["key"])
        head, key, rest = line.partition("[") if array else ("", "", line)
        if in_requirements and not line.lstrip().startswith("#"):
            line = head + key + _REQUIREMENT.sub(lambda match: _with_specifier(match, specs), rest)
        if line.rstrip().endswith("]") or _HEADER.match(line):
            in_requirements = False
        for name, entry in _SCALAR.items():
            if section == "project" and line.startswith(f"{name} ="):
                line = f'{name} = "{table["trunnion"][entry]}"'
        lines.append(line)
    return "\n".join(lines) + "\n"


def _holds_requirements(section: str, key: str) -> bool:
    places = {("project", "dependencies"), ("build-system", "requires")}
    return (section, key) in places or section == "project.optional-dependencies"


def _with_specifier(match: re.Match[str], specs: Mapping[str, str]) -> str:
    name = match["name"]
    if name not in specs:
        raise ValueError(f"{name!r} is not in {TABLE}; add its version there")
    return f'"{name}{match["extras"] or ""}{specs[name]}{match["marker"] or ""}"'


def render_extras(text: str, names: Mapping[str, list[str]]) -> str:
    """Replace the section `project.optional-dependencies`, the last of the file, by the extras `names`."""
    head, mark, _ = text.partition("[project.optional-dependencies]\n")
    extras = [f"{extra} = {json.dumps(parts)}" for extra, parts in names.items()]
    return head + mark + "\n".join(extras) + "\n" if mark else text


def render_versions(text: str, version: str) -> str:
    """The `_versions.py` of the distribution whose pyproject.toml is `text`."""
    requires = tomllib.loads(text)["project"].get("dependencies", [])
    rows = []
    for requirement in requires:
        match = _REQUIREMENT.fullmatch(f'"{requirement}"')
        assert match is not None, f"{requirement} was rendered by this module"
        rows.append(f'    "{match["name"]}": "{match["spec"]}",\n')
    return (
        '"""Versions of this distribution, written by `nox -s versions` from ci/versions.toml."""\n\n'
        "from __future__ import annotations\n\n"
        f'VERSION = "{version}"\n'
        '"""Version of this distribution."""\n\n'
        "REQUIRES: dict[str, str] = {\n" + "".join(rows) + "}\n"
        '"""Distribution name -> version specifier that it must meet."""\n'
    )


def expected_files(root: Path) -> dict[Path, str]:
    """Every file that the table determines, with the text it must have."""
    table, found = read_table(root), distributions(root)
    siblings = [dist.name for dist in found]
    common = [name for name in siblings if name in ("trunnion-host", "trunnion-models")]
    extras = {dist.hardware: [dist.name, *common] for dist in found if dist.hardware} | table["extras"]
    files = {}
    for dist in found:
        text = dist.pyproject.read_text()
        if dist.name == "trunnion":
            text = render_extras(text, extras)
        try:
            text = render_pyproject(text, table, specifiers(table, siblings, dist.hardware))
        except ValueError as error:
            raise ValueError(f"{dist.pyproject.relative_to(root)}: {error}") from None
        files[dist.pyproject] = text
        files[dist.versions] = render_versions(text, table["trunnion"]["version"])
    return files


def differing_files(root: Path) -> list[Path]:
    """Files that do not read as the table wants them."""
    return [path for path, text in expected_files(root).items() if not path.is_file() or path.read_text() != text]


def main(arguments: list[str]) -> int:
    differing = differing_files(ROOT)
    if "--check" in arguments:
        for path in differing:
            print(f"{path.relative_to(ROOT)} differs from {TABLE}; run `nox -s versions`")
        return 1 if differing else 0
    texts = expected_files(ROOT)
    for path in differing:
        path.write_text(texts[path])
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
