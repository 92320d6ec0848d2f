"""Writes a bundle from endpoints: exports, compiles, and records the right answers of the model as it was trained."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trunnion_bundle import requests
from trunnion_bundle._versions import VERSION
from trunnion_bundle.arrays import as_numpy, dtype_of
from trunnion_bundle.checkpoint import Checkpoint
from trunnion_bundle.checks import check_request
from trunnion_bundle.contract import Bundle, Producer, Source
from trunnion_bundle.endpoint import Endpoint, Input
from trunnion_bundle.errors import BundleError
from trunnion_bundle.folder import COMMITTED, Opened, commit_new, facts_of
from trunnion_bundle.lowerings import Lowering, PjrtLowering
from trunnion_bundle.operators import prepare, prepare_all
from trunnion_bundle.requests import Array, Values
from trunnion_bundle.runner import run_steps
from trunnion_bundle.signatures import Module, Signature, infer_values
from trunnion_bundle.steps import MODULE, Step, infer
from trunnion_bundle.tensors import BATCH, FLOATS, IndexRange, Tensor, TensorType, Tolerance

if TYPE_CHECKING:
    from trunnion_bundle.jax_export import JaxFunction
    from trunnion_bundle.torch_export import TorchFunction

SOURCE = "source.pt2"
STABLEHLO = "stablehlo"


def save(
    folder: Path | str,
    endpoints: Endpoint | Mapping[str, Endpoint],
    *,
    name: str,
    platforms: Sequence[str] | None = None,
    description: str = "",
    default_signature: str | None = None,
    framework: str | None = None,
    assets: Mapping[str, Path | str] | None = None,
    note: str = "",
    cache: Path | str | None = None,
) -> Opened:
    """Write a bundle to the empty or absent `folder` and commit it.

    Args:
        endpoints: by name of the signature; a single one is named "predict". All of torch, or all of JAX.
        name: the model's.
        platforms: torch: platforms of docs/format.md to compile for, None: this machine's. JAX: what StableHLO is
            exported for, None: cpu, cuda, tpu.
        framework: what the model was trained with, if not torch or jax: "flax", "keras".
        assets: path in the bundle, under assets/ or plugins/ -> file to copy.
        cache: folder of compiled libraries by content; None: the user's.

    Raises:
        BundleError: the folder is not empty, an endpoint does not fit together, or this machine cannot compile for a
            platform.
    """
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise BundleError(f"{folder} is not empty; a version is written once" if (folder / COMMITTED).exists()
                          else f"{folder} is not empty; give an absent or empty folder")  # fmt: skip
    if isinstance(endpoints, Endpoint):
        endpoints = {"predict": endpoints}
    folder.mkdir(parents=True, exist_ok=True)
    for path, source in (assets or {}).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / path)
    draft = _Draft(folder, endpoints)
    is_torch = draft.is_torch()
    if is_torch:
        lowerings, source_fact = draft.lower_torch(platforms, cache)
    else:
        lowerings, source_fact = draft.lower_jax(platforms), None
    framework = framework or ("torch" if is_torch else "jax")
    bundle = Bundle(
        name=name,
        description=description,
        producer=Producer(
            framework=framework, framework_version=importlib.metadata.version(framework), tool_version=VERSION
        ),
        modules=draft.modules,
        signatures=draft.signatures,
        default_signature=default_signature or next(iter(endpoints)),
        weights=draft.weights,
        source=source_fact,
        lowerings=lowerings,
        files=facts_of(folder),
    )
    return commit_new(folder, bundle, note)


class _Draft:
    """A bundle while it is made: the endpoints' functions, modules and signatures."""

    def __init__(self, folder: Path, endpoints: Mapping[str, Endpoint]) -> None:
        self.folder = folder
        self.endpoints = endpoints
        self.checkpoint = Checkpoint()
        self.weights: tuple[str, ...] = ()
        self.modules: dict[str, Module] = {}
        self.functions: dict[str, Any] = {}
        self.signatures: dict[str, Signature] = {}
        for name, endpoint in endpoints.items():
            self._add(name, endpoint)

    def is_torch(self) -> bool:
        """Whether the functions are modules of torch.

        Raises:
            BundleError: some are and some are not.
        """
        found = {_is_torch(endpoint) for endpoint in self.endpoints.values()}
        if len(found) != 1:
            raise BundleError("endpoints of torch and of JAX in one bundle; write two bundles")
        return found.pop()

    def _add(self, name: str, endpoint: Endpoint) -> None:
        examples = {key: as_numpy(value.example, f"{name}.{key}") for key, value in _asked(endpoint).items()}
        asked = tuple(_tensor(key, value, examples[key]) for key, value in _asked(endpoint).items())
        entering = self._before(name, endpoint, asked, examples)
        module_name = endpoint.module or name
        inputs = tuple(
            replace(_tensor(key, value, entering[key]), pad=value.pad if _has_batch(value, entering[key]) else None)
            for key, value in endpoint.inputs.items()
        )
        if module_name not in self.modules:
            self._add_module(module_name, endpoint, inputs, [entering[key] for key in endpoint.inputs])
        elif self.modules[module_name].inputs != inputs:
            raise BundleError(f"{name}: module {module_name!r} has other inputs in another endpoint")
        self.signatures[name] = self._signature(name, endpoint, asked, examples, module_name)

    def _before(self, name: str, endpoint: Endpoint, asked: tuple[Tensor, ...], examples: Values) -> Values:
        """The values that enter the function, for the example."""
        values = dict(examples)
        types: dict[str, TensorType] = {tensor.name: tensor for tensor in asked}
        for i, step in enumerate(endpoint.before):
            kinds = tuple(types[value] for value in step.inputs)
            types |= dict(zip(step.outputs, infer(step, kinds, endpoint.symbols, f"{name}.before[{i}]"), strict=True))
            compute = prepare(step, self.folder, kinds, endpoint.symbols, allow_plugins=True)
            found = compute([values[value] for value in step.inputs])
            values |= dict(zip(step.outputs, found, strict=False))
        if missing := [key for key in endpoint.inputs if key not in values]:
            raise BundleError(f"{name}: no step makes {missing[0]!r}; there are: {', '.join(values)}")
        return values

    def _add_module(self, name: str, endpoint: Endpoint, inputs: tuple[Tensor, ...], examples: list[Array]) -> None:
        function: TorchFunction | JaxFunction
        if _is_torch(endpoint):
            from trunnion_bundle.torch_export import export_torch

            function = export_torch(name, endpoint, inputs, examples)
        else:
            from trunnion_bundle.jax_export import export_jax

            function = export_jax(name, endpoint, inputs)
        self.functions[name] = function
        self.modules[name] = Module(
            inputs=inputs,
            outputs=function.outputs,
            largest_batch=endpoint.largest_batch,
            symbols={
                name: ends for name, ends in endpoint.symbols.items() if any(name in tensor.dims for tensor in inputs)
            },
        )

    def _signature(
        self, name: str, endpoint: Endpoint, asked: tuple[Tensor, ...], examples: Values, module: str
    ) -> Signature:
        call = Step(
            op=MODULE, inputs=tuple(endpoint.inputs), outputs=tuple(endpoint.outputs), parameters={"module": module}
        )
        steps = (*endpoint.before, call, *endpoint.after)
        draft = Signature(
            inputs=asked, outputs=(), steps=steps, batching=endpoint.batching, warmup=(), golden=(),
            symbols=endpoint.symbols, description=endpoint.description,
        )  # fmt: skip
        values = infer_values(draft, self.modules, f"endpoint {name}")
        answers = tuple(
            Tensor(name=key, dtype=values[key].dtype, dims=values[key].dims,
                   tolerance=endpoint.tolerance if values[key].dtype in FLOATS else Tolerance())
            for key in _answers(name, endpoint, steps, values)
        )  # fmt: skip
        draft = replace(draft, outputs=answers)
        more = [
            {key: as_numpy(value, f"{name}.{key}") for key, value in example.items()}
            for example in endpoint.more_examples
        ]
        paths = [self._write_example(name, i, draft, example) for i, example in enumerate([examples, *more])]
        return replace(draft, warmup=tuple(warmup for warmup, _ in paths), golden=tuple(golden for _, golden in paths))

    def _write_example(self, name: str, number: int, signature: Signature, example: Values) -> tuple[str, str]:
        computes = prepare_all(signature, self.modules, self.folder, allow_plugins=True)
        values = check_request(example, signature)
        function = self.functions[signature.module]
        found = run_steps(signature, computes, dict(values), lambda inputs: function.answer(inputs))
        warmup, golden = f"warmup/{name}/{number}.safetensors", f"golden/{name}/{number}.safetensors"
        requests.write(self.folder / warmup, {"input": values})
        requests.write(self.folder / golden, {"input": values, "output": found})
        return warmup, golden

    def lower_torch(
        self, platforms: Sequence[str] | None, cache: Path | str | None
    ) -> tuple[dict[str, Lowering], Source]:
        """Compile every module for every platform, and write the checkpoint and the source."""
        from trunnion_bundle import aoti_compile, torch_source

        keys = {
            module: {name: self.checkpoint.add(torch_source.plain_name(name), as_numpy(tensor, name), module)
                     for name, tensor in function.tensors.items()}
            for module, function in self.functions.items()
        }  # fmt: skip
        programs = {name: function.program for name, function in self.functions.items()}
        names = list(platforms) if platforms else [aoti_compile.native_platform()]
        lowerings: dict[str, Lowering] = {}
        for platform in names:
            lowerings[platform] = torch_source.lower(
                self.folder, programs, keys, platform,
                cache=Path(cache) if cache else aoti_compile.default_cache(),
                key_of=lambda module, name, array: self.checkpoint.add(name, array, module),
            )  # fmt: skip
        self.weights = self.checkpoint.write(self.folder)
        return lowerings, torch_source.write_source(self.folder / SOURCE, programs, keys)

    def lower_jax(self, platforms: Sequence[str] | None) -> dict[str, Lowering]:
        """Write StableHLO of every module and size, and the checkpoint."""
        import jax

        from trunnion_bundle.jax_export import PLATFORMS

        chosen, found, version = tuple(platforms or PLATFORMS), {}, 0
        for module, function in self.functions.items():
            keys = {name: self.checkpoint.add(name, array, module) for name, array in function.tensors.items()}
            users = [signature for signature in self.signatures.values() if signature.module == module]
            sizes: list[int | None] = sorted({size for user in users for size in user.batching.allowed_sizes})  # type: ignore[assignment]
            prefix = f"lowerings/{STABLEHLO}/{module}"
            found[module], version = function.lower(self.folder, prefix, sizes or [None], chosen, keys)
        self.weights = self.checkpoint.write(self.folder)
        lowering = PjrtLowering(
            program="mlir", platforms=chosen, jax_version=jax.__version__, calling_convention_version=version,
            modules=found,
        )  # fmt: skip
        return {STABLEHLO: lowering}


def _is_torch(endpoint: Endpoint) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(endpoint.function, torch.nn.Module)


def _asked(endpoint: Endpoint) -> Mapping[str, Input]:
    return endpoint.inputs if endpoint.requests is None else endpoint.requests


def _dims(value: Input, array: Array) -> tuple[Any, ...]:
    return value.dims if value.dims is not None else (BATCH, *array.shape[1:])


def _has_batch(value: Input, array: Array) -> bool:
    return BATCH in _dims(value, array)


def _tensor(name: str, value: Input, array: Array) -> Tensor:
    dims = _dims(value, array)
    if len(dims) != array.ndim:
        raise BundleError(f"input {name!r} has dims {list(dims)}; its example has shape {list(array.shape)}")
    bounds = value.index_range
    if isinstance(bounds, range):
        bounds = IndexRange(min=bounds.start, below=bounds.stop)
    return Tensor(name=name, dtype=dtype_of(array, name), dims=dims, index_range=bounds)


def _answers(name: str, endpoint: Endpoint, steps: Sequence[Step], values: Mapping[str, Any]) -> list[str]:
    if endpoint.answers is not None:
        if missing := sorted(set(endpoint.answers) - set(values)):
            raise BundleError(f"{name}: no value {missing[0]!r} to answer with; there are: {', '.join(values)}")
        return list(endpoint.answers)
    after = steps[len(endpoint.before) :]
    read = {value for step in after[1:] for value in step.inputs}
    return [value for step in after for value in step.outputs if value not in read]
