"""A device that is not there: Triton asks it for its architecture, and compiles for that."""

from __future__ import annotations

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from trunnion_cuda.kernels.launch import SM80, SM90A, SM100A, SM120A, Launch

CAPABILITIES = {SM80: 80, SM90A: 90, SM100A: 100, SM120A: 120}


class AbsentDevice(DriverBase):
    """Made active in place of CUDA's driver, in a process that only compiles: `driver.set_active(AbsentDevice())`."""

    def __init__(self) -> None:
        super().__init__()
        self.capability = CAPABILITIES[SM80]

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_current_device(self) -> int:
        # Triton keeps what it has compiled by device.
        return self.capability

    def set_current_device(self, device: int) -> None:
        assert device == self.capability, "there is no other device"

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_benchmarker(self) -> None:
        raise RuntimeError("kernels cannot be timed on a device that is absent")


def compiled(device: AbsentDevice, launch: Launch, architecture: str) -> tuple[bytes, str, int]:
    """Compile a recorded launch for `architecture` -> (cubin, PTX, bytes of shared memory that a launch asks for)."""
    device.capability = CAPABILITIES[architecture]
    kernel = launch.kernel.warmup(*launch.args, grid=launch.grid, **launch.constants)
    return kernel.asm["cubin"], kernel.asm["ptx"], kernel.metadata.shared
