"""NPU graphs as the tools of the common runner want them: segments captured on a private stream, in one pool."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import torch
import torch_npu

from trunnion_ascend.task_updates import CapturedTask, TaskUpdates


class NpuSegment:
    """A captured graph, and its tasks that each replay updates."""

    def __init__(self, graph: torch.npu.NPUGraph, tasks: Sequence[CapturedTask], updates: TaskUpdates) -> None:
        self.tasks = tasks
        self._graph = graph
        self._updates = updates

    def replay(self) -> None:
        """Enqueue it on the current stream."""
        if self.tasks:
            self._updates.replay(self._graph, self.tasks)
        else:
            self._graph.replay()


class NpuCapture:
    """See `trunnion.runner.graph_break.SegmentCapture`. All segments share `pool`.

    Other threads may use the device while a segment is captured: only this thread's calls are held to the rules.
    """

    def __init__(self, device: torch.device) -> None:
        self.pool = torch.npu.graph_pool_handle()
        self.stream = torch.npu.Stream(device=device)
        self.tasks = TaskUpdates(device, self.non_owning)
        self._graph: torch.npu.NPUGraph | None = None
        self._on_stream = ExitStack()

    def begin(self) -> None:
        """Start capturing on the private stream, behind all that was enqueued."""
        assert self._graph is None, "a capture is under way"
        self.stream.wait_stream(torch.npu.current_stream())
        self._on_stream.enter_context(torch.npu.stream(self.stream))
        self._graph = torch.npu.NPUGraph()
        self._graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
        self.tasks.begin()

    def end(self) -> NpuSegment:
        """Stop, and return what was captured; an empty graph costs a launch and does nothing."""
        graph, self._graph = self._graph, None
        assert graph is not None, "begin comes before end"
        tasks = self.tasks.end()
        try:
            graph.capture_end()
        finally:
            self._on_stream.close()
        torch.npu.current_stream().wait_stream(self.stream)
        return NpuSegment(graph, tasks, self.tasks)

    def non_owning(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same elements at the same address, without a share in the life of the memory."""
        return torch_npu._C._weak_ref_tensor(tensor)
