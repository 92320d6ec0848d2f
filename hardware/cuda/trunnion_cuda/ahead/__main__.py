"""`python -m trunnion_cuda.ahead --out FOLDER [--quick] [--arch ARCH] [--case NAME] [--launches FILE]`: cubins.

Compiles every launch of `trunnion_cuda/compile/cases.py` twice: as it is (sizes and strides that 16 divides are known
to be), and for any sizes and strides. `--launches` adds those of a file that `Cubins.write_missing` wrote. It needs no
GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from trunnion_cuda.ahead.cubins import INDEX, sources_digest
from trunnion_cuda.ahead.signature import DIVISIBLE, ONE, Signature, signature_of
from trunnion_cuda.kernels.launch import EVERY_ARCHITECTURE

QUICK_ARCHITECTURES = ("sm_80", "sm_90a")


@dataclass(frozen=True)
class Job:
    """One kernel to compile."""

    signature: Signature
    architecture: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0, and the folder holds an index and the cubins that it names."""
    parser = argparse.ArgumentParser(prog="python -m trunnion_cuda.ahead", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the cubins; what it holds is removed")
    parser.add_argument("--quick", action="store_true", help="some cases, on two architectures")
    parser.add_argument("--arch", action="append", choices=EVERY_ARCHITECTURE, help="only this; may be repeated")
    parser.add_argument("--case", action="append", help="only this case; may be repeated")
    parser.add_argument("--launches", type=Path, help="signatures of further launches, one JSON list")
    options = parser.parse_args(arguments)
    from trunnion_cuda.user_cache import cache_folder

    # Before Triton looks for its own folder.
    os.environ.setdefault("TRITON_CACHE_DIR", str(cache_folder() / "triton"))
    jobs = _jobs(options)
    if not jobs:
        parser.error("nothing to compile")
    print(f"{len(jobs)} kernels to compile", flush=True)
    size = build(jobs, options.out)
    print(f"wrote {len(jobs)} kernels, {size / 2**20:.1f} MiB, to {options.out}")
    return 0


def _jobs(options: argparse.Namespace) -> list[Job]:
    from trunnion_cuda.compile.cases import cases
    from trunnion_cuda.compile.report import recorded

    known = {case.name: case for case in cases()}
    if unknown := set(options.case or ()) - set(known):
        raise SystemExit(f"unknown case {sorted(unknown)[0]!r}; choices: {', '.join(known)}")
    architectures = options.arch or (QUICK_ARCHITECTURES if options.quick else EVERY_ARCHITECTURE)
    chosen = [known[name] for name in options.case or known if options.case or known[name].quick or not options.quick]
    jobs: dict[Job, None] = {}
    for case in chosen:
        for launch in recorded(case, every_configuration=not options.quick):
            signature = signature_of(launch.kernel, launch.args, launch.constants)
            jobs |= dict.fromkeys(_variants(signature, [name for name in architectures if name in case.architectures]))
    for row in json.loads(options.launches.read_text()) if options.launches else ():
        jobs |= dict.fromkeys(_variants(Signature.from_json(row["signature"]), [row["architecture"]]))
    return list(jobs)


def _variants(signature: Signature, architectures: Sequence[str]) -> Iterator[Job]:
    for architecture in architectures:
        yield Job(signature, architecture)
        yield Job(signature.general(), architecture)


def build(jobs: Sequence[Job], folder: Path) -> int:
    """Compile into `folder`, one file per distinct cubin -> bytes of all files."""
    from triton.runtime import driver

    from trunnion_cuda.compile.absent_device import AbsentDevice

    device = AbsentDevice()
    driver.set_active(device)
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.cubin"), *folder.glob(INDEX)):
        old.unlink()
    # A terminal gets a bar, a log a line now and then.
    lines = None if sys.stderr.isatty() else len(jobs) / 20
    entries = []
    for job in tqdm(jobs, unit="kernel", mininterval=1, miniters=lines, desc="compiling"):
        entries.append(_entry(job, folder, device))
    index = {"sources": sources_digest(), "entries": entries}
    (folder / INDEX).write_text(json.dumps(index, separators=(",", ":")))
    return sum(path.stat().st_size for path in folder.iterdir())


def _entry(job: Job, folder: Path, device: Any) -> dict[str, Any]:
    kernel = compiled(job, device)
    image, metadata = kernel.asm["cubin"], kernel.metadata
    # What the launcher cannot give; no kernel of ours asks for it.
    assert metadata.num_ctas == 1 and not metadata.launch_cooperative_grid and not metadata.launch_pdl, job
    assert not metadata.global_scratch_size and not metadata.profile_scratch_size, job
    file = f"{hashlib.sha256(image).hexdigest()[:24]}.cubin"
    (folder / file).write_bytes(image)
    return {
        "signature": job.signature.as_json(),
        "architecture": job.architecture,
        "file": file,
        "name": metadata.name,
        "num_warps": metadata.num_warps,
        "shared": metadata.shared,
    }


def compiled(job: Job, device: Any) -> Any:
    """Triton's kernel for a signature, which says what is known instead of arguments."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from trunnion_cuda.compile.absent_device import CAPABILITIES

    module, _, name = job.signature.kernel.partition(":")
    function = getattr(importlib.import_module(module), name)
    signature = dict.fromkeys(function.arg_names, "constexpr")
    constants: dict[str, Any] = dict(job.signature.constants)
    attributes = {}
    facts = zip(function.arg_names, job.signature.types, job.signature.known, strict=False)
    for index, (argument, type, known) in enumerate(facts):
        if known == ONE:
            constants[argument] = 1
            continue
        signature[argument] = type
        if known == DIVISIBLE:
            attributes[(index,)] = [["tt.divisibility", 16]]
    device.capability = CAPABILITIES[job.architecture]
    source = ASTSource(function, signature, constants, attributes)
    return triton.compile(source, target=GPUTarget("cuda", device.capability, 32), options=dict(job.signature.options))


if __name__ == "__main__":
    sys.exit(main())
