"""TileLang kernels to cubins: TileLang makes CUDA source without a GPU, nvcc compiles it."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trunnion_cuda.kernels import block_fp8_gemm, mla_decode
from trunnion_cuda.kernels.launch import SM80, SM90A, SM100A, SM120A
from trunnion_cuda.user_cache import cache_folder

SHARED_MEMORY = {SM80: 163 << 10, SM90A: 227 << 10, SM100A: 227 << 10, SM120A: 99 << 10}
"""Bytes that one program may have (CUDA C++ Programming Guide, compute capabilities)."""


@dataclass(frozen=True, kw_only=True)
class TileCase:
    """One TileLang function of fixed shape and configuration."""

    name: str
    make: Callable[..., Any]
    args: tuple[Any, ...]
    architectures: tuple[str, ...]
    mma: str
    """The kind of tensor core instruction it must have on Hopper; elsewhere it is mma.sync."""
    shared: int
    """Bytes of its tiles in shared memory, which a launch asks for."""
    quick: bool = False


def tile_cases() -> tuple[TileCase, ...]:
    """All of them: each configuration where its shared memory suffices."""
    found = []
    for index, config in enumerate(block_fp8_gemm.CONFIGS):
        m, n, _, stages = settings = block_fp8_gemm.settings(config)
        shared = stages * block_fp8_gemm.GROUP * (m + n)
        found.append(
            TileCase(
                name=f"block_fp8_gemm_{m}x{n}", make=block_fp8_gemm.program, args=(4096, 7168, *settings),
                architectures=_with_memory(block_fp8_gemm.ARCHITECTURES, shared), mma="wgmma", shared=shared,
                quick=index == 0,
            )
        )  # fmt: skip
    for (index, config), splits in itertools.product(enumerate(mla_decode.CONFIGS), (1, 4)):
        heads, keys, *_ = settings = mla_decode.settings(config)
        num_heads, shared = 128 if heads > 16 else 16, mla_decode.shared_bytes(config, 512, 64)
        found.append(
            TileCase(
                name=f"mla_decode_{heads}x{keys}" + ("_split" if splits > 1 else ""), make=mla_decode.program,
                args=(num_heads, 512, 64, 16, 1, 0.1, splits, *settings),
                architectures=_with_memory(mla_decode.ARCHITECTURES, shared), shared=shared,
                mma="wgmma" if heads >= 64 else "mma.sync", quick=index == 0 and splits > 1,
            )
        )  # fmt: skip
    return tuple(found)


def _with_memory(architectures: tuple[str, ...], shared: int) -> tuple[str, ...]:
    return tuple(architecture for architecture in architectures if shared <= SHARED_MEMORY[architecture])


def compiled(case: TileCase, architecture: str) -> bytes:
    """The cubin, from the user's cache folder if kernel, arguments and compilers are the same as then.

    Raises:
        RuntimeError: nvcc refused the source.
    """
    import tilelang

    source = inspect.getsource(inspect.getmodule(case.make))
    nvcc = subprocess.run(("nvcc", "--version"), check=True, capture_output=True, text=True).stdout
    how = inspect.getsource(_cuda_source) + inspect.getsource(_compile)
    what = repr((source, case.args, architecture, tilelang.__version__, nvcc, how))
    kept = cache_folder() / "tile" / f"{hashlib.sha256(what.encode()).hexdigest()}.cubin"
    if kept.is_file():
        return kept.read_bytes()
    cubin = _compile(_cuda_source(case, architecture), architecture)
    kept.parent.mkdir(parents=True, exist_ok=True)
    partial = kept.with_suffix(f".{os.getpid()}")
    partial.write_bytes(cubin)
    partial.replace(kept)
    return cubin


def _cuda_source(case: TileCase, architecture: str) -> str:
    import tilelang
    from tilelang import tvm

    target = tvm.target.Target({"kind": "cuda", "arch": architecture})
    with target:
        return tilelang.lower(case.make(*case.args), target=target).kernel_source


def _compile(source: str, architecture: str) -> bytes:
    from tilelang.env import CUTLASS_INCLUDE_DIR, TILELANG_TEMPLATE_PATH

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernel.cu").write_text(source)
        number = architecture.removeprefix("sm_")
        command = (
            "nvcc", "-cubin", "-gencode", f"arch=compute_{number},code=sm_{number}", "-std=c++20", "-O3", "-w",
            "-I", TILELANG_TEMPLATE_PATH, "-I", CUTLASS_INCLUDE_DIR, "-o", "kernel.cubin", "kernel.cu",
        )  # fmt: skip
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if result.returncode != 0:
            raise RuntimeError(f"nvcc refused {architecture}: {result.stderr[-2000:]}")
        return (Path(folder) / "kernel.cubin").read_bytes()
