"""torch.nn.Module -> exported program with a symbolic batch, and the contract of its inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import Dim as ExportDim
from torch.export import ExportedProgram
from torch.utils import _pytree

from trunnion_bundle.aoti_compile import tensors_of
from trunnion_bundle.arrays import as_numpy
from trunnion_bundle.endpoint import Endpoint
from trunnion_bundle.engines.aoti import to_torch
from trunnion_bundle.errors import BundleError
from trunnion_bundle.requests import Array
from trunnion_bundle.tensors import BATCH, Dim, Tensor
from trunnion_bundle.torch_indices import require_ranges, try_ends

_DTYPES = {
    torch.bool: "BOOL", torch.uint8: "UINT8", torch.uint16: "UINT16", torch.uint32: "UINT32", torch.uint64: "UINT64",
    torch.int8: "INT8", torch.int16: "INT16", torch.int32: "INT32", torch.int64: "INT64",
    torch.float16: "FP16", torch.bfloat16: "BF16", torch.float32: "FP32", torch.float64: "FP64",
}  # fmt: skip


class _Method(torch.nn.Module):
    """Another method of a module as `forward`; its tensors keep their names under `root.`."""

    def __init__(self, root: torch.nn.Module, method: str) -> None:
        super().__init__()
        self.root = root
        self.method = method

    def forward(self, *inputs: torch.Tensor) -> Any:
        return getattr(self.root, self.method)(*inputs)


_ROOT = "root."


@dataclass(frozen=True, kw_only=True)
class TorchFunction:
    """An exported endpoint: what is compiled, and what it is compared with."""

    program: ExportedProgram
    outputs: tuple[Tensor, ...]
    tensors: Mapping[str, torch.Tensor]
    """Parameters and buffers by their names in the program."""
    eager: torch.nn.Module

    def answer(self, inputs: Sequence[Array]) -> list[Array]:
        """The eager module's outputs."""
        with torch.inference_mode():
            found = self.eager(*(to_torch(array) for array in inputs))
        return [as_numpy(value, "an output") for value in _pytree.tree_leaves(found)]


def export_torch(name: str, endpoint: Endpoint, inputs: Sequence[Tensor], examples: Sequence[Array]) -> TorchFunction:
    """Export the module of an endpoint; `examples` are its inputs.

    Raises:
        BundleError: the module is in training mode, has a parameter that is not contiguous, or outputs whose sizes are
            not those of an input.
    """
    module = endpoint.function
    assert isinstance(module, torch.nn.Module)
    if module.training:
        raise BundleError(f"{name}: the module is in training mode; call eval() first")
    eager = module if endpoint.method == "forward" else _Method(module, endpoint.method).eval()
    for tensor_name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if not tensor.is_contiguous() or tensor.device.type != "cpu":
            state = f"{tensor_name} is on {tensor.device} with strides {tensor.stride()}"
            raise BundleError(f"{name}: {state}; it must be contiguous, on cpu")
    dims = {symbol: ExportDim(symbol, min=ends.min, max=ends.max) for symbol, ends in endpoint.symbols.items()}
    if endpoint.largest_batch:
        dims[BATCH] = ExportDim(BATCH, min=1, max=endpoint.largest_batch)
    shapes = tuple({i: dims[dim] for i, dim in enumerate(tensor.dims) if isinstance(dim, str)} for tensor in inputs)
    with torch.no_grad():
        arguments = tuple(to_torch(array) for array in examples)
        dynamic = (shapes,) if isinstance(eager, _Method) else shapes
        program = torch.export.export(eager, arguments, dynamic_shapes=dynamic)
    require_ranges(name, program, inputs)
    if reason := try_ends(eager, arguments, inputs):
        raise BundleError(f"{name}: {reason}")
    tensors = tensors_of(program)
    outputs = _outputs(name, program, inputs, endpoint.outputs)
    return TorchFunction(program=program, outputs=outputs, tensors=tensors, eager=eager)


def plain_name(key: str) -> str:
    """A tensor's name in the module that the person has."""
    return key.removeprefix(_ROOT)


def _outputs(name: str, program: ExportedProgram, inputs: Sequence[Tensor], names: Sequence[str]) -> tuple[Tensor, ...]:
    values = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    known: dict[str, Dim] = {}
    for tensor, node_name in zip(inputs, program.graph_signature.user_inputs, strict=True):
        for dim, size in zip(tensor.dims, values[str(node_name)].shape, strict=True):
            if isinstance(dim, str):
                known[str(size)] = dim
    found = [values[str(node_name)] for node_name in program.graph_signature.user_outputs]
    if len(found) != len(names):
        raise BundleError(f"{name}: the module has {len(found)} outputs; named are: {', '.join(names)}")
    return tuple(
        Tensor(
            name=output,
            dtype=_DTYPES[value.dtype],
            dims=tuple(_dim(size, known, f"{name}: {output}") for size in value.shape),
        )
        for output, value in zip(names, found, strict=True)
    )


def _dim(size: Any, known: Mapping[str, Dim], where: str) -> Dim:
    if isinstance(size, int):
        return size
    if str(size) not in known:
        raise BundleError(
            f"{where} has a dim of {size}; it must be a number, or one of: {', '.join(map(str, known.values()))}"
        )
    return known[str(size)]
