"""The history of a bundle: a chain of hashes, one line for every change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from trunnion_bundle import canonical
from trunnion_bundle.errors import BundleError
from trunnion_bundle.fields import HASH, Fields, as_object

FIRST = "0" * 64
"""What the first entry names as its previous one."""
ACTIONS = ("export", "compile", "set", "rollback")
LONGEST_NOTE = 1000
TIME = "%Y-%m-%dT%H:%M:%SZ"
SHORTEST_PREFIX = 6


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line; its `hash` names it."""

    sequence: int
    previous: str
    time: str
    action: str
    note: str
    bundle_sha256: str
    policy: Mapping[str, Any]

    @property
    def line(self) -> str:
        return canonical.line(dict(self.__dict__))

    @property
    def hash(self) -> str:
        return canonical.sha256(self.line.encode())


def decode(data: bytes, where: str = "history.jsonl") -> list[Entry]:
    """The entries, in order.

    Raises:
        BundleError: a line that is not canonical, is out of order, or does not name the hash of the one before it.
    """
    if not data.endswith(b"\n"):
        raise BundleError(f"{where}: the last line has no end; it was cut")
    entries: list[Entry] = []
    for number, line in enumerate(data[:-1].split(b"\n"), 1):
        entry = _read_entry(canonical.parse(line, f"{where}:{number}", canonical.line), f"{where}:{number}")
        expected = entries[-1].hash if entries else FIRST
        if entry.sequence != number or entry.previous != expected:
            raise BundleError(
                f"{where}:{number}: entry {entry.sequence} after {entry.previous}; it must be entry {number} after "
                f"{expected}: the history was changed"
            )
        entries.append(entry)
    return entries


def _read_entry(value: Any, where: str) -> Entry:
    fields = Fields(value, where)
    found = Entry(
        sequence=fields.integer("sequence", 1),
        previous=fields.string("previous", pattern=HASH),
        time=fields.string("time"),
        action=fields.choice("action", ACTIONS),
        note=fields.string("note", longest=LONGEST_NOTE),
        bundle_sha256=fields.string("bundle_sha256", pattern=HASH),
        policy=as_object(fields.take("policy"), fields.place("policy")),
    )
    fields.close()
    try:
        datetime.strptime(found.time, TIME)
    except ValueError:
        raise BundleError(f"{where}.time is {found.time!r}; it is written like 2026-01-31T23:59:59Z") from None
    return found


def encode(entries: Sequence[Entry]) -> bytes:
    """The bytes of history.jsonl."""
    return "".join(f"{entry.line}\n" for entry in entries).encode()


def appended(
    entries: Sequence[Entry], *, action: str, note: str, bundle_sha256: str, policy: Mapping[str, Any]
) -> list[Entry]:
    """`entries` and one more, of now."""
    if len(note) > LONGEST_NOTE:
        raise BundleError(f"the note has {len(note)} characters; limit: {LONGEST_NOTE}")
    entry = Entry(
        sequence=len(entries) + 1,
        previous=entries[-1].hash if entries else FIRST,
        time=datetime.now(UTC).strftime(TIME),
        action=action,
        note=note,
        bundle_sha256=bundle_sha256,
        policy=policy,
    )
    return [*entries, entry]


def find(entries: Sequence[Entry], prefix: str) -> Entry:
    """The entry whose hash starts with `prefix`.

    Raises:
        BundleError: no entry, or more than one.
    """
    found = [entry for entry in entries if len(prefix) >= SHORTEST_PREFIX and entry.hash.startswith(prefix)]
    if len(found) != 1:
        choices = ", ".join(entry.hash[:12] for entry in entries)
        raise BundleError(
            f"{prefix!r} names {len(found)} entries (at least {SHORTEST_PREFIX} digits); choices: {choices}"
        )
    return found[0]
