"""Launches of Triton kernels on the simulated device: interpreted, on the memory that their arguments point to.

A launch is work of the stream like any other: recorded in a capture with the addresses of its tensors, and run again by
each replay. The interpreter would read a host's tensor as well; a device faults on it, so that it is refused.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from cuda_simulator.capture import SimulatedFault
from cuda_simulator.torch_cuda import Simulation

VARIABLE = "TRITON_INTERPRET"


def choose_interpreter() -> None:
    """Have Triton interpret kernels in this process, and not in those that it starts; imports Triton.

    Raises:
        SimulatedFault: Triton was imported before, and will compile.
    """
    if "triton" in sys.modules:
        raise SimulatedFault("Triton was imported before the simulated device was installed: it would compile kernels")
    os.environ[VARIABLE] = "1"
    from triton import knobs

    knobs.runtime.interpret = True
    os.environ.pop(VARIABLE)


def install(simulation: Simulation) -> None:
    """Make the interpreter launch on the simulated device, for the rest of the process."""
    from triton.runtime import interpreter

    from cuda_simulator import triton_numerics

    triton_numerics.install()
    patched = functools.cache(interpreter._patch_lang)
    # Once, and not at each call: nothing is compiled in this process that would need the language as it was.
    interpreter._patch_lang = lambda fn: _Kept(patched(fn))
    interpreter._get_np_dtype = _remembering(interpreter._get_np_dtype)
    # Arguments are addresses already, and nothing is to be copied back.
    interpreter.GridExecutor._init_args_hst = lambda self, args, kwargs: (args, kwargs)
    interpreter.GridExecutor._restore_args_dev = lambda self, *args: None

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        if warmup:
            return
        name = self.fn.__name__
        given = [_argument(simulation, name, value) for value in args]
        named = {key: _argument(simulation, name, value) for key, value in kwargs.items()}
        executor = interpreter.GridExecutor(self.rewrite(), self.arg_names, grid, self.pre_run_hooks)
        simulation.launch(functools.partial(executor, *given, **named), in_capture=False)
        simulation.triton_launches[name] += 1

    interpreter.InterpretedFunction.run = run
    simulation.interprets_triton = True


def _remembering(find: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The interpreter's table of dtypes, which it builds anew at every look-up."""
    known: dict[str, Any] = {}

    def found(dtype: Any) -> Any:
        scalar = getattr(dtype, "element_ty", dtype)
        name = scalar.name
        if name not in known:
            known[name] = find(scalar)
        return known[name] if scalar is dtype or dtype.is_block() else find(dtype)

    return found


class _Kept:
    """A patch of the language that stays."""

    def __init__(self, scope: Any) -> None:
        self.scope = scope

    def restore(self) -> None: ...


class _Pointer:
    """What a kernel knows of a tensor: an address, and what lies there."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype = tensor.dtype
        self.shape = tensor.shape
        self._address = tensor.data_ptr()

    def data_ptr(self) -> int:
        return self._address


def _argument(simulation: Simulation, kernel: str, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if not value.is_cuda:
        raise SimulatedFault(f"{kernel} is given a pointer to {value.device} memory, which a device cannot read")
    if simulation.recording is not None:
        simulation.recording.note(value)
    return _Pointer(value)
