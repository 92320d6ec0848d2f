"""Plugins of a bundle by the C interface of include/trunnion_bundle/plugin.h, and the checks of what they give."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trunnion_bundle.checks import RequestError, outside_of_range
from trunnion_bundle.errors import BundleError
from trunnion_bundle.host import machine
from trunnion_bundle.requests import NUMPY, Array, contiguous
from trunnion_bundle.steps import Step, plugin_outputs
from trunnion_bundle.tensors import BYTES, SAFETENSORS, Symbol, TensorType

ABI_VERSION = 1
_DTYPES = dict(zip((*SAFETENSORS, BYTES), (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14), strict=True))
_NAMES = {number: name for name, number in _DTYPES.items()}
_OK, _REFUSED = 0, 1
_LONGEST_ERROR = 1024
_MOST_DIMS = 8


class PluginError(BundleError):
    """A plugin failed, or gave what its step does not declare."""


class _Bytes(ctypes.Structure):
    _fields_ = (("data", ctypes.c_char_p), ("size", ctypes.c_uint64))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("dtype", ctypes.c_int),
        ("num_dims", ctypes.c_int32),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
    )


_Allocate = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_int64)
)


class _Call(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("num_inputs", ctypes.c_int32),
        ("num_outputs", ctypes.c_int32),
        ("inputs", ctypes.POINTER(_Tensor)),
        ("context", ctypes.c_void_p),
        ("allocate", _Allocate),
    )


_Error = (ctypes.c_char_p, ctypes.c_size_t)


class _Api(ctypes.Structure):
    _fields_ = (
        ("abi_version", ctypes.c_uint32),
        ("struct_size", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("open", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p), *_Error)),
        ("run", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Call), *_Error)),
        ("close", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    )


class Plugin:
    """The plugin of one step, opened; call it with the step's inputs.

    Args:
        kinds: types of the step's inputs.
        symbols: of the signature.

    Raises:
        BundleError: no library for this machine, another version of the interface, or a configuration that it refuses.
    """

    def __init__(self, step: Step, folder: Path, kinds: Sequence[TensorType], symbols: Mapping[str, Symbol]) -> None:
        self._kinds, self._symbols, self._is_request = kinds, symbols, step.scope == "request"
        self._outputs = plugin_outputs(step)
        path = _library(step.parameters["libraries"], folder)
        self._api = _api(path)
        self.title = f"{self._api.name.decode()} ({path.name})"
        self._plugin = ctypes.c_void_p()
        error = ctypes.create_string_buffer(_LONGEST_ERROR)
        configuration = step.parameters["configuration"].encode()
        if self._api.open(configuration, ctypes.byref(self._plugin), error, len(error)) != _OK:
            self._plugin = ctypes.c_void_p()
            raise BundleError(f"plugin {self.title} cannot be opened: {error.value.decode(errors='replace')}")

    def __del__(self) -> None:
        if getattr(self, "_plugin", None):
            self._api.close(self._plugin)

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """The step's outputs, each as it declares.

        Raises:
            RequestError: the plugin refuses the request.
            PluginError: it failed, or an output is not as declared.
        """
        given = [_Given(array, kind) for array, kind in zip(inputs, self._kinds, strict=True)]
        outputs = _Outputs(self._outputs, self._sizes(inputs), self._symbols)
        allocate = _Allocate(outputs.allocate)
        tensors = (_Tensor * len(given))(*(one.tensor for one in given))
        call = _Call(ctypes.sizeof(_Call), len(given), len(self._outputs), tensors, None, allocate)
        error = ctypes.create_string_buffer(_LONGEST_ERROR)
        status = self._api.run(self._plugin, ctypes.byref(call), error, len(error))
        reason = error.value.decode(errors="replace")
        if outputs.problem:
            raise PluginError(f"plugin {self.title}: {outputs.problem}")
        if status == _REFUSED and self._is_request:
            raise RequestError(f"plugin {self.title}: {reason}")
        if status != _OK:
            raise PluginError(f"plugin {self.title} failed: {reason}")
        return outputs.take(self.title)

    def _sizes(self, inputs: Sequence[Array]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for array, kind in zip(inputs, self._kinds, strict=True):
            sizes |= {dim: size for dim, size in zip(kind.dims, array.shape, strict=True) if isinstance(dim, str)}
        return sizes


class _Given:
    """An input as the interface has it; holds what it points to."""

    def __init__(self, array: Array, kind: TensorType) -> None:
        self._array = contiguous(array)
        self._dims = (ctypes.c_int64 * array.ndim)(*array.shape)
        data = self._array.ctypes.data
        if kind.dtype == BYTES:
            elements = list(self._array.reshape(-1))
            self._elements = (_Bytes * len(elements))(*((element, len(element)) for element in elements))
            data = ctypes.addressof(self._elements)
        self.tensor = _Tensor(_DTYPES[kind.dtype], array.ndim, self._dims, data)


class _Outputs:
    """The outputs that one call asks for."""

    def __init__(self, kinds: Sequence[TensorType], sizes: dict[str, int], symbols: Mapping[str, Symbol]) -> None:
        self._kinds, self._sizes, self._symbols = kinds, sizes, symbols
        self._made: dict[int, Array] = {}
        self.problem = ""
        """The first."""

    def allocate(self, _: Any, index: int, dtype: int, num_dims: int, dims: Any) -> int | None:
        problem = self._wrong(index, dtype, num_dims, dims)
        if problem:
            self.problem = self.problem or problem
            return None
        shape = tuple(dims[:num_dims])
        self._made[index] = np.empty(shape, NUMPY[self._kinds[index].dtype])
        return self._made[index].ctypes.data

    def _wrong(self, index: int, dtype: int, num_dims: int, dims: Any) -> str:
        if not 0 <= index < len(self._kinds):
            return f"output {index} is asked for, the step has {len(self._kinds)}"
        if index in self._made:
            return f"output {index} is asked for twice"
        if not 0 <= num_dims <= _MOST_DIMS:
            return f"output {index} has {num_dims} dims"
        kind, shape = self._kinds[index], list(dims[:num_dims])
        is_right = _NAMES.get(dtype) == kind.dtype and num_dims == len(kind.dims)
        if is_right and all(self._fits(dim, size) for dim, size in zip(kind.dims, shape, strict=True)):
            return ""
        known = "".join(f", {name} {size}" for name, size in sorted(self._sizes.items()))
        found = f"{_NAMES.get(dtype, f'dtype {dtype}')} [{', '.join(map(str, shape))}]"
        return f"output {index} is {found}, the step declares {kind.dtype} [{', '.join(map(str, kind.dims))}]{known}"

    def _fits(self, dim: int | str, size: int) -> bool:
        if isinstance(dim, int):
            return size == dim
        if dim in self._symbols and not self._symbols[dim].min <= size <= self._symbols[dim].max:
            return False
        return size >= 1 and self._sizes.setdefault(dim, size) == size

    def take(self, title: str) -> list[Array]:
        for index, kind in enumerate(self._kinds):
            if index not in self._made:
                raise PluginError(f"plugin {title} made no output {index}")
            if problem := outside_of_range(self._made[index], kind):
                raise PluginError(f"plugin {title}: output {index} {problem}")
        return [self._made[index] for index in range(len(self._kinds))]


def _library(libraries: Mapping[str, str], folder: Path) -> Path:
    name = f"linux-{machine()}"
    if name not in libraries:
        raise BundleError(f"the plugin has no library for {name}; it has: {', '.join(sorted(libraries))}")
    return (folder / libraries[name]).resolve()


def _api(path: Path) -> _Api:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BundleError(f"plugin {path.name} cannot be read: {error.strerror}") from None
    library = _open(content, path.name)
    try:
        get = library.trn_plugin_get_api
    except AttributeError:
        raise BundleError(f"plugin {path.name} exports no trn_plugin_get_api") from None
    get.restype = ctypes.POINTER(_Api)
    found = get()
    is_known = bool(found) and found.contents.abi_version == ABI_VERSION
    if not is_known or found.contents.struct_size != ctypes.sizeof(_Api):
        version = found.contents.abi_version if found else "none"
        raise BundleError(
            f"plugin {path.name} has version {version} of the plugins' interface, this program has {ABI_VERSION}"
        )
    api = found.contents
    if not (api.name and api.open and api.run and api.close):
        raise BundleError(f"plugin {path.name} has an interface with fields that are null")
    return api


@functools.cache
def _open(content: bytes, name: str) -> ctypes.CDLL:
    """A library of these bytes: the dynamic linker knows libraries by their path, and would give a replaced one."""
    file = os.memfd_create(name)
    try:
        with open(file, "wb", closefd=False) as copy:
            copy.write(content)
        # The descriptor stays open: its number is the library's name.
        return ctypes.CDLL(f"/proc/self/fd/{file}")
    except OSError as error:
        os.close(file)
        raise BundleError(f"plugin {name} cannot be loaded: {error}") from None
