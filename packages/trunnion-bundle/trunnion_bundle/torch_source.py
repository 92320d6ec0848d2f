"""Lowerings by AOTInductor in a bundle, and the archive of exported programs that they are compiled from."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch.export import ExportedProgram
from torch.export.pt2_archive._package import load_pt2, package_pt2

from trunnion_bundle.aoti_compile import LIBRARY, Compiled, compile_program, target_of
from trunnion_bundle.contract import Bundle, Source
from trunnion_bundle.errors import BundleError
from trunnion_bundle.lowerings import AotiLowering, AotiModule
from trunnion_bundle.requests import Array
from trunnion_bundle.torch_export import plain_name
from trunnion_bundle.weights import key_to_file

__all__ = ["lower", "plain_name", "read_source", "torch_version", "write_source"]

KeyOf = Callable[[str, str, Array], str]
"""(module, name, array) -> key in the checkpoint of a constant that the compiler made."""


def torch_version() -> str:
    """Without what tells builds apart."""
    return torch.__version__.partition("+")[0]


def lower(
    folder: Path,
    programs: Mapping[str, ExportedProgram],
    keys: Mapping[str, Mapping[str, str]],
    platform: str,
    *,
    cache: Path,
    key_of: KeyOf,
) -> AotiLowering:
    """Compile every program for `platform` into `folder`.

    Args:
        programs: with their weights.
        keys: module -> parameter or buffer -> key in the checkpoint.
    """
    modules, isa, target = {}, set(), target_of(platform)
    for name, program in programs.items():
        compiled = compile_program(program, platform, cache)
        path = f"lowerings/{platform}/{name}"
        shutil.copytree(compiled.folder, folder / path)
        modules[name] = AotiModule(
            library=f"{path}/{LIBRARY}", constants=_constants(name, compiled, keys[name], key_of)
        )
        isa.update(compiled.isa)
    return AotiLowering(
        device=target.device,
        torch_version=torch_version(),
        machine=target.machine,
        isa=tuple(sorted(isa)),
        device_arch=target.device_arch,
        modules=modules,
    )


def _constants(module: str, compiled: Compiled, keys: Mapping[str, str], key_of: KeyOf) -> dict[str, str]:
    return {
        constant: keys[name] if name in keys else key_of(module, name, compiled.lifted[name])
        for constant, name in compiled.constants.items()
    }


def write_source(path: Path, programs: Mapping[str, ExportedProgram], keys: Mapping[str, Mapping[str, str]]) -> Source:
    """Write the programs to one archive. Their weights are taken out: the checkpoint has them."""
    for program in programs.values():
        for name, tensor in program.state_dict.items():
            empty = tensor.detach().to("meta")
            program.state_dict[name] = (
                torch.nn.Parameter(empty, False) if isinstance(tensor, torch.nn.Parameter) else empty
            )
    package_pt2(path, exported_programs=dict(programs))
    return Source(path=path.name, torch_version=torch_version(), tensors=keys)


def read_source(folder: Path, bundle: Bundle) -> dict[str, ExportedProgram]:
    """The programs of a bundle with their weights.

    Raises:
        BundleError: the bundle has no source, or one of another torch.
    """
    source = bundle.source
    if source is None:
        raise BundleError(f"{folder}: the bundle has no source to compile; export it again")
    if source.torch_version != torch_version():
        raise BundleError(f"{folder}: its source is of torch {source.torch_version}; here is {torch_version()}")
    from safetensors import safe_open

    files = key_to_file(folder, bundle.weights)
    programs = load_pt2(str(folder / source.path)).exported_programs
    for module, keys in source.tensors.items():
        state = programs[module].state_dict
        for name, empty in list(state.items()):
            with safe_open(files[keys[name]], "pt") as file:
                tensor = file.get_tensor(keys[name])
            state[name] = torch.nn.Parameter(tensor, False) if isinstance(empty, torch.nn.Parameter) else tensor
    return programs
