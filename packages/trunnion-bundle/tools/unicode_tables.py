"""Writes src/steps/unicode_tables.inc, what word_piece needs of Unicode, from Python's own tables.

python packages/trunnion-bundle/tools/unicode_tables.py
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

TARGET = Path(__file__).resolve().parents[1] / "src" / "steps" / "unicode_tables.inc"
SURROGATES = range(0xD800, 0xE000)
HANGUL = range(0xAC00, 0xAC00 + 11172)
"""Syllables, whose decomposition is computed."""


def ranges(has: Callable[[str], bool]) -> Iterator[tuple[int, int]]:
    """First and last of each run of characters that `has` is true of."""
    first = -1
    for code in range(sys.maxunicode + 2):
        inside = code <= sys.maxunicode and code not in SURROGATES and has(chr(code))
        if inside and first < 0:
            first = code
        if not inside and first >= 0:
            yield first, code - 1
            first = -1


def is_cased(character: str) -> bool:
    """Whether a capital sigma after it is a final one."""
    return (character + "Σ").lower().endswith("ς")


def is_ignored(character: str) -> bool:
    """Whether a capital sigma looks past it for what it follows."""
    return not is_cased(character) and ("A" + character + "Σ").lower().endswith("ς")


def plain(character: str) -> str:
    """The character decomposed, without marks, in lower case."""
    parts = unicodedata.normalize("NFD", character)
    return "".join(part for part in parts if unicodedata.category(part) != "Mn").lower()


def table(name: str, rows: Iterator[tuple[int, ...]], kind: str) -> str:
    words = ["{" + ",".join(f"0x{code:X}" for code in row) + "}" for row in rows]
    lines, line = [], ""
    for word in words:
        if len(line) + len(word) > 116:
            lines.append(line)
            line = ""
        line += word + ","
    return f"constexpr {kind} {name}[] = {{\n" + "\n".join("    " + text for text in [*lines, line]) + "\n};\n"


def plain_rows() -> Iterator[tuple[int, ...]]:
    for code in range(sys.maxunicode + 1):
        if code in SURROGATES or code in HANGUL or unicodedata.category(chr(code)) == "Mn":
            continue
        found = plain(chr(code))
        if found != chr(code):
            assert len(found) <= 3, hex(code)
            yield (code, *(ord(part) for part in found), *(0,) * (3 - len(found)))


def main() -> None:
    def category(prefix: str) -> Callable[[str], bool]:
        return lambda character: unicodedata.category(character).startswith(prefix)

    parts = [
        f"// Written by tools/unicode_tables.py of Unicode {unicodedata.unidata_version}; not to be edited.\n",
        table("kSpaces", ranges(category("Zs")), "CodeRange"),
        table("kControls", ranges(category("C")), "CodeRange"),
        table("kMarks", ranges(category("Mn")), "CodeRange"),
        table("kPunctuation", ranges(category("P")), "CodeRange"),
        table("kCased", ranges(is_cased), "CodeRange"),
        table("kIgnored", ranges(is_ignored), "CodeRange"),
        table("kPlain", plain_rows(), "PlainRow"),
    ]
    TARGET.write_text("\n".join(parts))


if __name__ == "__main__":
    main()
