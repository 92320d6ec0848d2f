"""What a steady step costs the host and the device, counted from outside: allocations, waits, frames and plans."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

from capture import DeviceMonitor
from tests.matrix.host_double import Chunk

from trunnion.interfaces.runner import Mode
from trunnion_models.card import Card

from .rig import Rig

STEPS = 200
MODEL_CODE = ("trunnion_models", "trunnion.layers")


class FramesOf:
    """Counts the Python frames of some packages while it is active, as a profiler sees them."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self.packages = packages
        self.seen: Counter[str] = Counter()

    def __enter__(self) -> FramesOf:
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *error: Any) -> None:
        sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        name = str(frame.f_globals.get("__name__"))
        if event == "call" and name.startswith(self.packages):
            self.seen[f"{name}.{frame.f_code.co_name}"] += 1


def start_decoding(rig: Rig) -> None:
    """Fill both buffer sets with a decode of six requests, and run each once."""
    requests = rig.requests(6, 20)
    rig.prefill(requests, 9)
    for _ in rig.executor.input_buffers():
        rig.decode(requests)


def repeat(rig: Rig, steps: int) -> None:
    """Run what lies in the sets, in turn, as a host does that fills them again with the same."""
    for step in range(steps):
        output = rig.executor.execute_set(step % len(rig.executor.input_buffers()))
        rig.executor.wait(output.fence)


def blocks_grown_over(rig: Rig) -> int:
    """By how many memory blocks of the interpreter the steps grow."""
    gc.collect()
    gc.disable()
    try:
        repeat(rig, 20)
        before = sys.getallocatedblocks()
        repeat(rig, STEPS)
        return sys.getallocatedblocks() - before
    finally:
        gc.enable()


def test_200_decodes_are_200_replays(card: Card, rigs: Callable[..., Rig]) -> None:
    """Nothing eager, groups planned once per step, no allocation on the device, no wait, no Python of the model."""
    rig = rigs(card)
    start_decoding(rig)
    counters = rig.executor.counters
    replays, plans = counters.replays, counters.plans
    with DeviceMonitor(rig.host.memory) as monitor, FramesOf(MODEL_CODE) as frames:
        repeat(rig, STEPS)
    assert counters.replays - replays == STEPS
    assert not counters.eager
    assert counters.plans - plans == STEPS * len(rig.runner.groups)
    assert not frames.seen
    assert not monitor.allocations
    assert not monitor.waits
    grown = blocks_grown_over(rig)
    # A leak of one object per step would be 200; lists of free objects fill up a little.
    assert grown < STEPS // 4, f"the interpreter holds {grown} blocks more after {STEPS} steps"


def test_pieces_run_no_model_code_and_allocate_in_the_groups_alone(card: Card, rigs: Callable[..., Rig]) -> None:
    """Chunks and mixed steps: what the reference groups make at breaks is the one exception."""
    rig = rigs(card)
    requests = rig.requests(4, 20)
    rig.prefill(requests, 3)
    replays = rig.executor.counters.replays
    chunks = [Chunk(requests[0], 1), Chunk(requests[1], 5), Chunk(requests[2], 2, ()), Chunk(requests[3], 1)]
    rig.host.step(chunks)
    with DeviceMonitor(rig.host.memory) as monitor, FramesOf(MODEL_CODE) as frames:
        repeat(rig, 1)
    assert rig.executor.counters.replays - replays == 2
    assert not frames.seen
    assert monitor.allocations
    # Reading the host's copies of slots and lengths is no wait, but it looks like one where all memory is the host's.
    asked = {name.rpartition(" ")[2].rpartition(".")[0] for name in (*monitor.allocations, *monitor.waits)}
    assert asked <= {"trunnion.reference", "trunnion.ops"}


def test_the_eye_sees_what_it_should(llama: Card, rigs: Callable[..., Rig]) -> None:
    """An eager step shows the model's frames and allocations: the counters above can be other than zero."""
    rig = rigs(llama, Mode.EAGER)
    start_decoding(rig)
    with DeviceMonitor() as monitor, FramesOf(MODEL_CODE) as frames:
        repeat(rig, 1)
    assert any(name.startswith("trunnion_models.llama") for name in frames.seen)
    assert any(name.startswith("trunnion.layers") for name in frames.seen)
    assert monitor.allocations and monitor.waits
