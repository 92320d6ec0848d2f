"""Run by the Python of an environment with a wheel's cubins: launches some through a driver that is a fake.

`python ahead_wheel.py` prints one line, or fails. Triton's compiler raises meanwhile: whoever enters it is found out.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.runtime.jit import JITFunction

from trunnion_cuda import ahead
from trunnion_cuda.ahead.cubins import Cubins
from trunnion_cuda.ahead.driver import Driver
from trunnion_cuda.kernels import norm

ARCHITECTURE, STREAM = "sm_90a", 0x5EED
SIZE, ROWS, EPS = 7168, 5, 1e-6
MACHINE_CUDA, SM_90 = 190, 90
"""Of an ELF file: its machine, and the architecture in the second byte of its flags (`cuobjdump -elf`)."""


class FakeDriver:
    """The library, compiled here, and what it has seen."""

    def __init__(self, folder: Path) -> None:
        library = folder / "libcuda.so.1"
        source = Path(__file__).resolve().parent / "fake_driver.c"
        subprocess.run(("cc", "-shared", "-fPIC", str(source), "-o", str(library)), check=True)
        self.library = ctypes.CDLL(str(library))
        self._results = {
            "name": ctypes.c_char_p,
            "dims": ctypes.POINTER(ctypes.c_uint * 7),
            "values": ctypes.POINTER(ctypes.c_longlong * 64),
            "image": ctypes.POINTER(ctypes.c_ubyte * 64),
            "stream": ctypes.c_void_p,
        }

    def expect(self, sizes: list[int]) -> None:
        self.library.fake_expect((ctypes.c_int * len(sizes))(*sizes), len(sizes))

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.library, f"fake_{name}")
        function.restype = self._results[name]
        found = function()
        return list(found.contents) if hasattr(found, "contents") else found

    def counts(self) -> list[int]:
        """Modules loaded, launches, the last limit of shared memory."""
        return [self.library.fake_count(what) for what in range(3)]


def refuse(*args: object, **options: object) -> None:
    raise AssertionError("Triton was asked for a kernel that has a cubin")


def check_norm(driver: FakeDriver, cubins: Cubins, rows: int) -> None:
    """One rms_norm: the kernel's own name, grid, block, pointers, integers and the two unused pointers."""
    x, weight = torch.randn(rows, SIZE, dtype=torch.bfloat16), torch.ones(SIZE, dtype=torch.bfloat16)
    driver.expect([8] * 7 + [4] * 10 + [8] * 2)
    before = driver.counts()[1]
    out = norm.rms_norm(x, weight, EPS, False)
    assert driver.counts()[1] == before + 1, "no launch reached the driver"
    assert driver.name == b"_norm_kernel" and driver.stream == STREAM, driver.name
    assert driver.dims[:6] == [rows, 1, 1, 128, 1, 1], driver.dims
    pointers = [x, x, x, weight, out, out, out]
    assert driver.values[:7] == [tensor.data_ptr() for tensor in pointers]
    stride = x.stride(0)
    assert driver.values[7:16] == [SIZE, rows, rows, 0, stride, 0, stride, 0, stride], driver.values[7:16]
    assert ctypes.c_float.from_buffer_copy(driver.values[16].to_bytes(8, "little")).value == ctypes.c_float(EPS).value
    assert driver.values[17:19] == [0, 0]


def main() -> int:
    triton.compile = JITFunction.run = refuse
    with tempfile.TemporaryDirectory() as folder:
        driver = FakeDriver(Path(folder))
        cubins = Cubins(ahead.FOLDER, Driver(driver.library), ARCHITECTURE, 227 << 10, lambda: STREAM)
        ahead.installed = lambda: cubins
        check_norm(driver, cubins, ROWS)
        image = bytes(driver.image)
        assert image[:4] == b"\x7fELF" and int.from_bytes(image[18:20], "little") == MACHINE_CUDA, image[:20]
        assert SM_90 in image[48:52], f"not for {ARCHITECTURE}: flags {image[48:52].hex()}"
        check_norm(driver, cubins, 3)
        assert driver.counts()[0] == 1, "a module was loaded twice"
        # A size that 16 does not divide has the same constants, and the general kernel.
        strided = torch.randn(3, SIZE - 7, dtype=torch.bfloat16)
        norm.rms_norm(strided, torch.ones(SIZE - 7, dtype=torch.bfloat16), EPS, False)
        assert driver.counts()[:2] == [2, 3] and not cubins.compiled
        try:
            norm.rms_norm(torch.randn(3, 40), torch.ones(40), EPS, False)
        except AssertionError:
            pass
        else:
            raise AssertionError("a launch without a cubin did not go to Triton")
        assert list(cubins.report().values()) == [f"no cubin for 1 of its launches on {ARCHITECTURE}"]
        print(f"{len(cubins)} cubins for {ARCHITECTURE}, {sum(cubins.launched.values())} launched without compiling")
    return 0


if __name__ == "__main__":
    sys.exit(main())
