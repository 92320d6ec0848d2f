"""Tapes whose runs of native operators are played by the native library: no torch and no Python between them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trunnion_cpu.native import Native
from trunnion_cpu.tape import Call, Register, TapeRecorder, is_view, mapped, play_lines

RECORDED = frozenset(
    {
        "linear",
        "rms_norm",
        "fused_add_rms_norm",
        "silu_and_mul",
        "packed_linear",
        "packed_rows",
        "w8a8_linear",
        "grouped_int_linear",
        "tiled_int_linear",
        "tiled_grouped_linear",
        "tiled_w8a8_linear",
        "block_linear",
        "attend_step",
    }
)
"""Operators of `torch.ops.trunnion_cpu` that do all their work in calls which a program can make again."""


class Program:
    """Calls of native operators with the addresses that they were recorded with. What lies there must stay."""

    def __init__(self, native: Native) -> None:
        self._library = native.library
        self._handle = ctypes.c_void_p(self._library.trunnion_cpu_program_create())
        self.kept: list[Any] = []
        """What calls read."""

    def __len__(self) -> int:
        return int(self._library.trunnion_cpu_program_size(self._handle))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Native operators that this thread calls within are noted; their results stay the program's."""
        self._library.trunnion_cpu_program_record(self._handle)
        try:
            yield
        finally:
            self._library.trunnion_cpu_program_record(None)

    def take_spoilt(self) -> bool:
        """Whether a call since the last question cannot be made again."""
        return bool(self._library.trunnion_cpu_program_take_spoilt(self._handle))

    def forget_from(self, first: int) -> None:
        """Drop the calls from number `first` on."""
        self._library.trunnion_cpu_program_forget_from(self._handle, first)

    def run(self, first: int, last: int) -> None:
        """Make calls `first` to `last - 1` again.

        Raises:
            RuntimeError: an operator refuses what the step gives it.
        """
        error = self._library.trunnion_cpu_program_run(self._handle, first, last)
        if error is not None:
            raise RuntimeError(error.decode())

    def __del__(self) -> None:
        self._library.trunnion_cpu_program_destroy(self._handle)


class _Watch(TorchDispatchMode):
    """Sees whether all that runs is recorded in a program, or a view."""

    def __init__(self) -> None:
        super().__init__()
        self.is_recorded = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """As TapeRecorder's."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.is_recorded &= _is_recorded(func) or is_view(func, (args, kwargs), result)
        return result


def _is_recorded(function: Any) -> bool:
    if not isinstance(function, torch._ops.OpOverload):
        return False
    namespace, _, name = str(function.name()).partition("::")
    return namespace == "trunnion_cpu" and name in RECORDED


class _Lowering:
    """Plays a tape once more, line by line, and notes which lines became a program's calls.

    Results of a program's calls lie at fixed places: to other lines they are constants, like views of them. What other
    lines make and a program's calls read is copied to a fixed place before them.
    """

    def __init__(self, native: Native, arguments: Sequence[tuple[str, torch.Tensor]]) -> None:
        self._program = Program(native)
        self._fixed: dict[str, Any] = {}
        self._moving: dict[str, Any] = dict(arguments)
        self._copies: dict[str, torch.Tensor] = {}
        """Of the open run: what it reads that moves -> its fixed place."""
        self._first = 0
        self.lines: list[Call] = []

    def add(self, call: Call) -> None:
        before = len(self._program)
        if (_is_recorded(call.function) or call.is_group) and self._record(call):
            return
        self._program.forget_from(before)
        args, kwargs = self._given(call, self._value)
        moves = bool(call.reads & self._moving.keys())
        result = call.function(*args, **kwargs)
        is_operator = isinstance(call.function, torch._ops.OpOverload)
        if is_operator and not moves and is_view(call.function, (args, kwargs), result):
            self._fixed.update(_named(call, result))
            return
        self.end_run()
        args, kwargs = self._given(call, self._fixed_value)
        reads = call.reads & self._moving.keys()
        self.lines.append(Call(call.function, args, kwargs, call.outputs, call.is_sequence, reads))
        self._moving.update(_named(call, result))

    def drop(self, names: Sequence[str]) -> None:
        """They are read no more: a later call may have their places."""
        for name in names:
            self._fixed.pop(name, None)
            self._moving.pop(name, None)

    def end_run(self) -> None:
        """What is recorded since the last line becomes one."""
        last = len(self._program)
        if last > self._first:
            for name, place in self._copies.items():
                self.lines.append(Call(place.copy_, (Register(name),), {}, [f"x{len(self.lines)}"], False, {name}))
            bounds = (self._first, last)
            self.lines.append(Call(self._program.run, bounds, {}, [f"x{len(self.lines)}"], False, set()))
        self._first = last
        self._copies = {}

    def play(self, result: str, arguments: Sequence[str]) -> Callable[..., torch.Tensor]:
        self.end_run()
        return play_lines(self.lines, arguments, self._fixed.get(result, Register(result)))

    def _record(self, call: Call) -> bool:
        copies = dict(self._copies)
        for name in sorted(call.reads & self._moving.keys() - copies.keys()):
            copies[name] = self._moving[name].clone(memory_format=torch.contiguous_format)
        args, kwargs = self._given(call, lambda value: self._value(value, copies))
        watch = _Watch()
        with self._program.recording(), watch:
            result = call.function(*args, **kwargs)
        if self._program.take_spoilt() or not watch.is_recorded:
            return False
        self._copies = copies
        self._program.kept += [call.function, call.args, call.kwargs, *copies.values()]
        self._fixed.update(_named(call, result))
        return True

    @staticmethod
    def _given(call: Call, of: Callable[[Any], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return mapped(of, call.args), {key: mapped(of, value) for key, value in call.kwargs.items()}

    def _value(self, value: Any, copies: dict[str, torch.Tensor] | None = None) -> Any:
        if not isinstance(value, Register):
            return value
        if copies is not None and value.name in copies:
            return copies[value.name]
        return self._fixed[value.name] if value.name in self._fixed else self._moving[value.name]

    def _fixed_value(self, value: Any) -> Any:
        return self._fixed.get(value.name, value) if isinstance(value, Register) else value


def lowered(recorder: TapeRecorder, result: torch.Tensor, native: Native) -> Callable[..., torch.Tensor]:
    """As `recorder.play(result)`, with runs of native operators as programs. Results lie where they lay before.

    The threads of a playback are those of its time. Must be called in the state that the tape was recorded in: it is
    played once.
    """
    names = [f"a{index}" for index in range(len(recorder.arguments))]
    lowering = _Lowering(native, list(zip(names, recorder.arguments, strict=True)))
    name = recorder.name_of(result)
    for call, dead in recorder.with_last_uses(name):
        lowering.add(call)
        lowering.drop(dead)
    return lowering.play(name, names)


def _named(call: Call, result: Any) -> dict[str, Any]:
    return dict(zip(call.outputs, result if call.is_sequence else [result], strict=True))
