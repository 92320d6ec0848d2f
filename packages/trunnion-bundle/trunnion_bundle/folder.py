"""A bundle as a folder: what may lie in it, how it is read, committed and edited."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trunnion_bundle import canonical, history
from trunnion_bundle.contract import FORMAT_VERSION, Bundle, FileFact, decode
from trunnion_bundle.errors import BundleError
from trunnion_bundle.fields import HASH, Fields, as_path

BUNDLE = "bundle.json"
HISTORY = "history.jsonl"
COMMITTED = "COMMITTED"
UNLISTED = (BUNDLE, HISTORY, COMMITTED)
"""Files that `files` does not list."""
TEMPORARY = tuple(f".{name}.tmp" for name in UNLISTED)
LOWERINGS = "lowerings/"
MOST_COMMITTED_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A committed bundle and its history."""

    folder: Path
    bundle: Bundle
    entries: tuple[history.Entry, ...]


def read(folder: Path | str, *, hashes: bool = True) -> Opened:
    """The bundle in `folder`, which must be committed and complete.

    Args:
        hashes: read every listed file and compare its SHA-256; otherwise compare sizes only.

    Raises:
        BundleError: not committed, changed since, or anything that docs/format.md does not allow.
    """
    folder = Path(folder)
    facts = survey(folder)
    if COMMITTED not in facts:
        raise BundleError(f"{folder}: no {COMMITTED}: not a bundle, or one that is still being written")
    bundle_data, history_data = _read_small(folder, BUNDLE), _read_small(folder, HISTORY)
    committed = _read_committed(_read_small(folder, COMMITTED), f"{folder}/{COMMITTED}")
    for name, data in ((BUNDLE, bundle_data), (HISTORY, history_data)):
        if (found := canonical.sha256(data)) != committed[name]:
            raise BundleError(f"{folder}/{name}: SHA-256 is {found}; {COMMITTED} says {committed[name]}")
    bundle = decode(bundle_data, f"{folder}/{BUNDLE}")
    entries = history.decode(history_data, f"{folder}/{HISTORY}")
    if entries[-1].bundle_sha256 != committed[BUNDLE]:
        raise BundleError(f"{folder}/{HISTORY}: its last entry is of another {BUNDLE}: {entries[-1].bundle_sha256}")
    check_files(folder, bundle.files, facts, hashes=hashes)
    return Opened(folder=folder, bundle=bundle, entries=tuple(entries))


def survey(folder: Path) -> dict[str, int]:
    """Path -> size of every file under `folder`.

    Raises:
        BundleError: a symbolic link, a file of another kind, a name that is not allowed, an empty folder.
    """
    if not folder.is_dir():
        raise BundleError(f"{folder}: no such folder")
    found: dict[str, int] = {}
    _survey(folder, "", found)
    return found


def _survey(folder: Path, prefix: str, found: dict[str, int]) -> None:
    with os.scandir(folder) as entries:
        listed = sorted(entries, key=lambda entry: entry.name)
    if not listed and prefix:
        raise BundleError(f"{folder}: an empty folder; a bundle has only listed files")
    for entry in listed:
        if not prefix and entry.name in TEMPORARY:
            continue
        path = as_path(f"{prefix}{entry.name}", str(folder))
        state = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(state.st_mode):
            _survey(folder / entry.name, f"{path}/", found)
        elif stat.S_ISREG(state.st_mode):
            found[path] = state.st_size
        else:
            kind = "a symbolic link" if stat.S_ISLNK(state.st_mode) else "no regular file"
            raise BundleError(f"{folder / entry.name}: is {kind}; choices: files and folders")


def check_files(folder: Path, files: Mapping[str, FileFact], facts: Mapping[str, int], *, hashes: bool) -> None:
    """Compare listed files with those that a survey found."""
    if unlisted := sorted(set(facts) - set(files) - set(UNLISTED)):
        raise BundleError(f"{folder}: not listed in {BUNDLE}: {', '.join(unlisted)}")
    if reserved := sorted(set(files) & set(UNLISTED)):
        raise BundleError(f"{folder}/{BUNDLE}: 'files' lists {', '.join(reserved)}, which it must not")
    for path, fact in files.items():
        if path not in facts:
            raise BundleError(f"{folder}/{path}: listed in {BUNDLE}, and not there")
        if facts[path] != fact.size:
            raise BundleError(f"{folder}/{path}: {facts[path]} bytes; {BUNDLE} says {fact.size}")
        if hashes and (found := canonical.sha256_file(folder / path)) != fact.sha256:
            raise BundleError(f"{folder}/{path}: SHA-256 is {found}; {BUNDLE} says {fact.sha256}")


def _read_small(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise BundleError(f"{folder}/{name}: {error.strerror}") from None


def _read_committed(data: bytes, where: str) -> dict[str, str]:
    if len(data) > MOST_COMMITTED_BYTES:
        raise BundleError(f"{where} has {len(data)} bytes; limit: {MOST_COMMITTED_BYTES}")
    fields = Fields(canonical.parse(data, where), where)
    version = fields.take("format_version")
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise BundleError(f"{where}: format_version is {version!r}; this reader knows: {FORMAT_VERSION}")
    found = {
        BUNDLE: fields.string("bundle_sha256", pattern=HASH),
        HISTORY: fields.string("history_sha256", pattern=HASH),
    }
    fields.close()
    return found


def facts_of(folder: Path) -> dict[str, FileFact]:
    """What `files` must say of everything that lies in `folder`."""
    return {
        path: FileFact(sha256=canonical.sha256_file(folder / path), size=size)
        for path, size in survey(folder).items()
        if path not in UNLISTED
    }


def commit_new(folder: Path, bundle: Bundle, note: str = "") -> Opened:
    """Commit a folder whose listed files are all written; `bundle.files` lists them.

    Raises:
        BundleError: the folder is committed already, or `bundle` is not valid or not what lies there.
    """
    if (folder / COMMITTED).exists():
        raise BundleError(f"{folder}: is committed; a version is written once")
    for path in bundle.files:
        _flush(folder / path)
    return _commit(folder, bundle, [], action="export", note=note, additions={})


def commit_edit(
    opened: Opened, bundle: Bundle, *, action: str, note: str = "", additions: Mapping[str, Path] | None = None
) -> Opened:
    """Replace the contract of a bundle: other policies, or more lowerings.

    Args:
        additions: path in the bundle -> file elsewhere that is copied there; `bundle.files` lists them.
    """
    return _commit(opened.folder, bundle, list(opened.entries), action=action, note=note, additions=additions or {})


def _commit(
    folder: Path,
    bundle: Bundle,
    entries: list[history.Entry],
    *,
    action: str,
    note: str,
    additions: Mapping[str, Path],
) -> Opened:
    data = bundle.encode()
    checked = decode(data, f"{folder}/{BUNDLE}")
    facts = {**survey(folder), **{path: source.stat().st_size for path, source in additions.items()}}
    check_files(folder, checked.files, facts, hashes=False)
    entries = history.appended(
        entries, action=action, note=note, bundle_sha256=canonical.sha256(data), policy=checked.policy
    )
    chain = history.encode(entries)
    (folder / COMMITTED).unlink(missing_ok=True)
    _flush(folder)
    for path, source in additions.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / path)
        _flush(folder / path)
    _replace(folder, HISTORY, chain)
    _replace(folder, BUNDLE, data)
    _flush(folder)
    hashes = {"bundle_sha256": canonical.sha256(data), "history_sha256": canonical.sha256(chain)}
    _replace(folder, COMMITTED, canonical.text({"format_version": FORMAT_VERSION, **hashes}).encode())
    _flush(folder)
    return Opened(folder=folder, bundle=checked, entries=tuple(entries))


def open_for_edit(folder: Path | str) -> Opened:
    """As `read` by sizes, also of a folder in which an edit was interrupted: its entry of the history is dropped."""
    folder = Path(folder)
    if (folder / COMMITTED).exists():
        return read(folder, hashes=False)
    data = _read_small(folder, BUNDLE)
    bundle = decode(data, f"{folder}/{BUNDLE}")
    entries = history.decode(_read_small(folder, HISTORY), f"{folder}/{HISTORY}")
    while entries and entries[-1].bundle_sha256 != canonical.sha256(data):
        entries.pop()
    if not entries:
        raise BundleError(f"{folder}/{HISTORY}: no entry is of this {BUNDLE}; restore the folder from its origin")
    check_files(folder, bundle.files, _without_leftovers(folder, bundle), hashes=False)
    return Opened(folder=folder, bundle=bundle, entries=tuple(entries))


def _without_leftovers(folder: Path, bundle: Bundle) -> dict[str, int]:
    """What lies in `folder` after lowerings that a `compile` had begun to add are removed."""
    facts = survey(folder)
    for path in sorted(set(facts) - set(bundle.files) - set(UNLISTED)):
        if not path.startswith(LOWERINGS):
            continue
        del facts[path]
        (folder / path).unlink()
        for parent in list(Path(path).parents)[:-1]:
            if not any((folder / parent).iterdir()):
                (folder / parent).rmdir()
    return facts


def _replace(folder: Path, name: str, data: bytes) -> None:
    temporary = folder / f".{name}.tmp"
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(folder / name)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
