"""CUDA graphs as the tools of the common runner want them: segments captured on a private stream, in one pool."""

from __future__ import annotations

from contextlib import ExitStack

import torch


class GraphSegment:
    """A captured graph."""

    def __init__(self, graph: torch.cuda.CUDAGraph) -> None:
        self._graph = graph

    def replay(self) -> None:
        """Launch it on the current stream."""
        self._graph.replay()


class CudaCapture:
    """See `trunnion.runner.graph_break.SegmentCapture`. All segments share `pool`.

    Other threads may use CUDA while a segment is captured: only this thread's calls are held to the rules.
    """

    def __init__(self, device: torch.device) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._on_stream = ExitStack()

    def begin(self) -> None:
        """Start capturing on the private stream, behind all that was enqueued."""
        assert self._graph is None, "a capture is under way"
        self.stream.wait_stream(torch.cuda.current_stream())
        self._on_stream.enter_context(torch.cuda.stream(self.stream))
        self._graph = torch.cuda.CUDAGraph()
        self._graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")

    def end(self) -> GraphSegment:
        """Stop, and return what was captured; an empty graph costs a launch and does nothing."""
        graph, self._graph = self._graph, None
        assert graph is not None, "begin comes before end"
        try:
            graph.capture_end()
        finally:
            self._on_stream.close()
        torch.cuda.current_stream().wait_stream(self.stream)
        return GraphSegment(graph)

    def non_owning(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same elements at the same address, without a share in the life of the memory."""
        storage = tensor.untyped_storage()
        borrowed = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), tensor.device, storage.nbytes())
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return empty.set_(borrowed, tensor.storage_offset(), tensor.size(), tensor.stride())
