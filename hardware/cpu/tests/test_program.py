"""Programs: what is played without torch gives what the tape's lines give, and what cannot be recorded stays a line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import gguf
import numpy as np
import pytest
import torch

from trunnion.interfaces.break_points import BreakKind, BreakPoints
from trunnion.interfaces.quantization import BlockType
from trunnion_cpu.block_weights import in_tiles
from trunnion_cpu.hardware import CpuHardware
from trunnion_cpu.kernels.native import direct
from trunnion_cpu.native import Native, native
from trunnion_cpu.program import Program, lowered
from trunnion_cpu.tape import TapeRecorder
from trunnion_cpu.tiled_w8a8 import byte_tiles_of

FOUND = native()
pytestmark = [pytest.mark.skipif(not isinstance(FOUND, Native), reason="no native operators")]
HIDDEN, INNER = 64, 96
OPERATORS = torch.ops.trunnion_cpu
PRODUCTS = (
    "packed_linear",
    "w8a8_linear",
    "w8a8_linear, static",
    "tiled_w8a8_linear",
    "tiled_w8a8_linear, static",
    "grouped_int_linear",
    "tiled_int_linear",
    "tiled_grouped_linear",
    "block_linear, 8 bits",
    "block_linear, 4 bits",
)

Play = Callable[..., torch.Tensor]


def _record(function: Play, *arguments: torch.Tensor) -> tuple[Play, list[str]]:
    """`function` as a program, and the functions that its lines call."""
    assert isinstance(FOUND, Native)
    CpuHardware().initialize(0)
    recorder = TapeRecorder(arguments=arguments, direct=direct)
    breaks = BreakPoints()
    breaks.attach(recorder)
    with torch.inference_mode():
        with recorder:
            result = function(*arguments) if arguments else function(breaks)
        breaks.detach()
        play = lowered(recorder, result, FOUND)
    return play, called(play)


def called(play: Play) -> list[str]:
    """Names of the functions that a playback calls, in turn."""
    found = [play.__globals__.get(name) for name in play.__code__.co_names]
    return [getattr(value, "__name__", str(value)) for value in found if callable(value)]


class Layers:
    """Layers of a decoder without attention: norms, products, residuals that live long."""

    def __init__(self, count: int, dtype: torch.dtype) -> None:
        def weight(*shape: int) -> torch.Tensor:
            return (torch.randn(shape) / shape[-1] ** 0.5).to(dtype)

        self.scale = torch.randn(HIDDEN).to(dtype)
        self.layers = [(weight(2 * INNER, HIDDEN), weight(HIDDEN, INNER), weight(HIDDEN)) for _ in range(count)]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        residual, normed = x, torch.ops.trunnion.rms_norm(x, self.scale, 1e-6, False)
        for up, down, bias in self.layers:
            gated = torch.ops.trunnion.silu_and_mul(OPERATORS.linear(normed, up, None))
            given = OPERATORS.linear(gated, down, bias)
            normed, residual = torch.ops.trunnion.fused_add_rms_norm(given, residual, self.scale, 1e-6, False)
        return residual.unflatten(-1, (2, HIDDEN // 2)).flatten(-2)


@pytest.mark.usefixtures("isa", "inference")
@pytest.mark.parametrize("rows", [1, 3, 8, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_program_gives_what_the_operators_give(dtype: torch.dtype, rows: int, threads: int) -> None:
    """Views are no lines, the places of results are taken again, and inputs are read anew."""
    forward, x = Layers(5, dtype), torch.randn(rows, HIDDEN).to(dtype)
    recorded = TapeRecorder(direct=direct)
    assert isinstance(FOUND, Native)
    CpuHardware().initialize(0)
    with recorded:
        result = forward(x)
    play = lowered(recorded, result, FOUND)
    assert called(play) == ["run"]
    for _ in range(3):
        x.copy_(torch.randn(rows, HIDDEN))
        torch.testing.assert_close(play(), forward(x), rtol=0, atol=0)


def _codes(*shape: int) -> torch.Tensor:
    return torch.randint(256, shape, dtype=torch.uint8)


def _products() -> dict[str, tuple[Play, torch.Tensor, torch.Tensor]]:
    """Each operator on weights of 32 by HIDDEN, something that a reload writes anew, and what it writes."""
    dense = torch.randn(32, HIDDEN).bfloat16()
    ints = torch.randint(-128, 128, (32, HIDDEN), dtype=torch.int8)
    scales, given = torch.rand(32, 1) / HIDDEN, torch.full((1,), 0.02)
    packed, tiles = OPERATORS.pack_linear(dense), byte_tiles_of(ints)
    groups = (torch.rand(2, 2, 16) / HIDDEN).bfloat16()
    rows = (torch.rand(32, 2) / HIDDEN).bfloat16()
    eights, fours = ([_blocks(kind, seed) for seed in (3, 4)] for kind in (BlockType.Q8_0, BlockType.Q4_0))
    return {
        "packed_linear": (lambda x: OPERATORS.packed_linear(x, packed, None), packed, packed.flip(0)),
        "w8a8_linear": (lambda x: OPERATORS.w8a8_linear(x, ints, scales, None, None), scales, scales.flip(0)),
        "w8a8_linear, static": (lambda x: OPERATORS.w8a8_linear(x, ints, scales, given, None), given, given * 2),
        "tiled_w8a8_linear": (
            lambda x: OPERATORS.tiled_w8a8_linear(x, tiles, scales, None, None),
            scales,
            scales.flip(0),
        ),
        "tiled_w8a8_linear, static": (
            lambda x: OPERATORS.tiled_w8a8_linear(x, tiles, scales, given, None),
            given,
            given * 2,
        ),
        "grouped_int_linear": (partial(_grouped, _codes(32, HIDDEN // 2), rows), rows, rows.flip(0)),
        "tiled_int_linear": (partial(_tiled_int, _codes(2, 8 * HIDDEN), groups), groups, groups.flip(0)),
        "tiled_grouped_linear": (partial(_tiled_groups, _codes(2, 8 * HIDDEN), groups), groups, groups.flip(0)),
        "block_linear, 8 bits": (lambda x: OPERATORS.block_linear(x, eights[0], None, 8, False, 32), *eights),
        "block_linear, 4 bits": (lambda x: OPERATORS.block_linear(x, fours[0], None, 4, False, 32), *fours),
    }


def _grouped(codes: torch.Tensor, scales: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return OPERATORS.grouped_int_linear(x, codes, scales, None, None, 4, 32)


def _tiled_int(codes: torch.Tensor, scales: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return OPERATORS.tiled_int_linear(x, codes, scales, None, None, None, 4, 32, 32)


def _tiled_groups(codes: torch.Tensor, scales: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return OPERATORS.tiled_grouped_linear(x, codes, scales, None, None, 4, 32, 32)


def _blocks(kind: BlockType, seed: int) -> torch.Tensor:
    values = np.random.default_rng(seed).standard_normal((32, HIDDEN), dtype=np.float32)
    return in_tiles(torch.from_numpy(gguf.quantize(values, gguf.GGMLQuantizationType[kind.value])), kind)


@pytest.mark.usefixtures("isa", "inference")
@pytest.mark.parametrize("rows", [1, 9, 40])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_every_layout_are_calls_of_a_program(name: str, rows: int, threads: int) -> None:
    """Rows come anew, and so do scales: what a reload writes is read when the program is played."""
    product, reloaded, fresh = _products()[name]
    x = torch.randn(rows, HIDDEN).bfloat16()
    play, lines = _record(lambda breaks: product(x))
    assert lines == ["run"]
    for _ in range(2):
        x.copy_(torch.randn(rows, HIDDEN))
        torch.testing.assert_close(play(), product(x), rtol=0, atol=0)
    before = play().clone()
    reloaded.copy_(fresh)
    assert not torch.equal(play(), before)
    torch.testing.assert_close(play(), product(x), rtol=0, atol=0)


def test_threads_are_those_of_the_playback() -> None:
    forward, x = Layers(2, torch.float32), torch.randn(4, HIDDEN)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        play, _ = _record(lambda breaks: forward(x))
        for count in (3, 1, 2):
            torch.set_num_threads(count)
            with torch.inference_mode():
                torch.testing.assert_close(play(), forward(x))
    finally:
        torch.set_num_threads(before)


def test_what_moves_is_copied_before_the_run_that_reads_it() -> None:
    """Arguments, and what torch makes between two runs, also where it is made in place."""
    forward = Layers(1, torch.float32)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = forward(x) * 2
        z = forward(y)
        y.view(-1).add_(1)
        return forward(z + y) + forward(y)

    play, _ = _record(function, torch.randn(3, HIDDEN))
    for _ in range(3):
        x = torch.randn(3, HIDDEN)
        with torch.inference_mode():
            torch.testing.assert_close(play(x), function(x), rtol=0, atol=0)


def test_what_torch_would_copy_on_the_way_stays_a_line() -> None:
    """An operand whose last dimension is not dense: the copy is not the program's to make."""
    x, weight = torch.randn(HIDDEN, 3), torch.randn(5, HIDDEN)
    play, lines = _record(lambda breaks: OPERATORS.linear(x.t(), weight, None))
    assert lines == ["linear.default"]
    x.copy_(torch.randn(HIDDEN, 3))
    with torch.inference_mode():
        torch.testing.assert_close(play(), OPERATORS.linear(x.t(), weight, None), rtol=0, atol=0)


def test_groups_that_do_more_than_native_operators_stay_lines() -> None:
    forward, x, weight = Layers(1, torch.float32), torch.randn(2, HIDDEN), torch.randn(HIDDEN, HIDDEN)

    def whole(given: torch.Tensor) -> torch.Tensor:
        return OPERATORS.linear(given.view(2, 1, HIDDEN), weight, None).view(2, HIDDEN)

    def mixed(given: torch.Tensor) -> torch.Tensor:
        return whole(given) + 1

    for group, expected in ((whole, ["run"]), (mixed, ["run", "mixed", "copy_", "run"])):
        play, lines = _record(lambda breaks, group=group: forward(breaks.call(BreakKind.GROUP, group, forward(x))))
        assert lines == expected
        x.copy_(torch.randn(2, HIDDEN))
        with torch.inference_mode():
            torch.testing.assert_close(play(), forward(group(forward(x))), rtol=0, atol=0)


def test_collectives_stay_lines() -> None:
    """They may speak to other ranks where no operator is seen."""
    forward, x, seen = Layers(1, torch.float32), torch.randn(2, HIDDEN), []

    def reduce(given: torch.Tensor) -> torch.Tensor:
        seen.append(given)
        return given

    play, _ = _record(lambda breaks: forward(breaks.call(BreakKind.COLLECTIVE, reduce, forward(x))))
    before = len(seen)
    with torch.inference_mode():
        play()
    assert len(seen) == before + 1


def test_what_an_operator_says_of_a_step_is_an_error() -> None:
    """Positions past the table: seen when the step is played, as without a program."""
    heads, size = 2, 16
    q, k, v = (torch.randn(1, heads, size) for _ in range(3))
    positions, table = torch.zeros(1, dtype=torch.int32), torch.randn(4, size)
    caches = [torch.zeros(3, 4, heads, size) for _ in range(2)]
    slots, blocks = torch.tensor([4], dtype=torch.int32), torch.ones(1, 1, dtype=torch.int32)
    plan, step = torch.tensor([[0, 1, 0, 1, 0]]), torch.zeros(8, dtype=torch.int64)
    OPERATORS.set_step(step, plan, blocks, slots, 1)
    rest = (False, (), step, *caches, 0.25, 0, 0.0, None)
    play, lines = _record(lambda breaks: OPERATORS.attend_step(q, k, v, positions, table, *rest))
    assert lines == ["run"]
    torch.testing.assert_close(play(), v)
    positions.fill_(4)
    with pytest.raises(RuntimeError, match="position 4 of a table of 4"):
        play()


def test_rows_past_the_step_are_zeros() -> None:
    """Those of padding, whatever a place held before."""
    heads, size = 2, 16
    q, k, v = (torch.randn(3, heads, size) for _ in range(3))
    caches = [torch.zeros(3, 4, heads, size) for _ in range(2)]
    slots, blocks = torch.tensor([4, 5, 6], dtype=torch.int32), torch.ones(1, 1, dtype=torch.int32)
    step = torch.zeros(8, dtype=torch.int64)
    plans = {count: torch.tensor([[0, count, 0, count, 0]]) for count in (1, 3)}
    rest = (False, (), step, *caches, 0.25, 0, 0.0, None)
    OPERATORS.set_step(step, plans[3], blocks, slots, 3)
    play, _ = _record(lambda breaks: OPERATORS.attend_step(q, k, v, None, None, *rest))
    assert play().abs().amin() > 0
    OPERATORS.set_step(step, plans[1], blocks, slots[:1], 1)
    torch.testing.assert_close(play(), torch.cat([v[:1], torch.zeros(2, heads, size)]))


def test_nothing_is_noted_outside_a_recording() -> None:
    assert isinstance(FOUND, Native)
    program = Program(FOUND)
    x, weight = torch.randn(2, HIDDEN), torch.randn(5, HIDDEN)
    with torch.inference_mode():
        OPERATORS.linear(x, weight, None)
        with program.recording():
            OPERATORS.linear(x, weight, None)
        noted = len(program)
        OPERATORS.linear(x, weight, None)
    assert noted == len(program) > 0
