"""Finds inputs of a torch module that index tables: each must have a range, and the module must take all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from trunnion_bundle.engines.aoti import to_torch
from trunnion_bundle.errors import BundleError
from trunnion_bundle.requests import NUMPY
from trunnion_bundle.tensors import Tensor

_INDEXING = {
    "aten.embedding.default": (1,),
    "aten._embedding_bag.default": (1,),
    "aten._embedding_bag_forward_only.default": (1,),
    "aten.embedding_bag.default": (1,),
    "aten.embedding_bag.padding_idx": (1,),
    "aten.index.Tensor": (1,),
    "aten.index_put.default": (1,),
    "aten.index_select.default": (2,),
    "aten.gather.default": (2,),
    "aten.scatter.src": (2,),
    "aten.scatter_add.default": (2,),
    "aten.take.default": (1,),
}
"""Operator -> which of its arguments are indices. A compiled one that is out of range ends the process."""


def require_ranges(name: str, program: ExportedProgram, inputs: Sequence[Tensor]) -> None:
    """Raises BundleError if an input without `index_range` reaches an operator as an index."""
    origins: dict[str, set[str]] = {}
    for tensor, node_name in zip(inputs, program.graph_signature.user_inputs, strict=True):
        origins[str(node_name)] = set() if tensor.index_range else {tensor.name}
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        for position in _INDEXING.get(str(node.target), ()):
            if found := sorted(_origins_of(node.args[position], origins)):
                raise BundleError(
                    f"{name}: input {found[0]!r} indexes a table ({node.target}) and has no index_range; give it one: "
                    "an index out of range would end the server"
                )
        # Only integers index: what became a float has left the way to a table.
        is_integer = any(_is_integer(value) for value in _values(node.meta.get("val")))
        origins[node.name] = _origins_of((node.args, node.kwargs), origins) if is_integer else set()


def _values(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _is_integer(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_floating_point() and value.dtype != torch.bool


def _origins_of(arguments: Any, origins: dict[str, set[str]]) -> set[str]:
    nodes: list[torch.fx.Node] = []
    torch.fx.node.map_arg(arguments, nodes.append)
    return set().union(*(origins.get(node.name, set()) for node in nodes))


def ends_of(example: torch.Tensor, tensor: Tensor, *, top: bool) -> torch.Tensor:
    """Like `example`, with every index the greatest or least of its range; `example` itself if it is no index."""
    bounds = tensor.index_range
    if bounds is None:
        return example
    value = np.array(bounds.below) - 1 if top else bounds.min
    return to_torch(np.broadcast_to(value, tuple(example.shape)).astype(NUMPY[tensor.dtype]))


def try_ends(function: Any, examples: Sequence[torch.Tensor], inputs: Sequence[Tensor]) -> str:
    """Why `function` refuses the least or the greatest indices that the ranges allow, or ""."""
    for top in (False, True):
        given = [ends_of(example, tensor, top=top) for example, tensor in zip(examples, inputs, strict=True)]
        try:
            with torch.inference_mode():
                function(*given)
        except (IndexError, RuntimeError) as error:
            return f"the module refuses what its ranges allow: {error}"
    return ""
