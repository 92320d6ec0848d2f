"""GEMM of FP8 with scales per block of 128, as DeepSeek-V3 stores its weights (arXiv:2412.19437, 3.3), in TileLang.

y = x w^T: activations have a scale per token and 128 features, weights one per 128 x 128. Each block of 128 features is
multiplied on the tensor cores and added to a float32 total times its scales. For T tokens, N x K weights: `2 T N K`
FLOPs, `T K + N K + 2 T N` bytes and the scales. With few tokens the weights' bandwidth is the limit, from some hundred
on the tensor cores; the scaling costs 2 FLOPs per 128 products, outside of them.

On sm_100a products are made in float16, at half of FP8's rate: FP8 there needs tensor memory, which TileLang 0.1.15
releases from a warp that does not wait for its readers.
"""

# No `from __future__ import annotations`: TileLang reads the annotations of a kernel as values.
import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

from trunnion.ops.quantised import TINY
from trunnion_cuda.kernels.launch import WITH_FP8, ceil_div
from trunnion_cuda.kernels.tile_kernels import Kernel, TileKernels, why_not_here
from trunnion_cuda.kernels.tuning import Config

ARCHITECTURES = WITH_FP8
OPERATOR = "block_fp8_linear"
"""What these kernels are an implementation of."""
GROUP = 128
"""Features that share a scale, and rows of a weight that do."""
CONFIGS = (
    Config({"M": 64, "N": 64}, num_warps=4, num_stages=3),
    Config({"M": 64, "N": 128}, num_warps=4, num_stages=3),
    Config({"M": 128, "N": 128}, num_warps=8, num_stages=3),
)
MIN_TOKENS = 65
"""Below, a tile of 64 rows holds them all: the weights' bandwidth is the limit, which no other tile moves."""


def program(
    num_columns: int,
    depth: int,
    block_m: int,
    block_n: int,
    threads: int,
    stages: int,
    *,
    operand: str = "float8_e4m3",
    result: str = "bfloat16",
    language: Any = None,
) -> Any:
    """The TileLang function `(x, x_scales, weight, weight_scales, out)` for any number of tokens.

    `language` is what kernels are written in, TileLang's for devices if None; with another, and other dtypes, the same
    kernel runs on the host.
    """
    T = language or importlib.import_module("tilelang.language")
    num_tokens = T.dynamic("num_tokens")
    num_groups, weight_groups = ceil_div(depth, GROUP), ceil_div(num_columns, GROUP)

    @T.prim_func
    def block_fp8_gemm(
        x: T.Tensor((num_tokens, depth), operand),
        x_scales: T.Tensor((num_tokens, num_groups), "float32"),
        weight: T.Tensor((num_columns, depth), operand),
        weight_scales: T.Tensor((weight_groups, num_groups), "float32"),
        out: T.Tensor((num_tokens, num_columns), result),
    ):
        with T.Kernel(T.ceildiv(num_columns, block_n), T.ceildiv(num_tokens, block_m), threads=threads) as (
            column,
            row,
        ):
            x_tile = T.alloc_shared((block_m, GROUP), operand)
            weight_tile = T.alloc_shared((block_n, GROUP), operand)
            part = T.alloc_fragment((block_m, block_n), "float32")
            total = T.alloc_fragment((block_m, block_n), "float32")
            scale = T.alloc_fragment((block_m,), "float32")
            T.clear(total)
            for group in T.Pipelined(num_groups, num_stages=stages):
                T.copy(x[row * block_m, group * GROUP], x_tile)
                T.copy(weight[column * block_n, group * GROUP], weight_tile)
                T.gemm(x_tile, weight_tile, part, transpose_B=True, clear_accum=True)
                for i in T.Parallel(block_m):
                    # Rows beyond the last are computed with another's scale, and not stored.
                    token = T.min(row * block_m + i, num_tokens - 1)
                    scale[i] = x_scales[token, group] * weight_scales[column * block_n // GROUP, group]
                for i, j in T.Parallel(block_m, block_n):
                    total[i, j] += part[i, j] * scale[i]
            for i, j in T.Parallel(block_m, block_n):
                if row * block_m + i < num_tokens and column * block_n + j < num_columns:
                    out[row * block_m + i, column * block_n + j] = T.cast(total[i, j], result)

    return block_fp8_gemm


def settings(config: Config) -> tuple[int, int, int, int]:
    """The last arguments of `program`."""
    return config["M"], config["N"], 32 * config.num_warps, config.num_stages


def compiled(num_columns: int, depth: int, config: Config) -> Kernel:
    """The kernel `(x, x_scales, weight, weight_scales, out)` for the current device; takes seconds, and needs nvcc."""
    import tilelang

    return tilelang.compile(program(num_columns, depth, *settings(config)), target="cuda")


class TileGemms(TileKernels):
    """The kernels of a process.

    Args:
        why_not: why there are none here, or None.
        compile: as `compiled`.
    """

    def __init__(self, why_not: str | None, compile: Callable[[int, int, Config], Kernel]) -> None:
        super().__init__(OPERATOR, "products", why_not)
        self._compile = compile

    def fits(self, config: Config, x: torch.Tensor, num_columns: int, *, may_compile: bool) -> bool:
        """Whether `run` may be asked for x [T, K] times N columns: not for what would compile, unless it may."""
        num_tokens, depth = x.shape
        if self.why_not is not None or num_tokens < max(MIN_TOKENS, config["M"] + 1) or depth % 16 or not x.is_cuda:
            return False
        return may_compile or (num_columns, depth, settings(config)) in self

    def run(
        self,
        config: Config,
        x: torch.Tensor,
        x_scales: torch.Tensor,
        weight: torch.Tensor,
        weight_scales: torch.Tensor,
        out: torch.Tensor,
        *,
        other: Callable[[], None],
    ) -> None:
        """x [T, K], weight [N, K] e4m3, x_scales [T, K / 128], weight_scales [N / 128, K / 128] -> out [T, N] bfloat16.

        All contiguous; the numbers of groups are rounded up. A kernel that was just compiled must agree with `other`,
        which writes the same product to out by other means.

        Raises:
            CannotRunError: see `TileKernels.kernel`.
        """
        num_columns, depth = weight.shape
        operands = x, x_scales, weight, weight_scales, out
        kernel = self.kernel(
            (num_columns, depth, settings(config)),
            lambda: self._compile(num_columns, depth, config),
            lambda made: _difference(lambda: made(*operands), other, out),
        )
        kernel(*operands)


def _difference(kernel: Callable[[], None], other: Callable[[], None], out: torch.Tensor) -> float:
    """Waits for the device."""
    other()
    wanted = out.float()
    out.fill_(float("nan"))
    kernel()
    return ((out.float() - wanted).norm() / wanted.norm().clamp(min=TINY)).item()


@functools.cache
def tile_gemms() -> TileGemms:
    """The one of a process, which has one device: operators' kernels are handed operands and nothing else."""
    return TileGemms(why_not_here(ARCHITECTURES), compiled)
