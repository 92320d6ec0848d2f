"""The simulated package's runner: full graphs for uniform decodes, pieces for everything else, nothing eager."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from capture import SimulatedCapture, SimulatedPool, SimulatedStream

from trunnion.contract import BatchCounts, Limits, WarmUpReport
from trunnion.interfaces.attention import Group, StepInputs
from trunnion.interfaces.break_points import BreakKind, BreakPoints
from trunnion.interfaces.model import Model
from trunnion.interfaces.runner import Bucket, Mode, Runner, StepSource
from trunnion.runner.buckets import Buckets
from trunnion.runner.graph_break import GraphBreaker, ReplayList

GraphT = TypeVar("GraphT")


@dataclass(frozen=True)
class FullGraph:
    """A step of uniform decodes, groups and logits included; it stops at collectives only."""

    graph: ReplayList
    hidden: torch.Tensor
    logits: torch.Tensor


class GraphRunner(Runner):
    """Graphs of all buckets share one pool. A step within the limits that has no graph is an error.

    The body of a step that is not a uniform decode is captured per number of tokens and leaves its hidden states in a
    buffer outside the pool; its head is captured per number of logits rows and reads them there.
    """

    static_inputs = True

    def __init__(
        self,
        model: Model,
        groups: Sequence[Group],
        limits: Limits,
        breaks: BreakPoints,
        pool: SimulatedPool,
        stream: SimulatedStream,
        *,
        full_graphs: bool,
    ) -> None:
        super().__init__(model, groups, limits)
        reasons = [type(group).why_not_captured(group.spec) for group in self.groups]
        self._why_not_full = next((reason for reason in reasons if reason is not None), None)
        self.pool = pool
        self.buckets = Buckets(limits, None if full_graphs and self._why_not_full is None else ())
        self._breaks = breaks
        self._stream = stream
        self._capture = SimulatedCapture(pool, stream)
        self._full: dict[tuple[int, int], FullGraph] = {}
        self._bodies: dict[int, tuple[ReplayList, torch.Tensor]] = {}
        self._heads: dict[int, tuple[ReplayList, torch.Tensor]] = {}
        self._hidden = torch.empty(0)
        self._no_rows = torch.empty(0)

    def select(self, counts: BatchCounts) -> Bucket:
        return self.buckets.select(counts)

    @torch.inference_mode()
    def warm_up(self, report: WarmUpReport, inputs: StepSource) -> None:
        """Capture every bucket, the largest first: what smaller ones need lies in what it has left."""
        # Graphs of an earlier warm-up go, and with them what they had to have.
        self._capture = SimulatedCapture(self.pool, self._stream)
        self._hidden = self._make_hidden(inputs)
        self._no_rows = self._hidden[:0]
        for num_tokens in reversed(self.buckets.tokens):
            self._bodies[num_tokens] = self._capture_body(num_tokens, inputs)
            report.captured.append(f"{num_tokens} tokens, {self._bodies[num_tokens][0].num_breaks} breaks")
        for num_logits in reversed(self.buckets.logits):
            self._heads[num_logits] = self._capture_head(num_logits, inputs)
            report.captured.append(f"{num_logits} rows of logits")
        for bucket, length in self.buckets.all_full():
            self._full[bucket.num_tokens, bucket.num_reqs] = self._capture_full(bucket, inputs)
            report.captured.append(f"{bucket.num_reqs} decodes of {length} tokens")
        if self._why_not_full is not None:
            report.captured.append(f"no full graphs: {self._why_not_full}")
        report.bytes = self.pool.high_water
        self.pool.poison()

    @torch.inference_mode()
    def run(self, step: StepInputs, bucket: Bucket) -> tuple[torch.Tensor, torch.Tensor]:
        """Plan, and replay.

        Raises:
            LookupError: the bucket was not captured.
        """
        self.plan(step)
        self.pool.poison()
        self.counters.replays += 1
        if bucket.mode is Mode.FULL:
            found = self._full.get((bucket.num_tokens, bucket.num_reqs))
            if found is None:
                raise LookupError(f"no full graph for {bucket}; captured: {sorted(self._full)}")
            found.graph.replay()
            return found.hidden, found.logits
        hidden = logits = self._no_rows
        if bucket.num_tokens:
            body, hidden = _found(self._bodies, bucket.num_tokens, "tokens")
            body.replay()
        if bucket.num_logits:
            head, logits = _found(self._heads, bucket.num_logits, "rows of logits")
            head.replay()
        return hidden, logits

    def close(self) -> None:
        self._full.clear()
        self._bodies.clear()
        self._heads.clear()

    def _make_hidden(self, inputs: StepSource) -> torch.Tensor:
        """Room for the hidden states of the largest step, by the example of the smallest one."""
        bucket = Bucket(mode=Mode.PIECEWISE, num_tokens=1, num_reqs=0, num_logits=0)
        example = self.forward(self._stage(bucket, inputs))
        return example.new_zeros(self.limits.max_num_tokens, example.shape[1])

    def _capture_body(self, num_tokens: int, inputs: StepSource) -> tuple[ReplayList, torch.Tensor]:
        bucket = Bucket(mode=Mode.PIECEWISE, num_tokens=num_tokens, num_reqs=0, num_logits=0)
        step, hidden = self._stage(bucket, inputs), self._hidden[:num_tokens]
        graph, _ = self._record(lambda: hidden.copy_(self.forward(step)), BreakKind)
        return graph, hidden

    def _capture_head(self, num_logits: int, inputs: StepSource) -> tuple[ReplayList, torch.Tensor]:
        bucket = Bucket(mode=Mode.PIECEWISE, num_tokens=0, num_reqs=0, num_logits=num_logits)
        indices = self._stage(bucket, inputs).device.logits_indices
        return self._record(lambda: self._logits(self._hidden, indices), BreakKind)

    def _capture_full(self, bucket: Bucket, inputs: StepSource) -> FullGraph:
        step = self._stage(bucket, inputs)
        hidden = self._hidden[: bucket.num_tokens]

        def forward() -> torch.Tensor:
            hidden.copy_(self.forward(step))
            return self._logits(hidden, step.device.logits_indices)

        graph, logits = self._record(forward, {BreakKind.COLLECTIVE})
        return FullGraph(graph, hidden, logits)

    def _stage(self, bucket: Bucket, inputs: StepSource) -> StepInputs:
        step = inputs.stage(0, BatchCounts(), bucket)
        for group in self.groups:
            group.plan(step)
        return step

    def _record(
        self, forward: Callable[[], torch.Tensor], kinds: Collection[BreakKind]
    ) -> tuple[ReplayList, torch.Tensor]:
        return GraphBreaker(self._breaks, self._capture, kinds).record(forward)

    def _logits(self, hidden: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return self.head(hidden.index_select(0, indices))


def _found(graphs: dict[int, GraphT], size: int, what: str) -> GraphT:
    found = graphs.get(size)
    if found is None:
        raise LookupError(f"no graph for {size} {what}; captured: {sorted(graphs)}")
    return found
