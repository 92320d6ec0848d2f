"""Reads the keys of one JSON object strictly: every key is asked for, and what was not is an error."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from trunnion_bundle.errors import BundleError

T = TypeVar("T")

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
"""Of a signature, module, tensor, value or symbol."""
BUNDLE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
PLATFORM = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
HASH = re.compile(r"[0-9a-f]{64}")
LONGEST_PATH = 255
LARGEST = 2**31 - 1
"""The largest dim, number of rows and version."""
INT64 = (-(2**63), 2**63 - 1)


class Fields:
    """One object of a bundle's JSON at the place `where`."""

    def __init__(self, value: Any, where: str) -> None:
        self.where = where
        self._rest = dict(as_object(value, where))
        self._keys = tuple(self._rest)
        self._asked: list[str] = []

    def place(self, key: str) -> str:
        return f"{self.where}.{key}"

    def take(self, key: str) -> Any:
        """The value of `key`, unchecked."""
        self._asked.append(key)
        if key not in self._rest:
            raise BundleError(f"{self.where}: the key {key!r} is missing; it has: {', '.join(self._keys) or 'none'}")
        return self._rest.pop(key)

    def string(self, key: str, *, pattern: re.Pattern[str] | None = None, longest: int = LONGEST_PATH) -> str:
        return as_string(self.take(key), self.place(key), pattern=pattern, longest=longest)

    def choice(self, key: str, choices: Iterable[str]) -> str:
        return as_choice(self.take(key), self.place(key), choices)

    def integer(self, key: str, low: int = INT64[0], high: int = INT64[1]) -> int:
        return as_integer(self.take(key), self.place(key), low, high)

    def number(self, key: str, low: float = -math.inf, *, above: bool = False) -> float:
        return as_number(self.take(key), self.place(key), low, above=above)

    def boolean(self, key: str) -> bool:
        value = self.take(key)
        if not isinstance(value, bool):
            raise BundleError(f"{self.place(key)} is {shown(value)}; choices: true, false")
        return value

    def optional(self, key: str, read: Callable[[Any, str], T]) -> T | None:
        """null, or what `read(value, place)` makes of the value."""
        value = self.take(key)
        return None if value is None else read(value, self.place(key))

    def array(self, key: str, read: Callable[[Any, str], T], low: int = 0, high: int = LARGEST) -> tuple[T, ...]:
        """Each element by `read(value, place)`."""
        return as_array(self.take(key), self.place(key), read, low, high)

    def table(
        self, key: str, read: Callable[[Any, str], T], pattern: re.Pattern[str], low: int = 0, high: int = LARGEST
    ) -> dict[str, T]:
        """An object whose keys match `pattern`, each value by `read(value, place)`."""
        value, where = as_object(self.take(key), self.place(key)), self.place(key)
        _check_count(len(value), where, low, high)
        return {as_string(name, f"a key of {where}", pattern=pattern): read(value[name], f"{where}.{name}")
                for name in sorted(value)}  # fmt: skip

    def close(self) -> None:
        """Raises BundleError if a key was not asked for."""
        if self._rest:
            names = ", ".join(map(repr, sorted(self._rest)))
            raise BundleError(f"{self.where}: unknown {names}; choices: {', '.join(sorted(self._asked))}")


def shown(value: Any) -> str:
    """`value` for an error message, cut if it is long."""
    words = repr(value)
    return words if len(words) <= 80 else words[:77] + "..."


def as_object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BundleError(f"{where} is {shown(value)}; it must be an object")
    return value


def as_array(value: Any, where: str, read: Callable[[Any, str], T], low: int = 0, high: int = LARGEST) -> tuple[T, ...]:
    if not isinstance(value, list):
        raise BundleError(f"{where} is {shown(value)}; it must be an array")
    _check_count(len(value), where, low, high)
    return tuple(read(element, f"{where}[{i}]") for i, element in enumerate(value))


def _check_count(count: int, where: str, low: int, high: int) -> None:
    if not low <= count <= high:
        raise BundleError(f"{where} has {count} elements; limits: {low} to {high}")


def as_string(value: Any, where: str, *, pattern: re.Pattern[str] | None = None, longest: int = LONGEST_PATH) -> str:
    if not isinstance(value, str):
        raise BundleError(f"{where} is {shown(value)}; it must be a string")
    if len(value) > longest:
        raise BundleError(f"{where} has {len(value)} characters; limit: {longest}")
    if pattern is not None and not pattern.fullmatch(value):
        raise BundleError(f"{where} is {shown(value)}; it must match {pattern.pattern}")
    return value


def as_name(value: Any, where: str) -> str:
    return as_string(value, where, pattern=NAME)


def as_path(value: Any, where: str) -> str:
    """A relative path without `..` and hidden files."""
    path = as_string(value, where)
    for segment in path.split("/"):
        if not SEGMENT.fullmatch(segment):
            raise BundleError(
                f"{where} is {shown(path)}: its segment {segment!r} must match {SEGMENT.pattern}: no '..', no absolute "
                "path, no hidden file"
            )
    return path


def as_choice(value: Any, where: str, choices: Iterable[str]) -> str:
    known = tuple(choices)
    if not isinstance(value, str) or value not in known:
        raise BundleError(f"{where} is {shown(value)}; choices: {', '.join(known)}")
    return value


def as_integer(value: Any, where: str, low: int = INT64[0], high: int = INT64[1]) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BundleError(f"{where} is {shown(value)}; it must be an integer from {low} to {high}")
    return value


def as_number(value: Any, where: str, low: float = -math.inf, *, above: bool = False) -> float:
    """A finite number, at least `low` (more than it with `above`)."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < low or (above and value == low):
        bound = "" if low == -math.inf else f" {'above' if above else 'of at least'} {low}"
        raise BundleError(f"{where} is {shown(value)}; it must be a finite number{bound}")
    return value


def ascending(values: tuple[int, ...], where: str) -> tuple[int, ...]:
    """`values` if each is more than the one before."""
    if list(values) != sorted(set(values)):
        raise BundleError(f"{where} is {list(values)}; it must ascend, with no value twice")
    return values
