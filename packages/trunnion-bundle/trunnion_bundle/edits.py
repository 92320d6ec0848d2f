"""Changes of a committed bundle: another policy, an older policy, one more lowering."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trunnion_bundle import history
from trunnion_bundle.errors import BundleError
from trunnion_bundle.folder import Opened, commit_edit, facts_of, open_for_edit
from trunnion_bundle.lowerings import Lowering
from trunnion_bundle.policy import changed


def set_policy(folder: Path | str, changes: Mapping[str, Mapping[str, Any]], *, note: str = "") -> Opened:
    """Change keys of `batching`: signature -> key -> value. Weights and lowerings are not touched.

    Raises:
        BundleError: an unknown signature or key, or a value outside of its limits.
    """
    opened = open_for_edit(folder)
    bundle, policy = opened.bundle, {}
    for name, values in changes.items():
        if name not in bundle.signatures:
            raise BundleError(f"unknown signature {name!r}; choices: {', '.join(bundle.signatures)}")
        signature = bundle.signatures[name]
        largest = bundle.modules[signature.module].largest_batch
        policy[name] = changed(signature.batching, dict(values), name, largest).to_json()
    return commit_edit(opened, bundle.with_policy(policy, "set"), action="set", note=note)


def rollback(folder: Path | str, prefix: str, *, note: str = "") -> Opened:
    """Restore the policy of the entry of the history whose hash starts with `prefix`.

    Raises:
        BundleError: no such entry, or its policy does not fit the bundle as it is now.
    """
    opened = open_for_edit(folder)
    entry = history.find(opened.entries, prefix)
    bundle = opened.bundle.with_policy(entry.policy, f"entry {entry.hash[:12]}")
    return commit_edit(opened, bundle, action="rollback", note=note or f"to {entry.hash}")


def compile_for(
    folder: Path | str,
    platform: str,
    *,
    note: str = "",
    cache: Path | str | None = None,
    plugin: Path | None = None,
) -> Opened:
    """Add a lowering for `platform`, compiled from the bundle's source or StableHLO; the checkpoint stays as it is.

    Args:
        cache: folder of compiled libraries by content; None: the user's. For AOTInductor.
        plugin: of PJRT, for `pjrt-NAME`; None: the one that this environment has.

    Raises:
        BundleError: the bundle has one already or has no source, this machine cannot compile for the platform, or the
            compiler needs a constant that the checkpoint does not have.
    """
    from trunnion_bundle import pjrt_compile

    opened = open_for_edit(folder)
    if platform in opened.bundle.lowerings:
        raise BundleError(f"{folder} has a lowering for {platform}; export another version to replace it")
    is_pjrt = platform.startswith(pjrt_compile.PREFIX)
    if plugin is not None and not is_pjrt:
        raise BundleError(f"a PJRT plugin is given for {platform!r}; it is for platforms that start with pjrt-")
    with tempfile.TemporaryDirectory(prefix="trunnion-bundle-") as name:
        made = Path(name)
        if is_pjrt:
            lowering: Lowering = pjrt_compile.lower(opened.folder, opened.bundle, platform, made, plugin)
        else:
            lowering = _compile_aoti(opened, platform, made, cache)
        return _add_lowering(opened, platform, lowering, made, note)


def _add_lowering(opened: Opened, platform: str, lowering: Lowering, made: Path, note: str) -> Opened:
    """Commit a lowering whose files lie in `made` by their paths in the bundle."""
    bundle, facts = opened.bundle, facts_of(made)
    extended = replace(bundle, lowerings={**bundle.lowerings, platform: lowering}, files={**bundle.files, **facts})
    additions = {path: made / path for path in facts}
    return commit_edit(opened, extended, action="compile", note=note or platform, additions=additions)


def _compile_aoti(opened: Opened, platform: str, made: Path, cache: Path | str | None) -> Lowering:
    from trunnion_bundle import aoti_compile, torch_source
    from trunnion_bundle.checkpoint import Checkpoint
    from trunnion_bundle.requests import Array
    from trunnion_bundle.weights import key_to_file

    bundle = opened.bundle
    if reason := aoti_compile.refusal(platform):
        raise BundleError(reason)
    programs = torch_source.read_source(opened.folder, bundle)
    assert bundle.source is not None, "read_source has found it"
    known = Checkpoint.of(key_to_file(opened.folder, bundle.weights))

    def key_of(module: str, name: str, array: Array) -> str:
        key = known.find(array)
        if key is None:
            raise BundleError(
                f"{module}: the compiler made a constant {name!r} that the checkpoint does not have; export anew"
            )
        return key

    return torch_source.lower(
        made, programs, bundle.source.tensors, platform,
        cache=Path(cache) if cache else aoti_compile.default_cache(), key_of=key_of,
    )  # fmt: skip
