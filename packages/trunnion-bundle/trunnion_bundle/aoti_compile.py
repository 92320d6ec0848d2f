"""Compiles exported programs by AOTInductor, weights outside; what was compiled before is taken from a cache."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from trunnion_bundle import canonical
from trunnion_bundle.arrays import as_numpy
from trunnion_bundle.checkpoint import content_of
from trunnion_bundle.errors import BundleError
from trunnion_bundle.host import machine, processor_flags
from trunnion_bundle.requests import Array

_V2 = ("cx16", "lahf_lm", "pni", "popcnt", "sse4_1", "sse4_2", "ssse3")
_V3 = (*_V2, "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_FLAGS = {
    "-mavx512vnni": "avx512_vnni", "-mavx512bf16": "avx512_bf16", "-mamx-tile": "amx_tile", "-mamx-bf16": "amx_bf16",
    "-mamx-int8": "amx_int8", "-mamx-fp16": "amx_fp16",
}  # fmt: skip
"""What the compiler may be told beyond `march` -> flag of the processor."""


@dataclass(frozen=True, kw_only=True)
class CpuTarget:
    """One platform of a CPU: what the compiler is told, and the processor's flags that the code then needs."""

    machine: str
    march: str
    simd_bits: int
    isa: tuple[str, ...]


CPU_TARGETS: Mapping[str, CpuTarget] = {
    "cpu-x86_64-avx512": CpuTarget(machine="x86_64", march="x86-64-v4", simd_bits=512, isa=_V4),
    "cpu-x86_64-avx2": CpuTarget(machine="x86_64", march="x86-64-v3", simd_bits=256, isa=_V3),
    "cpu-x86_64-sse2": CpuTarget(machine="x86_64", march="x86-64", simd_bits=1, isa=("sse2",)),
    "cpu-aarch64-neon": CpuTarget(machine="aarch64", march="armv8-a", simd_bits=128, isa=("asimd",)),
}


def native_platform() -> str:
    """The best platform of this machine's CPU.

    Raises:
        BundleError: none fits.
    """
    for name in CPU_TARGETS:
        if not refusal(name):
            return name
    raise BundleError(f"no platform fits a {machine()}; choices: {', '.join(CPU_TARGETS)}")


def refusal(platform: str) -> str:
    """Why this machine cannot compile for `platform`, or ""."""
    if platform not in CPU_TARGETS:
        return f"unknown platform {platform!r}; choices: {', '.join(CPU_TARGETS)}"
    target = CPU_TARGETS[platform]
    if target.machine != machine():
        return f"{platform} is compiled on a {target.machine}; this machine is {machine()}"
    missing = sorted(set(target.isa) - processor_flags())
    # AOTInductor asks the processor that it runs on which instructions there are.
    return f"{platform} is compiled on a processor with {', '.join(missing)}, which this has not" if missing else ""


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A library, and its constants: name in the library -> name in the program."""

    library: Path
    isa: tuple[str, ...]
    constants: Mapping[str, str]
    lifted: Mapping[str, Array]
    """Constants that are no tensors of the program, by name."""


def default_cache() -> Path:
    """The user's folder for what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trunnion-bundle"


def compile_program(
    program: ExportedProgram, tensors: Mapping[str, torch.Tensor], platform: str, cache: Path
) -> Compiled:
    """Compile for one platform of a CPU.

    Args:
        program: with its weights.
        tensors: its parameters and buffers by name.
        cache: folder of libraries by content.

    Raises:
        BundleError: this machine cannot compile for `platform`.
    """
    if reason := refusal(platform):
        raise BundleError(reason)
    folder = cache / "aoti" / _key(program, tensors, platform)
    if not (folder / "facts.json").is_file():
        _compile_into(folder, program, tensors, CPU_TARGETS[platform])
    facts = json.loads((folder / "facts.json").read_text())
    from safetensors.numpy import load_file

    return Compiled(
        library=folder / "model.so",
        isa=tuple(facts["isa"]),
        constants=facts["constants"],
        lifted=load_file(folder / "lifted.safetensors"),
    )


def _key(program: ExportedProgram, tensors: Mapping[str, torch.Tensor], platform: str) -> str:
    # Comments name files of this machine.
    code = [line for line in str(program).splitlines() if not line.lstrip().startswith("#")]
    contents = {name: content_of(as_numpy(tensor, name)) for name, tensor in tensors.items()}
    target = CPU_TARGETS[platform].__dict__
    facts = [code, contents, target, sorted(processor_flags()), torch.__version__, _options(CPU_TARGETS[platform])]
    return canonical.sha256(canonical.line(facts).encode())


def _options(target: CpuTarget) -> dict[str, Any]:
    return {
        "aot_inductor.package": True,
        "aot_inductor.package_constants_in_so": False,
        "aot_inductor.package_constants_on_disk_format": "pickle_weights",
        # A constant that is written into the code is no longer the checkpoint's.
        "always_keep_tensor_constants": True,
        "cpp.march": target.march,
        "cpp.simdlen": target.simd_bits,
    }


def _compile_into(
    folder: Path, program: ExportedProgram, tensors: Mapping[str, torch.Tensor], target: CpuTarget
) -> None:
    from safetensors.numpy import save_file

    arguments, keywords = program.example_inputs
    options = _options(target)
    with torch.no_grad():
        files = torch._inductor.aot_compile(program.module(check_guards=False), arguments, keywords, options=options)
    library = next(file for file in files if isinstance(file, str) and file.endswith(".so"))
    weights = {name: value[0] for file in files if not isinstance(file, str) for name, value in file.items()}
    runner = torch._C._aoti.AOTIModelContainerRunnerCpu(library, 1)
    constants = runner.get_constant_names_to_original_fqns()
    del runner
    lifted = {name: weights[name] for name in constants.values() if name not in tensors}
    for name, tensor in lifted.items():
        if not tensor.is_contiguous():
            raise BundleError(f"the compiler's constant {name!r} has strides {tensor.stride()}; it must be contiguous")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        temporary = Path(name) / "entry"
        temporary.mkdir()
        shutil.copyfile(library, temporary / "model.so")
        save_file({name: as_numpy(tensor, name) for name, tensor in lifted.items()}, temporary / "lifted.safetensors")
        facts = {"isa": sorted({*target.isa, *_extra_isa(target)}), "constants": constants}
        (temporary / "facts.json").write_text(canonical.text(facts))
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)


def _extra_isa(target: CpuTarget) -> set[str]:
    """Flags that AOTInductor adds because this processor has them."""
    from torch._inductor import config
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    with config.patch({"cpp.simdlen": target.simd_bits}):
        chosen = pick_vec_isa().build_arch_flags().split()
    return {_FLAGS[flag] for flag in chosen if flag in _FLAGS}
