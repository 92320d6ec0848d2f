"""Refuse built files, text that names a machine's path or a package registry, and dead links; warn of long files."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LONG = 500
LINK = re.compile(r"\]\((?P<target>[^)#:\s]+)(#[^)]*)?\)")
SOURCES = {".py", ".cc", ".cpp", ".c", ".h", ".hpp"}
PICTURES = {".gif", ".jpg", ".png"}

FORBIDDEN = {
    "a path of a machine": re.compile(r"(?<![\w./$}>])/(tmp|work|root|farm|home|opt|Users)/[\w.]"),
    "a package registry": re.compile(
        r"\b(pypi\.org|files\.pythonhosted\.org|download\.pytorch\.org|data\.pyg\.org|anaconda\.org)\b"
    ),
    "a file outside the repository": re.compile(r"\.\./shared\b"),
}


def tracked_files(root: Path) -> list[Path]:
    """Files that git tracks or would add."""
    command = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    return [root / name for name in listed.splitlines() if (root / name).is_file()]


def find_forbidden(text: str) -> Iterator[tuple[int, str, str]]:
    """Line number, what is wrong, and the words, for each forbidden place in `text`."""
    for number, line in enumerate(text.splitlines(), 1):
        for what, pattern in FORBIDDEN.items():
            if match := pattern.search(line):
                yield number, what, match.group()


def find_dead_links(path: Path, text: str) -> Iterator[tuple[int, str, str]]:
    """As `find_forbidden`, for links of a Markdown file to files that do not exist."""
    for number, line in enumerate(text.splitlines(), 1):
        for match in LINK.finditer(line):
            if not (path.parent / match["target"]).exists():
                yield number, "a file that does not exist", match["target"]


def main() -> int:
    failed = False
    for path in tracked_files(ROOT):
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            if path.suffix not in PICTURES:
                choices = ", ".join(sorted(PICTURES))
                print(f"{path.relative_to(ROOT)}: is no text, which only pictures may be ({choices})")
                failed = True
            continue
        name = path.relative_to(ROOT)
        dead = find_dead_links(path, text) if path.suffix == ".md" else ()
        for number, what, words in (*find_forbidden(text), *dead):
            print(f"{name}:{number}: names {what}: {words}")
            failed = True
        if path.suffix in SOURCES and (count := text.count("\n")) > LONG:
            print(f"warning: {name} has {count} lines; is it one responsibility?")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
