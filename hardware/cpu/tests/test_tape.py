"""Tapes: what is recorded, what is refused, and that a playback computes anew from what the inputs hold then."""

from __future__ import annotations

import subprocess
import sys
import weakref

import pytest
import torch

from trunnion.errors import UnsupportedError
from trunnion.interfaces.break_points import BreakKind, BreakPoints
from trunnion_cpu.hardware import CpuHardware
from trunnion_cpu.kernels.native import direct
from trunnion_cpu.native import Native, native
from trunnion_cpu.tape import TapeRecorder


def _record(function, *arguments: torch.Tensor):
    recorder = TapeRecorder(arguments=arguments)
    with torch.inference_mode(), recorder:
        result = function(*arguments)
    return recorder, recorder.play(result)


def test_a_playback_reads_its_inputs_anew() -> None:
    x, weight = torch.randn(3, 4), torch.randn(5, 4)
    _, play = _record(lambda: torch.nn.functional.linear(x, weight).relu() + x.sum())
    for _ in range(3):
        x.copy_(torch.randn(3, 4))
        torch.testing.assert_close(play(), torch.nn.functional.linear(x, weight).relu() + x.sum())


def test_arguments_are_given_at_each_playback() -> None:
    _, play = _record(lambda a: a.chunk(2, dim=-1)[1] * 2, torch.randn(2, 6))
    other = torch.randn(2, 6)
    torch.testing.assert_close(play(other), other[:, 3:] * 2)


def test_views_of_constants_are_not_recorded() -> None:
    """A transposed weight costs nothing at playback."""
    x, weight = torch.randn(3, 4), torch.randn(5, 4)
    recorder, _ = _record(lambda: x @ weight.t())
    assert [str(call.function) for call in recorder.calls] == ["aten.matmul.default"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.to(torch.float64),
        lambda x: x.t().contiguous(),
        lambda x: x.t().reshape(-1),
        lambda x: x.t().flatten(),
    ],
    ids=["to", "contiguous", "reshape", "flatten"],
)
def test_copies_of_inputs_are_played_though_their_schemas_speak_of_views(function) -> None:
    x = torch.randn(3, 4)
    _, play = _record(lambda: function(x) + 0)
    x.copy_(torch.randn(3, 4))
    torch.testing.assert_close(play(), function(x))


def test_scalars_lists_and_several_results() -> None:
    """Arguments other than tensors, and operators that return tuples."""
    x = torch.randn(4, 6)

    def forward() -> torch.Tensor:
        values, indices = (x * 0.5).sort(dim=-1, descending=True)
        first, second = values.split([2, 4], dim=1)
        return torch.cat([second, first, indices.to(torch.float32)], dim=1)

    _, play = _record(forward)
    x.copy_(torch.randn(4, 6))
    torch.testing.assert_close(play(), forward())


@pytest.mark.parametrize("values", [lambda x: x * 2, lambda x: x], ids=["made", "constant"])
def test_writes_in_place_are_played(values) -> None:
    x, cache = torch.randn(2, 3), torch.zeros(5, 3)
    rows = torch.tensor([1, 4])
    _, play = _record(lambda: cache.index_copy_(0, rows, values(x)))
    rows.copy_(torch.tensor([0, 2]))
    cache.zero_()
    play()
    torch.testing.assert_close(cache[[0, 2]], values(x))
    assert not cache[[1, 3, 4]].any()


@pytest.mark.parametrize(
    "function",
    [lambda x: x.nonzero(), lambda x: x * x.sum().item(), lambda x: x[x > 0], lambda x: torch.unique(x)],
    ids=["nonzero", "item", "mask", "unique"],
)
def test_what_depends_on_values_is_refused(function) -> None:
    with pytest.raises(UnsupportedError, match="depends on values"):
        _record(function, torch.randn(4))


def test_calls_at_break_points_are_played_as_they_are() -> None:
    """What a group does inside is its own affair: it may look at values and keep state."""
    breaks, seen = BreakPoints(), []

    def group(x: torch.Tensor, factor: int) -> torch.Tensor:
        seen.append(x.sum().item())
        return x * factor

    x = torch.ones(3)
    recorder = TapeRecorder()
    breaks.attach(recorder)
    with torch.inference_mode(), recorder:
        result = breaks.call(BreakKind.GROUP, group, x + 1, 3) - 1
    breaks.detach()
    play = recorder.play(result)
    x.fill_(2)
    assert play().tolist() == [8, 8, 8]
    assert seen == [6, 9]


def test_native_operators_are_played_without_the_kernel_before_them() -> None:
    """What decides whether they take the arguments was decided while recording; what they do not take stays."""
    CpuHardware().initialize(0)
    if not isinstance(native(), Native):
        pytest.skip("no native operators")
    weight = torch.randn(8)

    def functions(x: torch.Tensor, weight: torch.Tensor) -> list[str]:
        recorder = TapeRecorder(direct=direct)
        with torch.inference_mode(), recorder:
            normed = torch.ops.trunnion.rms_norm(x, weight, 1e-6, False)
            result = torch.ops.trunnion.silu_and_mul(normed)
        torch.testing.assert_close(recorder.play(result)(), result)
        return [str(call.function) for call in recorder.calls]

    assert functions(torch.randn(2, 8), weight) == [
        "trunnion_cpu.rms_norm.default",
        "trunnion_cpu.silu_and_mul.default",
    ]
    declined = functions(torch.randn(2, 8).half(), weight.half())
    assert declined == ["trunnion.rms_norm.default", "trunnion.silu_and_mul.default"]


def test_registers_are_dropped_after_their_last_use() -> None:
    """A long prefill must not keep every layer's activations."""
    made: list[weakref.ref[torch.Tensor]] = []
    most_alive: list[int] = []
    breaks = BreakPoints()

    def watch(x: torch.Tensor) -> torch.Tensor:
        made.append(weakref.ref(x))
        most_alive.append(sum(ref() is not None for ref in made))
        return x.clone()

    x = torch.randn(4)
    recorder = TapeRecorder()
    breaks.attach(recorder)
    with torch.inference_mode(), recorder:
        y = x
        for _ in range(4):
            y = breaks.call(BreakKind.GROUP, watch, y + 1)
    breaks.detach()
    play = recorder.play(y)
    made.clear()
    most_alive.clear()
    torch.testing.assert_close(play(), x + 4)
    assert most_alive == [1, 1, 1, 1]


def test_recording_imports_no_compiler() -> None:
    """It would be most of what a start takes."""
    program = """
import sys, torch
from trunnion_cpu.tape import TapeRecorder
x = torch.ones(2)
with torch.inference_mode(), TapeRecorder(arguments=(x,)) as recorder:
    result = torch.cat([x, x]) + 1
assert recorder.play(result)(x).tolist() == [2, 2, 2, 2]
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
