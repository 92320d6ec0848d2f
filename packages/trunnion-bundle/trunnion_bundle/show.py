"""What the commands show, check, diff and history print."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trunnion_bundle import engines, folder, runner
from trunnion_bundle.check import FAILED, PASSED, check
from trunnion_bundle.contract import Bundle
from trunnion_bundle.errors import BundleError
from trunnion_bundle.lowerings import AotiLowering, Lowering, PjrtLowering
from trunnion_bundle.pjrt_compile import server_defaults
from trunnion_bundle.programs import SERVER, find_program
from trunnion_bundle.requests import read
from trunnion_bundle.steps import MODULE
from trunnion_bundle.tensors import Tensor

_ABSENT = "(absent)"


def print_bundle(path: Path, *, as_json: bool, cold_start: bool, allow_plugins: bool = False) -> None:
    """`show`: signatures, steps, policy and lowerings; with `cold_start` how long each takes to load here."""
    opened = folder.read(path, hashes=False)
    bundle = opened.bundle
    state = {name: reason_here(bundle, name) for name in bundle.lowerings}
    starts = {
        name: measure_start(path, bundle, name, allow_plugins=allow_plugins)
        for name, reason in state.items()
        if cold_start and not reason
    }
    served = measure_served(path, server_defaults(allow_plugins)) if cold_start else {}
    if as_json:
        found = {"bundle": bundle.to_json(), "history": opened.entries[-1].hash, "runs_here": state}
        print(json.dumps({**found, **_starts(starts, served)} if cold_start else found, indent=2, sort_keys=True))
        return
    print("\n".join(_lines(bundle, state, starts)))
    if served:
        print("cold start of the server: " + ", ".join(f"{key} {value}" for key, value in served.items()))
    print(f"history: {len(opened.entries)} changes, last {opened.entries[-1].action} {opened.entries[-1].hash[:12]}")


def reason_here(bundle: Bundle, platform: str) -> str:
    """Why a lowering does not run in Python on this machine, or ""."""
    try:
        engines.choose(bundle, platform)
    except BundleError as error:
        return str(error).partition(f"{platform}: ")[2] or str(error)
    return ""


def measure_served(path: Path, options: Sequence[str]) -> dict[str, Any]:
    """What loading took in the C++ server; {} where this environment has none, `error` if it failed."""
    try:
        program = find_program(SERVER)
    except BundleError:
        return {}
    command = [str(program), str(path), "--load-only", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {
            "error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
        }
    return dict(json.loads(done.stdout)[0])


def measure_start(path: Path, bundle: Bundle, platform: str, *, allow_plugins: bool = False) -> dict[str, float]:
    """Seconds to open the bundle in this process, and until each signature has answered for the first time."""
    start = time.perf_counter()
    opened = runner.load(path, platform=platform, hashes=False, allow_plugins=allow_plugins)
    found = {"load_seconds": time.perf_counter() - start}
    for name, signature in bundle.signatures.items():
        values = read(path / signature.warmup[0], "input", signature.inputs)
        begun = time.perf_counter()
        opened.run(name, values)
        found[f"first_{name}_seconds"] = time.perf_counter() - begun
    return found


def _starts(starts: dict[str, dict[str, float]], served: dict[str, Any]) -> dict[str, Any]:
    return {"cold_start": starts, **({"cold_start_served": served} if served else {})}


def _lines(bundle: Bundle, state: dict[str, str], starts: dict[str, dict[str, float]]) -> Iterator[str]:
    producer = bundle.producer
    yield f"{bundle.name}: {producer.framework} {producer.framework_version}".rstrip()
    if bundle.description:
        yield f"  {bundle.description}"
    for name, signature in bundle.signatures.items():
        default = " (default)" if name == bundle.default_signature else ""
        yield f"signature {name}{default}: {signature.description}".rstrip(": ")
        for kind, tensors in (("in", signature.inputs), ("out", signature.outputs)):
            for tensor in tensors:
                yield f"  {kind:3} {_tensor(tensor)}"
        steps = [
            f"module {signature.module}" if step.op == MODULE else f"{step.op} ({step.scope})"
            for step in signature.steps
        ]
        yield f"  steps: {', '.join(steps)}"
        policy = signature.batching.to_json()
        yield "  batching: " + ", ".join(f"{key} {json.dumps(value)}" for key, value in policy.items())
    weights, every = (
        sum(bundle.files[path].size for path in bundle.weights),
        sum(fact.size for fact in bundle.files.values()),
    )
    yield f"weights: {weights / 1e6:.1f} MB in {len(bundle.weights)} files; all files: {every / 1e6:.1f} MB"
    for name, lowering in bundle.lowerings.items():
        yield f"lowering {name}: {_facts(lowering)}; {state[name] or 'runs here'}"
        if name in starts:
            yield "  cold start: " + ", ".join(f"{key} {value:.3f}" for key, value in starts[name].items())


def _tensor(tensor: Tensor) -> str:
    dims = ", ".join(map(str, tensor.dims))
    bounds = tensor.index_range
    words = [f"{tensor.name}: {tensor.dtype} [{dims}]"]
    if bounds:
        words.append(
            f"from {bounds.min} to below {max(bounds.bounds)}" + (" by column" if len(bounds.bounds) > 1 else "")
        )
    if tensor.tolerance and (tensor.tolerance.absolute or tensor.tolerance.relative):
        words.append(f"tolerance {tensor.tolerance.absolute} + {tensor.tolerance.relative} relative")
    return ", ".join(words)


def _facts(lowering: Lowering) -> str:
    if isinstance(lowering, AotiLowering):
        return (
            f"aoti, torch {lowering.torch_version}, {lowering.device}, {' '.join(lowering.isa) or lowering.device_arch}"
        )
    if isinstance(lowering, PjrtLowering):
        count = sum(len(module.programs) for module in lowering.modules.values())
        place = f"; plugin {lowering.plugin_version}; topology {lowering.topology}" if lowering.topology else ""
        platforms = " ".join(lowering.platforms)
        return f"pjrt, {lowering.program}, jax {lowering.jax_version}, {count} programs for {platforms}{place}"
    return "simulated"


def print_check(path: Path, *, platform: str | None, as_json: bool, quiet: bool, allow_plugins: bool = False) -> int:
    """`check`: a line for each finding; 1 if one failed."""
    found = check(path, platform=platform, allow_plugins=allow_plugins)
    failed = [finding for finding in found if finding.state == FAILED]
    if as_json:
        print(json.dumps([finding.__dict__ for finding in found], indent=2))
        return 1 if failed else 0
    for finding in found:
        if not quiet or finding.state != PASSED:
            reason = f": {finding.reason}" if finding.reason else ""
            print(f"{finding.state:7} {finding.what}, {finding.where}{reason}")
    print(f"{sum(finding.state == PASSED for finding in found)} passed, {len(failed)} failed")
    return 1 if failed else 0


def print_diff(first: Path, second: Path) -> int:
    """`diff`: a line for each key of the contract that differs; 1 if any."""
    contracts = [folder.read(path, hashes=False).bundle.to_json() for path in (first, second)]
    found = list(differences(*contracts))
    for place, old, new in found:
        print(f"{place}: {_word(old)} -> {_word(new)}")
    return 1 if found else 0


def differences(old: Any, new: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Place, old and new value, for each value of JSON that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from differences(old.get(key, _ABSENT), new.get(key, _ABSENT), f"{place}.{key}" if place else key)
    elif old != new:
        yield place, old, new


def _word(value: Any) -> str:
    return value if value == _ABSENT else json.dumps(value, sort_keys=True)


def print_history(path: Path, *, as_json: bool) -> None:
    """`history`: a line for each entry, the oldest first."""
    entries = folder.read(path, hashes=False).entries
    if as_json:
        print(json.dumps([{**entry.__dict__, "hash": entry.hash} for entry in entries], indent=2))
        return
    for entry in entries:
        print(f"{entry.sequence:3} {entry.hash[:12]} {entry.time} {entry.action:8} {entry.note}".rstrip())
