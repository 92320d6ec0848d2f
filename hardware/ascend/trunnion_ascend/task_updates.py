"""Task updates: calls inside a graph whose host arguments each replay takes anew, as attention takes its lengths.

A captured call keeps the host arguments that it was captured with. A call that is captured as a task group can be
issued again, on another stream, with other ones: what it issues then takes the place of what was captured. The order of
the two is settled on the device (hicann/runtime, docs/zh/dev_guide/04-03_task_update.md, and vllm-ascend's
`update_attn_params`): before the task stand a wait for an external event and its reset, and the update stream records
the event once the update is done. A replay that is enqueued before its updates runs up to the first call that is not
up to date yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch


class Tasks(Protocol):
    """Where a group hands in its calls of operators that take lengths from the host."""

    def run(self, call: Callable[..., None], *tensors: torch.Tensor) -> None:
        """`call(*tensors)` now, and, if a graph is being captured, at each of its replays again, after the plan.

        Args:
            call: issues operators, the same at every time, into outputs and workspaces that are made outside of it. It
                takes what changes from step to step from where `plan` has put it: lists of the host, never a tensor.
            tensors: all that `call` reads or writes and the group does not own. Replays give it the same elements.
        """
        ...


class CallsAtOnce:
    """No graphs: the calls of eager steps."""

    def run(self, call: Callable[..., None], *tensors: torch.Tensor) -> None:
        """See `Tasks.run`."""
        call(*tensors)


@runtime_checkable
class TaskUser(Protocol):
    """A group whose calls in full graphs are updated. It starts with `CallsAtOnce`; a runner lends it its own."""

    tasks: Tasks


@dataclass(frozen=True)
class CapturedTask:
    """One call inside a graph: its task group, the event that holds it back, and what issues it again."""

    handle: Any
    event: torch.npu.ExternalEvent
    call: Callable[..., None]
    tensors: tuple[torch.Tensor, ...]

    def update(self, stream: torch.npu.Stream) -> None:
        """Put a call with today's arguments in the task's place. `stream` is the current one."""
        torch.npu.graph_task_update_begin(stream, self.handle)
        try:
            self.call(*self.tensors)
        finally:
            torch.npu.graph_task_update_end(stream)


class TaskUpdates:
    """The tasks of the graph that is being captured, and the stream that updates those of graphs that are replayed.

    Args:
        borrow: a tensor -> the same elements, without a share in the life of their memory.
    """

    def __init__(self, device: torch.device, borrow: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.stream = torch.npu.Stream(device=device)
        self._borrow = borrow
        self._before = torch.npu.Event()
        self._captured: list[CapturedTask] | None = None

    def begin(self) -> None:
        """From here on calls are part of a graph, on the current stream."""
        assert self._captured is None, "a capture is under way"
        self._captured = []

    def end(self) -> tuple[CapturedTask, ...]:
        """The graph's tasks, in the order in which they run."""
        found, self._captured = self._captured, None
        return tuple(found or ())

    def run(self, call: Callable[..., None], *tensors: torch.Tensor) -> None:
        """See `Tasks.run`."""
        if self._captured is None:
            call(*tensors)
            return
        stream, event = torch.npu.current_stream(), torch.npu.ExternalEvent()
        event.wait(stream)
        event.reset(stream)
        torch.npu.graph_task_group_begin(stream)
        try:
            call(*tensors)
        finally:
            handle = torch.npu.graph_task_group_end(stream)
        self._captured.append(CapturedTask(handle, event, call, tuple(map(self._borrow, tensors))))

    def replay(self, graph: torch.npu.NPUGraph, tasks: Sequence[CapturedTask]) -> None:
        """Enqueue a replay on the current stream, and the updates of its tasks on the other; the host waits for none.

        No update overtakes what was enqueued before: an earlier replay may still wait for the same events, and the
        tasks are its own until it is done. If a call fails, nothing hangs: the replay runs with the arguments that its
        tasks have, and the step fails with the error.
        """
        current = torch.npu.current_stream()
        while self.stream == current:  # torch_npu has few streams, and lends each to several
            self.stream = torch.npu.Stream(device=current.device)
        self._before.record(current)
        self._before.wait(self.stream)
        graph.replay()
        waiting = list(reversed(tasks))
        with torch.npu.stream(self.stream):
            try:
                while waiting:
                    waiting[-1].update(self.stream)
                    waiting.pop().event.record(self.stream)
            finally:
                for task in reversed(waiting):
                    task.event.record(self.stream)
