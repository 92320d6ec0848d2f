"""Puts the simulation into a process: before anything asks torch for a device, and before FlashInfer is imported."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import torch

from cuda_simulator import libraries, torch_cuda, triton_launches
from cuda_simulator.launches import run_launch

ARCHITECTURE = "9.0a"
"""What the host code of FlashInfer is compiled for: one architecture, whatever its kernels are never run on."""


def is_needed() -> bool:
    """Whether there is no device here that torch can use."""
    return not torch.cuda.is_available()


def install(*, interprets_triton: bool = True) -> torch_cuda.Simulation:
    """The simulated device of this process, made on the first call; its Triton interprets kernels, or has no device."""
    try:
        return torch_cuda.simulation()
    except LookupError:
        pass
    if interprets_triton:
        triton_launches.choose_interpreter()
    torch.ops.load_library(str(libraries.device_library()))
    simulation = torch_cuda.install(ctypes.CDLL(str(libraries.device_library())))
    _install_runtime(simulation)
    if interprets_triton:
        triton_launches.install(simulation)
    return simulation


def _install_runtime(simulation: torch_cuda.Simulation) -> None:
    """Load the runtime under the name that FlashInfer's modules look for, and say how those are compiled."""
    driver = ctypes.CDLL(str(libraries.driver_library()), mode=ctypes.RTLD_GLOBAL)
    runtime = ctypes.CDLL(str(libraries.runtime_library()), mode=ctypes.RTLD_GLOBAL)
    callback_type = ctypes.CFUNCTYPE(
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.POINTER(ctypes.c_uint),
        ctypes.POINTER(ctypes.c_uint),
        ctypes.POINTER(ctypes.c_void_p),
    )
    callback = callback_type(
        lambda name, library, grid, block, arguments: run_launch(simulation, name, library, grid, arguments)
    )
    copy = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
        lambda to, source, count: simulation.queue.add(lambda: ctypes.memmove(to, source, count))
    )
    wait = ctypes.CFUNCTYPE(None)(lambda: simulation.wait("cudaStreamSynchronize"))
    host_function = ctypes.CFUNCTYPE(None, ctypes.CFUNCTYPE(None, ctypes.c_void_p), ctypes.c_void_p)(
        lambda function, data: simulation.launch(lambda: function(data))
    )
    simulation.keep = callback, copy, wait, host_function
    runtime.sim_set_launch(callback)
    runtime.sim_set_copy(copy)
    runtime.sim_set_wait(wait)
    driver.sim_set_host_function(host_function)
    os.environ.update(
        FLASHINFER_CUDA_ARCH_LIST=ARCHITECTURE,
        FLASHINFER_WORKSPACE_BASE=str(libraries.modules_folder()),
        # Device code is compiled and never run: as little of it as can be.
        FLASHINFER_EXTRA_CUDAFLAGS="-Xptxas -O0 -Xcicc -O0",
        FLASHINFER_EXTRA_LDFLAGS=f"-L{libraries.link_folder()}",
        MAX_JOBS="1",
    )
    if "CUDA_HOME" not in os.environ and (home := toolkit_folder()) is not None:
        os.environ["CUDA_HOME"] = str(home)


def toolkit_folder() -> Path | None:
    """The folder of the CUDA toolkit whose nvcc is on PATH, which may be a script that only calls it."""
    if shutil.which("nvcc") is None:
        return None
    dry = subprocess.run(("nvcc", "--dryrun", "-x", "cu", os.devnull), capture_output=True, text=True, check=False)
    top = next((line.partition("TOP=")[2] for line in dry.stderr.splitlines() if line.startswith("#$ TOP=")), None)
    return None if top is None else Path(top.strip()).resolve()
