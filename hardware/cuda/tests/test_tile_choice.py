"""What products of FP8 blocks run on: TileLang's kernel where it was timed to be faster, compiled in `warm_up`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conformance.tiny_llama import write_tiny_llama

from trunnion.config import ExecutorConfig
from trunnion.contract import Limits
from trunnion.ops import quantised, registry
from trunnion.runner.model_executor import ModelExecutor
from trunnion_cuda.device_clock import time_call
from trunnion_cuda.hardware import CudaHardware
from trunnion_cuda.kernels import block_fp8_gemm, mla_decode, quantised_linear, tile_kernels
from trunnion_cuda.kernels.block_fp8_gemm import TileGemms, tile_gemms
from trunnion_cuda.kernels.tuning import TUNER, Budget, CannotRunError, Config

TOKENS, COLUMNS, DEPTH = 130, 144, 160
TILELANG, TRITON = "block_fp8_linear on TileLang", "block_fp8_linear on Triton"


class Tiles(TileGemms):
    """Compiles to torch; counts what it compiles."""

    def __init__(self, why_not: str | None = None) -> None:
        super().__init__(why_not, self._torch)
        self.made: list[tuple[int, int, int]] = []

    def _torch(self, num_columns: int, depth: int, config: Config) -> Callable[..., None]:
        self.made.append((num_columns, depth, config["M"]))

        def kernel(x: torch.Tensor, x_scales: Any, weight: torch.Tensor, weight_scales: Any, out: torch.Tensor) -> None:
            assert x.shape[1] == depth and weight.shape == (num_columns, depth) and out.dtype == torch.bfloat16
            spread = x_scales.repeat_interleave(128, 1)[:, :depth]
            out.copy_(x.float() * spread @ quantised.dequantise_blocks(weight, weight_scales, 128, 128).T)

        return kernel


@pytest.fixture(autouse=True)
def forgets_choices() -> Iterator[None]:
    CudaHardware().initialize(0)
    TUNER.clear()
    yield
    TUNER.clear()


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> Tiles:
    found = Tiles()
    monkeypatch.setattr(quantised_linear, "tile_gemms", lambda: found)
    return found


def product(
    num_tokens: int = TOKENS, dtype: torch.dtype = torch.bfloat16, bias: bool = False, block: int = 128
) -> None:
    """One call of the operator, which must be what the reference computes."""
    torch.manual_seed(0)
    x, weight = torch.randn(num_tokens, DEPTH, dtype=dtype), torch.randn(COLUMNS, DEPTH).to(torch.float8_e4m3fn)
    scale = torch.rand(-(-COLUMNS // block), -(-DEPTH // block)) + 0.1
    args = x, weight, scale, torch.randn(COLUMNS, dtype=dtype) if bias else None
    got = torch.ops.trunnion.block_fp8_linear(*(arg if arg is None else arg.cuda() for arg in args), block, block)
    wanted = registry.OPERATORS.reference("block_fp8_linear")(*args, block, block)
    torch.testing.assert_close(got.cpu(), wanted, rtol=2e-2, atol=2e-2)


def tuned(call: Callable[[], None], prefers_tiles: bool = True) -> None:
    """Call once as `warm_up` does, on a device where one implementation is the faster."""
    timed: list[float] = []

    def measure(run: Callable[[], Any]) -> float:
        run()
        timed.append(len(timed) if not prefers_tiles else -len(timed))
        return timed[-1]

    with TUNER.tuning(measure, Budget(max_seconds=math.inf, max_timings=100), lambda: False):
        call()


def test_the_faster_one_runs(tiles: Tiles) -> None:
    tuned(product)
    assert tiles.made == [(COLUMNS, DEPTH, 64), (COLUMNS, DEPTH, 64), (COLUMNS, DEPTH, 128)]
    assert tiles.report() == {TILELANG: "1 kinds of products"}
    product()
    # Another size runs with the nearest one's choice, whose kernel takes any number of tokens.
    product(300)
    assert len(tiles.made) == 3 and tiles.report() == {TILELANG: "2 kinds of products"}


def test_triton_runs_where_it_is_faster(tiles: Tiles) -> None:
    tuned(product, prefers_tiles=False)
    assert len(tiles.made) == 3 and tiles.report() == {TRITON: "1 kinds of products"}


def test_a_step_compiles_nothing(tiles: Tiles) -> None:
    """Not even for a choice that an earlier start has made."""
    key = str(torch.float8_e4m3fn), COLUMNS, DEPTH, 128, 128, 256
    TUNER.take([(quantised_linear.EITHER.name, key, len(quantised_linear.EITHER.configs) - 1)])
    product()
    assert tiles.made == [] and tiles.report() == {TRITON: "1 kinds of products"}
    with TUNER.tuning(lambda run: math.inf, Budget(max_seconds=0, max_timings=0), lambda: False):
        product()
    assert tiles.made == [(COLUMNS, DEPTH, 128)] and tiles.report() == {TILELANG: "1 kinds of products"}


@pytest.mark.parametrize(
    "arguments",
    [{"num_tokens": 64}, {"bias": True}, {"dtype": torch.float32}, {"block": 32}],
    ids=["few-tokens", "bias", "float32", "blocks-of-32"],
)
def test_what_it_cannot_take_is_not_timed_on_it(tiles: Tiles, arguments: dict[str, Any]) -> None:
    tuned(lambda: product(**arguments))
    assert tiles.made == [] and TILELANG not in tiles.report()


def test_a_compiler_that_fails_is_reported_and_not_asked_again(tiles: Tiles, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(*args: object) -> Callable[..., None]:
        asked.append(args)
        raise OSError("nvcc has no header\nof that name")

    monkeypatch.setattr(tiles, "_compile", refuse)

    def measure(run: Callable[[], Any]) -> float:
        try:
            run()
        except CannotRunError:
            # Nothing is left to time.
            return time_call(run)
        return 1.0

    with TUNER.tuning(measure, Budget(max_seconds=math.inf, max_timings=100), lambda: False):
        product()
        product(300)
    assert len(asked) == 1
    assert tiles.report() == {
        TRITON: "2 kinds of products",
        TILELANG: "never: not compiled, or not launched: OSError: nvcc has no header",
    }


@pytest.mark.parametrize(
    "wrong", [lambda *operands: None, lambda *operands: operands[-1].fill_(1.0)], ids=["nothing", "ones"]
)
def test_a_kernel_that_computes_something_else_is_not_chosen(
    tiles: Tiles, monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., Any]
) -> None:
    """It would be the fastest: a launch that goes nowhere takes no time."""
    monkeypatch.setattr(tiles, "_compile", lambda *args: wrong)

    def measure(run: Callable[[], Any]) -> float:
        try:
            run()
        except CannotRunError:
            return math.inf
        return -1.0 if tiles.report().get(TILELANG) else 0.0

    with TUNER.tuning(measure, Budget(max_seconds=math.inf, max_timings=100), lambda: False):
        product()
    assert tiles.report()[TRITON] == "1 kinds of products"
    assert tiles.report()[TILELANG].startswith("never: its result differs from Triton's by ")


def test_warm_up_says_what_a_simulated_device_runs_on(tmp_path: Path) -> None:
    """And why not on the other: a process's products up to then."""
    pytest.importorskip("cuda_simulator").simulation()
    tile_gemms.cache_clear()
    product()
    limits = Limits(max_num_tokens=2, max_num_seqs=1, max_model_len=8, max_logits_rows=1, block_size=4)
    config = ExecutorConfig(model=write_tiny_llama(tmp_path), hardware="cuda", limits=limits)
    executor = ModelExecutor.create(config, CudaHardware())
    executor.allocate_kv_cache([4])
    report = executor.warm_up()
    reason = "never: the device 'simulated' runs no compiled kernels, and TileLang has no interpreter"
    found = {name: what for name, what in report.implementations.items() if name.startswith("block_fp8_linear")}
    assert found == {TRITON: "1 kinds of products", TILELANG: reason}
    assert tile_gemms().why_not == reason.removeprefix("never: ")


def test_an_older_device_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_kernels.environment, "why_no_tilelang", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 9))
    assert (
        tile_kernels.why_not_here(block_fp8_gemm.ARCHITECTURES)
        == "compute capability 8.9; it is written for sm_90a, sm_100a, sm_120a"
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert tile_kernels.why_not_here(block_fp8_gemm.ARCHITECTURES) is None
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 6))
    assert tile_kernels.why_not_here(mla_decode.ARCHITECTURES) is None
