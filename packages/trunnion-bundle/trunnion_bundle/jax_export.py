"""A function of JAX -> StableHLO for several platforms, one program for each size, and the contract of its outputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from trunnion_bundle.arrays import as_numpy, dtype_of
from trunnion_bundle.endpoint import Endpoint
from trunnion_bundle.errors import BundleError
from trunnion_bundle.lowerings import PjrtModule, PjrtProgram
from trunnion_bundle.requests import NUMPY, Array
from trunnion_bundle.tensors import BATCH, Dim, Tensor

PLATFORMS = ("cpu", "cuda", "tpu")
"""What StableHLO is exported for if nothing else is said."""
_PROBES = (7, 11)
"""Two sizes by which an output's dims are recognised."""


@dataclass(frozen=True, kw_only=True)
class JaxFunction:
    """An endpoint's function: its weights by name, and what it is compared with."""

    endpoint: Endpoint
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    tensors: Mapping[str, Array]
    """Weights by name, in the order in which the parameters are flattened."""

    def answer(self, inputs: Sequence[Array]) -> list[Array]:
        """The function's outputs, computed by JAX."""
        found = jax.jit(self.endpoint.function)(*_parameters(self.endpoint), *inputs)
        return [as_numpy(value, "an output") for value in jax.tree.leaves(found)]

    def lower(self, folder: Path, prefix: str, sizes: Sequence[int | None], platforms: Sequence[str],
              keys: Mapping[str, str]) -> tuple[PjrtModule, int]:  # fmt: skip
        """Write a program for each size to `folder`; also the calling convention's version.

        Args:
            prefix: where in the bundle the programs lie.
            sizes: rows; (None,) without a batch axis.
            keys: weight's name -> key in the checkpoint.
        """
        symbols = [(name, tuple(sizes)) for name, sizes in self.endpoint.sizes.items()]
        combinations = list(itertools.product(*(values for _, values in symbols)))
        programs, version = [], 0
        for batch, values in itertools.product(sizes, combinations):
            chosen = dict(zip((name for name, _ in symbols), values, strict=True))
            exported = self._export(chosen if batch is None else {**chosen, BATCH: batch}, platforms)
            name = "-".join(
                ["program", *([] if batch is None else [f"b{batch}"]), *(f"{k}{v}" for k, v in chosen.items())]
            )
            path = f"{prefix}/{name}.mlirbc"
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(exported.mlir_module_serialized)
            version = exported.calling_convention_version
            programs.append(
                PjrtProgram(batch=batch, symbols=chosen, path=path, kept=tuple(exported.module_kept_var_idx))
            )
        arguments = [("weight", keys[name]) for name in self.tensors] + [
            ("input", tensor.name) for tensor in self.inputs
        ]
        return PjrtModule(arguments=tuple(arguments), programs=tuple(programs)), version

    def _export(self, sizes: Mapping[str, int], platforms: Sequence[str]) -> Any:
        shapes = _shapes(self.inputs, sizes)
        return jax.export.export(jax.jit(self.endpoint.function), platforms=platforms)(
            *_parameters(self.endpoint), *shapes
        )


def _parameters(endpoint: Endpoint) -> tuple[Any, ...]:
    return () if endpoint.params is None else (endpoint.params,)


def _shapes(inputs: Sequence[Tensor], sizes: Mapping[str, int]) -> list[jax.ShapeDtypeStruct]:
    return [
        jax.ShapeDtypeStruct(
            tuple(dim if isinstance(dim, int) else sizes[dim] for dim in tensor.dims), NUMPY[tensor.dtype]
        )
        for tensor in inputs
    ]


def export_jax(name: str, endpoint: Endpoint, inputs: Sequence[Tensor]) -> JaxFunction:
    """The function of an endpoint, traced for its outputs.

    Raises:
        BundleError: an input of 64 bits while JAX computes with 32, sizes that are missing or outside of their bounds,
            or outputs whose dims are not those of an input.
    """
    for tensor in inputs:
        if tensor.dtype in ("INT64", "UINT64", "FP64") and not jax.config.jax_enable_x64:
            raise BundleError(
                f"{name}: input {tensor.name!r} is {tensor.dtype}, and JAX computes with 32 bits here; give "
                f"{tensor.dtype[:-2]}32 (and a step 'cast' before), or set jax_enable_x64"
            )
    for symbol, ends in endpoint.symbols.items():
        sizes = endpoint.sizes.get(symbol, ())
        if not sizes or not all(ends.min <= size <= ends.max for size in sizes):
            raise BundleError(
                f"{name}: sizes of {symbol!r} are {list(sizes)}; at least one, from {ends.min} to {ends.max}"
            )
    paths, _ = jax.tree_util.tree_flatten_with_path(endpoint.params)
    tensors = {_path_name(path): as_numpy(leaf, _path_name(path)) for path, leaf in paths}
    found = JaxFunction(endpoint=endpoint, inputs=tuple(inputs), outputs=(), tensors=tensors)
    outputs = _outputs(name, endpoint, _traced(endpoint, inputs))
    return JaxFunction(endpoint=endpoint, inputs=found.inputs, outputs=outputs, tensors=tensors)


def _path_name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".") or "params"


def _traced(endpoint: Endpoint, inputs: Sequence[Tensor]) -> Callable[[Mapping[str, int]], list[Any]]:
    def trace(sizes: Mapping[str, int]) -> list[Any]:
        shapes = _shapes(inputs, sizes)
        return list(jax.tree.leaves(jax.eval_shape(endpoint.function, *_parameters(endpoint), *shapes)))

    return trace


def _outputs(name: str, endpoint: Endpoint, trace: Callable[[Mapping[str, int]], list[Any]]) -> tuple[Tensor, ...]:
    names = [*([BATCH] if endpoint.largest_batch else []), *endpoint.symbols]
    usual = {symbol: endpoint.sizes[symbol][0] if symbol in endpoint.sizes else _PROBES[0] for symbol in names}
    first = trace(usual)
    if len(first) != len(endpoint.outputs):
        raise BundleError(f"{name}: the function has {len(first)} outputs; named are: {', '.join(endpoint.outputs)}")
    dims: list[list[Dim]] = [list(value.shape) for value in first]
    for symbol in names:
        other = next((size for size in (*endpoint.sizes.get(symbol, ()), *_PROBES[1:]) if size != usual[symbol]), None)
        assert other is not None, "the second probe is no usual size"
        for i, value in enumerate(trace({**usual, symbol: other})):
            for axis, size in enumerate(value.shape):
                if size == first[i].shape[axis]:
                    continue
                if (first[i].shape[axis], size) != (usual[symbol], other):
                    raise BundleError(f"{name}: {endpoint.outputs[i]} has a dim that follows {symbol!r} but is not it")
                dims[i][axis] = symbol
    return tuple(
        Tensor(name=output, dtype=dtype_of(np.empty(0, value.dtype), f"{name}: {output}"), dims=tuple(shape))
        for output, value, shape in zip(endpoint.outputs, first, dims, strict=True)
    )
