"""The simulated device as Python sees it: runs the rules that its library calls, and is what tests ask and command."""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ascend_simulator.rules import Rule

WORDS = ctypes.POINTER(ctypes.c_int64)
RUN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, WORDS, ctypes.c_int64)
CHECK = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_char_p, WORDS, ctypes.c_int64)
REFUSED = -1


class Simulation:
    """One device: what ran on it, and when it runs what."""

    def __init__(self, library: ctypes.CDLL, rules: Mapping[str, Rule]) -> None:
        self.library = library
        self.rules = rules
        self.calls: Counter[str] = Counter()
        """Operator -> times that it ran, replays included."""
        self.seconds = 0.0
        """Of the host's, that rules and checks took: no device would take them."""
        library.sim_count.restype = ctypes.c_int64
        # ctypes frees what nobody holds.
        self._callbacks = RUN(self._timed(self._run)), CHECK(self._timed(self._check))
        library.sim_set_rules(*self._callbacks)

    def count(self, name: str) -> int:
        """`device_allocations`, `launches`, `replays`, `updates` or `waits` so far.

        Raises:
            ValueError: it counts nothing of that name.
        """
        found = int(self.library.sim_count(name.encode()))
        if found < 0:
            raise ValueError(f"the simulation counts nothing named {name!r}")
        return found

    @contextmanager
    def late(self) -> Iterator[None]:
        """Within, nothing runs before somebody waits for it, and then only what that wait needs."""
        self.library.sim_hold_all(1)
        try:
            yield
        finally:
            self.library.sim_hold_all(0)

    @contextmanager
    def held(self, stream: Any) -> Iterator[None]:
        """Within, work of one `torch.npu.Stream` does not run before somebody waits for it."""
        handle = ctypes.c_void_p(stream.npu_stream)
        self.library.sim_hold(handle, 1)
        try:
            yield
        finally:
            self.library.sim_hold(handle, 0)

    def set_sizes(self, handle: int, sizes: tuple[int, ...]) -> None:
        """Tell whoever holds the handle of a tensor what sizes its contents turned out to have."""
        array = (ctypes.c_int64 * len(sizes))(*sizes)
        self.library.sim_set_sizes(ctypes.c_void_p(handle), array, ctypes.c_uint64(len(sizes)))

    def _timed(self, function: Callable[[bytes, Any, int], int]) -> Callable[[bytes, Any, int], int]:
        def timed(name: bytes, words: Any, count: int) -> int:
            started = time.perf_counter()
            try:
                return function(name, words, count)
            finally:
                self.seconds += time.perf_counter() - started

        return timed

    def _run(self, name: bytes, words: Any, count: int) -> int:
        rule = self.rules[name.decode()]
        self.calls[rule.name] += 1
        try:
            with _plain_torch():
                rule.function(*rule.arguments(words[:count]))
        except Exception as error:
            self._say(rule.name, error)
            return REFUSED
        return 0

    def _check(self, name: bytes, words: Any, count: int) -> int:
        rule = self.rules[name.decode()]
        assert rule.check is not None, "the library asks only for checks that there are"
        try:
            with _plain_torch():
                return rule.check(*rule.arguments(words[:count]))
        except Exception as error:
            self._say(rule.name, error)
            return REFUSED

    def _say(self, name: str, error: Exception) -> None:
        self.library.sim_set_message(f"{name}: {error}".encode())


@contextmanager
def _plain_torch() -> Iterator[None]:
    """Modes of whoever waits for the device are no part of what the device does."""
    modes = _disable_current_modes() if torch._C._len_torch_dispatch_stack() else nullcontext()
    with modes, torch._C.DisableTorchFunction():
        yield
