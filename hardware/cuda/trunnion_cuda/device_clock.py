"""Times a call on the device, by launches in a graph between two events: the host's time does not count."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from trunnion_cuda.capture import CudaCapture
from trunnion_cuda.kernels.tuning import CannotRunError

LAUNCHES, REPLAYS = 10, 3
"""Launches of one graph, whose mean is taken, and replays, of which the shortest is."""


def time_call(call: Callable[[], Any]) -> float:
    """Seconds that one call of a few launches takes; infinite if it cannot run, or asks for more than the device has.

    The call is compiled and runs before it is timed; like all that a graph holds it must not read from the device.
    """
    # Whoever has something to time has Triton.
    from triton.runtime.errors import OutOfResources

    try:
        call()
    except (OutOfResources, CannotRunError):
        return math.inf
    capture = CudaCapture(torch.device("cuda", torch.cuda.current_device()))
    capture.begin()
    try:
        for _ in range(LAUNCHES):
            call()
    finally:
        graph = capture.end()
    graph.replay()
    return min(_time_replay(graph.replay) for _ in range(REPLAYS)) / LAUNCHES


def _time_replay(replay: Callable[[], None]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3
