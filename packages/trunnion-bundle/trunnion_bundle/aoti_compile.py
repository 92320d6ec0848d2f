"""Compiles exported programs by AOTInductor, weights outside; what was compiled before is taken from a cache."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import load_file, save_file
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass

from trunnion_bundle import canonical
from trunnion_bundle.arrays import as_numpy
from trunnion_bundle.checkpoint import content_of
from trunnion_bundle.engines.aoti import npu_refusal, open_runner
from trunnion_bundle.errors import BundleError
from trunnion_bundle.host import machine, processor_flags
from trunnion_bundle.requests import Array

LIBRARY, CODE, LIFTED, FACTS = "model.so", "code", "lifted.safetensors", "facts.json"
"""Names in the cache; the library's also in a bundle."""

_V2 = ("cx16", "lahf_lm", "pni", "popcnt", "sse4_1", "sse4_2", "ssse3")
_V3 = (*_V2, "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_FLAGS = {
    "-mavx512vnni": "avx512_vnni", "-mavx512bf16": "avx512_bf16", "-mamx-tile": "amx_tile", "-mamx-bf16": "amx_bf16",
    "-mamx-int8": "amx_int8", "-mamx-fp16": "amx_fp16",
}  # fmt: skip
"""What the compiler may be told beyond `march` -> flag of the processor."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """One platform: what the compiler is told, and what the machine that runs the code must have."""

    device: str = "cpu"
    machine: str
    isa: tuple[str, ...] = ()
    device_arch: str | None = None
    march: str | None = None
    simd_bits: int | None = None


CPU_TARGETS: Mapping[str, Target] = {
    "cpu-x86_64-avx512": Target(machine="x86_64", march="x86-64-v4", simd_bits=512, isa=_V4),
    "cpu-x86_64-avx2": Target(machine="x86_64", march="x86-64-v3", simd_bits=256, isa=_V3),
    "cpu-x86_64-sse2": Target(machine="x86_64", march="x86-64", simd_bits=1, isa=("sse2",)),
    "cpu-aarch64-neon": Target(machine="aarch64", march="armv8-a", simd_bits=128, isa=("asimd",)),
}
_CUDA = re.compile(r"cuda-(sm[0-9]+)")
_NPU = re.compile(r"npu-(ascend[0-9][0-9a-z_]*)")


def native_platform() -> str:
    """The best platform of this machine's CPU.

    Raises:
        BundleError: none fits.
    """
    for name in CPU_TARGETS:
        if not refusal(name):
            return name
    raise BundleError(f"no platform fits a {machine()}; choices: {', '.join(CPU_TARGETS)}")


def target_of(platform: str) -> Target:
    """What `platform` means.

    Raises:
        BundleError: it names nothing that can be compiled for.
    """
    if platform in CPU_TARGETS:
        return CPU_TARGETS[platform]
    if match := _CUDA.fullmatch(platform):
        return Target(device="cuda", machine=machine(), device_arch=match[1])
    if match := _NPU.fullmatch(platform):
        return Target(device="npu", machine=machine(), device_arch=match[1])
    choices = ", ".join(CPU_TARGETS)
    raise BundleError(f"unknown platform {platform!r}; choices: {choices}, cuda-sm90, npu-ascend910b and the like")


def refusal(platform: str) -> str:
    """Why this machine cannot compile for `platform`, or ""."""
    try:
        target = target_of(platform)
    except BundleError as error:
        return str(error)
    if target.device == "cuda":
        return _cuda_refusal(platform, target)
    if target.device == "npu":
        reason = npu_refusal(target.device_arch)
        return f"{platform} is compiled on a machine with that device; {reason}" if reason else ""
    if target.machine != machine():
        return f"{platform} is compiled on a {target.machine}; this machine is {machine()}"
    missing = sorted(set(target.isa) - processor_flags())
    # AOTInductor asks the processor that it runs on which instructions there are.
    return f"{platform} is compiled on a processor with {', '.join(missing)}, which this has not" if missing else ""


def _cuda_refusal(platform: str, target: Target) -> str:
    if not torch.cuda.is_available():
        return (
            f"{platform} is compiled on a machine with that device; torch {torch.__version__} finds no CUDA device here"
        )
    found = "sm{}{}".format(*torch.cuda.get_device_capability())
    return "" if found == target.device_arch else f"{platform} is compiled on that device; here is {found}"


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A library, and its constants: name in the library -> name in the program."""

    folder: Path
    """`model.so`, and what it loads."""
    isa: tuple[str, ...]
    constants: Mapping[str, str]
    lifted: Mapping[str, Array]
    """Constants that are no tensors of the program, by name."""


def default_cache() -> Path:
    """The user's folder for what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trunnion-bundle"


def compile_program(program: ExportedProgram, platform: str, cache: Path) -> Compiled:
    """Compile for one platform.

    Args:
        program: with its weights.
        cache: folder of libraries by content.

    Raises:
        BundleError: this machine cannot compile for `platform`.
    """
    if reason := refusal(platform):
        raise BundleError(reason)
    folder = cache / "aoti" / _key(program, platform)
    if not (folder / FACTS).is_file():
        _compile_into(folder, program, target_of(platform))
    facts = json.loads((folder / FACTS).read_text())
    return Compiled(
        folder=folder / CODE,
        isa=tuple(facts["isa"]),
        constants=facts["constants"],
        lifted=load_file(folder / LIFTED),
    )


def tensors_of(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Parameters, buffers and constant tensors of a program by name."""
    every = [*program.state_dict.items(), *program.constants.items()]
    return {name: tensor.detach() for name, tensor in every if isinstance(tensor, torch.Tensor)}


def _key(program: ExportedProgram, platform: str) -> str:
    # Comments name files of this machine.
    code = [line for line in str(program).splitlines() if not line.lstrip().startswith("#")]
    contents = {name: content_of(as_numpy(tensor, name)) for name, tensor in tensors_of(program).items()}
    target = target_of(platform)
    facts = [code, contents, target.__dict__, sorted(processor_flags()), torch.__version__, _options(target)]
    return canonical.sha256(canonical.line(facts).encode())


def _options(target: Target) -> dict[str, Any]:
    options = {
        "aot_inductor.package": True,
        "aot_inductor.package_constants_in_so": False,
        "aot_inductor.package_constants_on_disk_format": "pickle_weights",
        # A constant that is written into the code is no longer the checkpoint's.
        "always_keep_tensor_constants": True,
    }
    if target.device == "cpu":
        options |= {"cpp.march": target.march, "cpp.simdlen": target.simd_bits}
    return options


def _compile_into(folder: Path, program: ExportedProgram, target: Target) -> None:
    tensors = tensors_of(program)
    if target.device != "cpu":
        program = move_to_device_pass(program, target.device)
    arguments, keywords = program.example_inputs
    options = _options(target)
    with torch.no_grad():
        files = torch._inductor.aot_compile(program.module(check_guards=False), arguments, keywords, options=options)
    library = next(file for file in files if isinstance(file, str) and file.endswith(".so"))
    weights = {name: value[0] for file in files if not isinstance(file, str) for name, value in file.items()}
    constants = open_runner(Path(library), target.device).get_constant_names_to_original_fqns()
    lifted = {name: weights[name] for name in constants.values() if name not in tensors}
    for name, tensor in lifted.items():
        if not tensor.is_contiguous():
            raise BundleError(f"the compiler's constant {name!r} has strides {tensor.stride()}; it must be contiguous")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        temporary = Path(name) / "entry"
        (temporary / CODE).mkdir(parents=True)
        shutil.copyfile(library, temporary / CODE / LIBRARY)
        for file in files:
            if isinstance(file, str) and file.endswith(".cubin"):
                shutil.copyfile(file, temporary / CODE / Path(file).name)
        save_file({name: as_numpy(tensor, name) for name, tensor in lifted.items()}, temporary / LIFTED)
        facts = {"isa": sorted({*target.isa, *_extra_isa(target)}), "constants": constants}
        (temporary / FACTS).write_text(canonical.text(facts))
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)


def _extra_isa(target: Target) -> set[str]:
    """Flags that AOTInductor adds because this processor has them."""
    if target.device != "cpu":
        return set()
    from torch._inductor import config
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    with config.patch({"cpp.simdlen": target.simd_bits}):
        chosen = pick_vec_isa().build_arch_flags().split()
    return {_FLAGS[flag] for flag in chosen if flag in _FLAGS}
