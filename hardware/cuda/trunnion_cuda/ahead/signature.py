"""What a launch is compiled for: a kernel, the types of its arguments, what is known of their values, constants."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

ONE, DIVISIBLE, ANY = "1", "16", ""
"""What a compiled kernel may take for granted of an argument: its value, that 16 divides it, or nothing."""
TYPES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "i1",
}
"""Triton's names of a pointer's elements."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Of a launch, or of a kernel that was compiled for launches like it; `known` is what of each argument is known."""

    kernel: str
    """`module:function`."""
    types: tuple[str, ...]
    """Of the arguments that are no constants: `*bf16`, `i32`, `i64`, `fp32`."""
    known: tuple[str, ...]
    constants: tuple[tuple[str, Any], ...]
    options: tuple[tuple[str, int], ...]
    """What the compiler is told: warps and stages."""

    @property
    def family(self) -> tuple[Any, ...]:
        """Everything but what is known of values."""
        return self.kernel, self.types, self.constants, self.options

    def general(self) -> Signature:
        """The kernel that takes only pointers for aligned: as fast as it can be for any sizes and strides."""
        known = tuple(
            DIVISIBLE if type.startswith("*") and fact == DIVISIBLE else ANY
            for type, fact in zip(self.types, self.known, strict=True)
        )
        return Signature(self.kernel, self.types, known, self.constants, self.options)

    def covers(self, launch: Signature) -> bool:
        """Whether what was compiled for this may run `launch`, of the same family."""
        return all(need in (ANY, fact) for need, fact in zip(self.known, launch.known, strict=True))

    def as_json(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel,
            "types": list(self.types),
            "known": list(self.known),
            "constants": dict(self.constants),
            "options": dict(self.options),
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Signature:
        return cls(
            row["kernel"],
            tuple(row["types"]),
            tuple(row["known"]),
            tuple(sorted(row["constants"].items())),
            tuple(sorted(row["options"].items())),
        )

    def __str__(self) -> str:
        return json.dumps(self.as_json())


def signature_of(kernel: Any, args: Sequence[Any], constants: Mapping[str, Any]) -> Signature:
    """The signature of `kernel[grid](*args, **constants)`, as Triton would specialise it.

    Raises:
        TypeError: an argument that is neither a tensor of a known dtype nor a number.
    """
    described = [_described(arg) for arg in args]
    names = set(kernel.arg_names)
    return Signature(
        kernel=f"{kernel.__module__}:{kernel.__name__}",
        types=tuple(type for type, _ in described),
        known=tuple(fact for _, fact in described),
        constants=tuple(sorted((name, value) for name, value in constants.items() if name in names)),
        options=tuple(sorted((name, value) for name, value in constants.items() if name not in names)),
    )


def _described(arg: Any) -> tuple[str, str]:
    if isinstance(arg, torch.Tensor) and arg.dtype in TYPES:
        return f"*{TYPES[arg.dtype]}", ANY if arg.data_ptr() % 16 else DIVISIBLE
    if isinstance(arg, int) and not isinstance(arg, bool):
        if arg == 1:
            return "i32", ONE
        return "i32" if -(1 << 31) <= arg < 1 << 31 else "i64", ANY if arg % 16 else DIVISIBLE
    if isinstance(arg, float):
        return "fp32", ANY
    raise TypeError(f"an argument {arg!r} of a kernel that is compiled ahead")
