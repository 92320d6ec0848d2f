"""The four calls of the CUDA driver that a compiled kernel needs, by ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

LIBRARY = "libcuda.so.1"
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES of CUfunction_attribute."""
STATIC_LIMIT = 48 << 10
"""Bytes of shared memory that a launch may ask for without leave (CUDA C++ Programming Guide, shared memory)."""
WARP = 32
C_TYPES = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "fp32": ctypes.c_float}
"""Triton's names of arguments that are passed by value."""


class DriverError(RuntimeError):
    """A call of the driver that failed, with its CUresult."""


class Driver:
    """Works in the calling thread's context, which torch has made.

    Args:
        library: the driver, loaded; the system's if None.
    """

    def __init__(self, library: ctypes.CDLL | None = None) -> None:
        self._library = ctypes.CDLL(LIBRARY) if library is None else library

    def load(self, image: bytes, name: str, shared: int) -> int:
        """A handle of the kernel `name` of a cubin, fit for launches with `shared` bytes; it is never unloaded."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), image)
        self._call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        if shared > STATIC_LIMIT:
            self._call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
        assert function.value is not None, f"the driver gave no function for {name}"
        return function.value

    def launch(
        self, function: int, grid: Sequence[int], num_warps: int, shared: int, stream: int, params: Sequence[object]
    ) -> None:
        """Launch with `params`, ctypes values in the kernel's order, which the driver copies before it returns."""
        addresses = (ctypes.c_void_p * len(params))(*(ctypes.addressof(param) for param in params))  # type: ignore[arg-type]
        x, y, z = (*grid, 1, 1)[:3]
        block = (WARP * num_warps, 1, 1)
        self._call(
            "cuLaunchKernel",
            ctypes.c_void_p(function),
            *map(ctypes.c_uint, (x, y, z, *block, shared)),
            ctypes.c_void_p(stream),
            addresses,
            None,
        )

    def _call(self, name: str, *args: object) -> None:
        code = getattr(self._library, name)(*args)
        if code != 0:
            raise DriverError(f"{name} failed with CUresult {code}")
