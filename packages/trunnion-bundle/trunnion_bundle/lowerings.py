"""Lowerings: what an engine opens to compute the modules on one platform."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trunnion_bundle.errors import BundleError
from trunnion_bundle.fields import (
    LARGEST,
    LONGEST_PATH,
    NAME,
    Fields,
    as_integer,
    as_name,
    as_object,
    as_path,
    as_string,
    ascending,
)
from trunnion_bundle.signatures import Module
from trunnion_bundle.tensors import BATCH

DEVICES = ("cpu", "cuda", "npu")
MACHINES = ("x86_64", "aarch64")
PROGRAMS = ("mlir", "executable")
PJRT_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
MOST_PROGRAMS = 4096
LONGEST_SLEEP_US = 60_000_000
LONGEST_TOPOLOGY = 100_000
LONGEST_KEY = 1000


@dataclass(frozen=True, kw_only=True)
class AotiModule:
    """A shared library of AOTInductor, and which tensor of the checkpoint each of its constants is."""

    library: str
    constants: Mapping[str, str]

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.library,)

    def to_json(self) -> dict[str, Any]:
        return {"library": self.library, "constants": dict(self.constants)}


@dataclass(frozen=True, kw_only=True)
class AotiLowering:
    """AOTInductor: machine code that is run where `isa` and `device_arch` say."""

    device: str
    torch_version: str
    machine: str
    isa: tuple[str, ...]
    device_arch: str | None
    modules: Mapping[str, AotiModule]
    engine: str = "aoti"

    def to_json(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "device": self.device,
            "torch_version": self.torch_version,
            "machine": self.machine,
            "isa": list(self.isa),
            "device_arch": self.device_arch,
            "modules": {name: module.to_json() for name, module in self.modules.items()},
        }


@dataclass(frozen=True, kw_only=True)
class PjrtProgram:
    """One size of a module: rows, the sizes of its symbols, and which arguments it takes."""

    batch: int | None
    symbols: Mapping[str, int]
    path: str
    kept: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        return {"batch": self.batch, "symbols": dict(self.symbols), "path": self.path, "kept": list(self.kept)}


@dataclass(frozen=True, kw_only=True)
class PjrtModule:
    """Programs by size. `arguments` are pairs: ("weight", key) or ("input", name)."""

    arguments: tuple[tuple[str, str], ...]
    programs: tuple[PjrtProgram, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(program.path for program in self.programs)

    def to_json(self) -> dict[str, Any]:
        arguments = [{kind: name} for kind, name in self.arguments]
        return {"arguments": arguments, "programs": [program.to_json() for program in self.programs]}


@dataclass(frozen=True, kw_only=True)
class PjrtLowering:
    """StableHLO, or executables of one PJRT plugin."""

    program: str
    platforms: tuple[str, ...]
    jax_version: str
    calling_convention_version: int
    modules: Mapping[str, PjrtModule]
    plugin_version: str | None = None
    """Of the plugin that executables are for, and the only one that runs them; likewise `topology`."""
    topology: str | None = None
    engine: str = "pjrt"

    def to_json(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "program": self.program,
            "platforms": list(self.platforms),
            "jax_version": self.jax_version,
            "calling_convention_version": self.calling_convention_version,
            "plugin_version": self.plugin_version,
            "topology": self.topology,
            "modules": {name: module.to_json() for name, module in self.modules.items()},
        }


@dataclass(frozen=True, kw_only=True)
class SimOutput:
    """`row_sum`: `offset + scale * sum(row)` in every element; `echo`: the input itself."""

    function: str
    input: str
    scale: float = 1
    offset: float = 0

    def to_json(self) -> dict[str, Any]:
        numbers = {"scale": self.scale, "offset": self.offset} if self.function == "row_sum" else {}
        return {"function": self.function, "input": self.input, **numbers}


@dataclass(frozen=True, kw_only=True)
class SimModule:
    """A batch of n rows sleeps `base_us + n * row_us` microseconds."""

    base_us: int
    row_us: int
    outputs: tuple[SimOutput, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        return ()

    def to_json(self) -> dict[str, Any]:
        outputs = [output.to_json() for output in self.outputs]
        return {"base_us": self.base_us, "row_us": self.row_us, "outputs": outputs}


@dataclass(frozen=True, kw_only=True)
class SimLowering:
    """A simulated device, for tests."""

    modules: Mapping[str, SimModule]
    engine: str = "sim"

    def to_json(self) -> dict[str, Any]:
        return {"engine": self.engine, "modules": {name: module.to_json() for name, module in self.modules.items()}}


Lowering = AotiLowering | PjrtLowering | SimLowering

ENGINES = {"aoti": DEVICES, "pjrt": ("stablehlo", "pjrt"), "sim": ("sim",)}
"""Engine -> first words of its platforms' names."""


def read_lowering(value: Any, where: str, platform: str, modules: Mapping[str, Module]) -> Lowering:
    """The lowering of `platform` for all of `modules`.

    Raises:
        BundleError: a key, a name or a size that does not fit; a module that is missing.
    """
    fields = Fields(value, where)
    engine = fields.choice("engine", ENGINES)
    word = platform.partition("-")[0]
    if word not in ENGINES[engine]:
        raise BundleError(
            f"{where}: the platform of {engine} is {platform!r}; it starts with: {', '.join(ENGINES[engine])}"
        )
    found = {"aoti": _read_aoti, "pjrt": _read_pjrt, "sim": _read_sim}[engine](fields, modules)
    fields.close()
    if missing := sorted(set(modules) ^ set(found.modules)):
        raise BundleError(f"{where}.modules: not in both places: {', '.join(missing)}; modules: {', '.join(modules)}")
    if isinstance(found, AotiLowering) and word != found.device:
        raise BundleError(f"{where}.device is {found.device!r}; the platform is {platform!r}")
    if isinstance(found, PjrtLowering) and (found.program == "mlir") != (word == "stablehlo"):
        raise BundleError(f"{where}.program is {found.program!r}; the platform is {platform!r}")
    if isinstance(found, PjrtLowering) and word == "pjrt" and platform.partition("-")[2] not in found.platforms:
        raise BundleError(f"{where}.platforms is {list(found.platforms)}; the platform is {platform!r}")
    return found


def _read_aoti(fields: Fields, modules: Mapping[str, Module]) -> AotiLowering:
    return AotiLowering(
        device=fields.choice("device", DEVICES),
        torch_version=fields.string("torch_version"),
        machine=fields.choice("machine", MACHINES),
        isa=fields.array("isa", as_string),
        device_arch=fields.optional("device_arch", as_string),
        modules=fields.table("modules", _read_aoti_module, NAME, 1),
    )


def _read_aoti_module(value: Any, where: str) -> AotiModule:
    fields = Fields(value, where)
    found = AotiModule(
        library=as_path(fields.take("library"), fields.place("library")),
        constants=read_keys(fields.take("constants"), fields.place("constants")),
    )
    fields.close()
    return found


def read_keys(value: Any, where: str) -> dict[str, str]:
    """An object from the name that something has elsewhere to its key in the checkpoint."""
    return {
        as_string(name, f"a key of {where}", longest=LONGEST_KEY): _as_key(key, f"{where}.{name}")
        for name, key in as_object(value, where).items()
    }


def _as_key(value: Any, where: str) -> str:
    return as_string(value, where, longest=LONGEST_KEY)


def _read_pjrt(fields: Fields, modules: Mapping[str, Module]) -> PjrtLowering:
    program = fields.choice("program", PROGRAMS)
    found = PjrtLowering(
        program=program,
        platforms=fields.array("platforms", as_string, 1, 8),
        jax_version=fields.string("jax_version"),
        calling_convention_version=fields.integer("calling_convention_version", 1),
        plugin_version=fields.optional("plugin_version", _as_description),
        topology=fields.optional("topology", _as_description),
        modules=fields.table("modules", _read_pjrt_module, NAME, 1),
    )
    if unknown := sorted(set(found.platforms) - set(PJRT_PLATFORMS)):
        raise BundleError(f"{fields.place('platforms')}: unknown {unknown}; choices: {', '.join(PJRT_PLATFORMS)}")
    for key, text in (("plugin_version", found.plugin_version), ("topology", found.topology)):
        if (text is None) != (program == "mlir"):
            raise BundleError(f"{fields.place(key)} is {text!r}; it belongs to a program 'executable'")
    for name in sorted(set(modules) & set(found.modules)):
        _check_pjrt_module(found.modules[name], modules[name], f"{fields.where}.modules.{name}")
    return found


def _as_description(value: Any, where: str) -> str:
    return as_string(value, where, longest=LONGEST_TOPOLOGY)


def _read_pjrt_module(value: Any, where: str) -> PjrtModule:
    fields = Fields(value, where)
    found = PjrtModule(
        arguments=fields.array("arguments", _read_argument),
        programs=fields.array("programs", _read_program, 1, MOST_PROGRAMS),
    )
    fields.close()
    return found


def _read_argument(value: Any, where: str) -> tuple[str, str]:
    pairs = list(as_object(value, where).items())
    if len(pairs) != 1 or pairs[0][0] not in ("weight", "input"):
        raise BundleError(f"{where} is {value}; choices: one of 'weight', 'input'")
    return pairs[0][0], _as_key(pairs[0][1], where)


def _read_program(value: Any, where: str) -> PjrtProgram:
    fields = Fields(value, where)
    sizes = fields.table("symbols", lambda size, at: as_integer(size, at, 1, LARGEST), NAME)
    found = PjrtProgram(
        batch=fields.optional("batch", lambda rows, at: as_integer(rows, at, 1, LARGEST)),
        symbols=sizes,
        path=fields.string("path", longest=LONGEST_PATH),
        kept=ascending(fields.array("kept", lambda i, at: as_integer(i, at, 0)), fields.place("kept")),
    )
    fields.close()
    as_path(found.path, fields.place("path"))
    return found


def _check_pjrt_module(found: PjrtModule, module: Module, where: str) -> None:
    inputs = [name for kind, name in found.arguments if kind == "input"]
    if sorted(inputs) != sorted(tensor.name for tensor in module.inputs):
        wanted = ", ".join(tensor.name for tensor in module.inputs)
        raise BundleError(f"{where}.arguments take inputs {', '.join(inputs)}; the module has {wanted}")
    sizes = [(program.batch, *sorted(program.symbols.items())) for program in found.programs]
    for program, size in zip(found.programs, sizes, strict=True):
        has_batch = (program.batch is None) == (module.largest_batch is None)
        if not has_batch or set(program.symbols) != set(module.symbols) or sizes.count(size) > 1:
            raise BundleError(f"{where}.programs: the size {size} does not fit the module, or is there twice")
        for name, value in program.symbols.items():
            if not module.symbols[name].min <= value <= module.symbols[name].max:
                raise BundleError(f"{where}.programs: {name} is {value}; limits: {module.symbols[name].to_json()}")
        if program.kept and program.kept[-1] >= len(found.arguments):
            raise BundleError(f"{where}.programs: kept {program.kept[-1]}; there are {len(found.arguments)} arguments")


def _read_sim(fields: Fields, modules: Mapping[str, Module]) -> SimLowering:
    found = SimLowering(modules=fields.table("modules", _read_sim_module, NAME, 1))
    for name in sorted(set(modules) & set(found.modules)):
        _check_sim_module(found.modules[name], modules[name], f"{fields.where}.modules.{name}")
    return found


def _read_sim_module(value: Any, where: str) -> SimModule:
    fields = Fields(value, where)
    found = SimModule(
        base_us=fields.integer("base_us", 0, LONGEST_SLEEP_US),
        row_us=fields.integer("row_us", 0, LONGEST_SLEEP_US),
        outputs=fields.array("outputs", _read_sim_output, 1),
    )
    fields.close()
    return found


def _read_sim_output(value: Any, where: str) -> SimOutput:
    fields = Fields(value, where)
    function = fields.choice("function", ("row_sum", "echo"))
    found = SimOutput(
        function=function,
        input=as_name(fields.take("input"), fields.place("input")),
        scale=fields.number("scale") if function == "row_sum" else 1,
        offset=fields.number("offset") if function == "row_sum" else 0,
    )
    fields.close()
    return found


def _check_sim_module(found: SimModule, module: Module, where: str) -> None:
    if len(found.outputs) != len(module.outputs):
        raise BundleError(f"{where}.outputs has {len(found.outputs)} elements; the module has {len(module.outputs)}")
    inputs = {tensor.name: tensor for tensor in module.inputs}
    for output, tensor in zip(found.outputs, module.outputs, strict=True):
        if output.input not in inputs:
            raise BundleError(f"{where}.outputs: no input {output.input!r}; choices: {', '.join(inputs)}")
        source = inputs[output.input]
        if output.function == "echo" and (source.dtype, source.dims) != (tensor.dtype, tensor.dims):
            raise BundleError(f"{where}.outputs: {tensor.name} is no echo of {source.name}: dtype or dims differ")
        if output.function == "row_sum" and any(isinstance(dim, str) and dim != BATCH for dim in tensor.dims):
            raise BundleError(f"{where}.outputs: {tensor.name} has dims {list(tensor.dims)}; a row_sum has sizes only")


def required_sizes(allowed: Mapping[str, set[int]], lowering: Lowering, where: str) -> None:
    """Raises BundleError if a program is missing for a size of `allowed`: module -> rows that its signatures allow."""
    if not isinstance(lowering, PjrtLowering):
        return
    for name, sizes in allowed.items():
        compiled = {program.batch for program in lowering.modules[name].programs}
        if missing := sorted(sizes - compiled):
            raise BundleError(
                f"{where}.modules.{name} has no program for {missing} rows; it has: {sorted(filter(None, compiled))}"
            )
