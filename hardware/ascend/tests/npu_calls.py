"""Finds calls of torch_npu's operators in source files, and checks them against the schemas that it registers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

NAMESPACES = ("npu", "atb")


@dataclass(frozen=True)
class NpuCall:
    """One call in a source file: `torch_npu.name(...)`, `torch.ops.npu.name(...)`, or an overload of these."""

    path: Path
    line: int
    name: str
    overload: str
    positional: int
    keywords: tuple[str, ...]
    is_partial: bool
    """Whether arguments are spread (`*inputs`, `**options`), so that what is written is not all."""

    def __str__(self) -> str:
        return f"{self.path.name}:{self.line} {self.name}"


def calls_in(path: Path) -> Iterator[NpuCall]:
    """Every call in a file that names an operator of torch_npu in full."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and (found := _operator(ast.unparse(node.func))):
            name, overload = found
            spread = any(isinstance(argument, ast.Starred) for argument in node.args)
            names = tuple(keyword.arg for keyword in node.keywords if keyword.arg is not None)
            yield NpuCall(
                path,
                node.lineno,
                name,
                overload,
                sum(not isinstance(argument, ast.Starred) for argument in node.args),
                names,
                spread or len(names) < len(node.keywords),
            )


def _operator(called: str) -> tuple[str, str] | None:
    """Name and overload; None if it is no operator."""
    for prefix in ("torch_npu.", *(f"torch.ops.{namespace}." for namespace in NAMESPACES)):
        name, _, overload = called.removeprefix(prefix).partition(".")
        if called.startswith(prefix) and schemas(name):
            return name, overload
    return None


def schemas(name: str) -> list[Any]:
    """Schemas of all overloads of an operator, in torch_npu's namespaces."""
    return [
        schema for namespace in NAMESPACES for schema in torch._C._jit_get_schemas_for_operator(f"{namespace}::{name}")
    ]


def why_not(call: NpuCall, schema: Any) -> str | None:
    """Why a call does not fit a schema; None if it does."""
    arguments = {argument.name: argument for argument in schema.arguments}
    names = list(arguments)
    # What Python calls `out` is every argument that is written, in the schema of an `out` overload.
    unknown = [name for name in call.keywords if name not in arguments and not (name == "out" and schema.overload_name)]
    if unknown:
        return f"{', '.join(unknown)} is none of {', '.join(names)}"
    free = [name for name in names if not arguments[name].kwarg_only]
    if call.positional > len(free):
        return f"{call.positional} arguments by place, {len(free)} can be"
    given = {*names[: call.positional], *call.keywords}
    missing = [
        name
        for name, argument in arguments.items()
        if name not in given and not argument.has_default_value() and not (argument.is_out and "out" in call.keywords)
    ]
    if missing and not call.is_partial:
        return f"{', '.join(missing)} is not given"
    return None


def misfits(path: Path) -> Iterator[str]:
    """A line for each call of a file that fits no schema of its operator."""
    for call in calls_in(path):
        reasons = [why_not(call, schema) for schema in schemas(call.name)]
        if all(reasons):
            yield f"{call}: {'; or '.join(reason for reason in reasons if reason)}"
