"""The graphs of one executor: bodies by tokens, heads by output rows, whole steps of uniform decodes; and their replay.

What a capture is, is the package's affair (`SegmentCapture`); a runner holds one of these and hands steps to it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

from trunnion.contract import BatchCounts, WarmUpReport
from trunnion.interfaces.attention import StepInputs
from trunnion.interfaces.break_points import BreakKind, BreakPoints
from trunnion.interfaces.runner import Bucket, Mode, Runner, StepSource
from trunnion.runner.address_guard import AddressGuard
from trunnion.runner.buckets import Buckets
from trunnion.runner.graph_break import GraphBreaker, ReplayList, SegmentCapture

FoundT = TypeVar("FoundT")
SizeT = TypeVar("SizeT", int, tuple[int, int])


@dataclass(frozen=True, kw_only=True)
class CaptureRules:
    """What a package's captures can hold."""

    piecewise_breaks: Collection[BreakKind]
    """Calls that end a graph of any mix of requests."""
    full_breaks: Collection[BreakKind]
    """Calls that end a graph of uniform decodes."""
    runs_before: bool
    """Whether a forward must run once before it is captured: what compiles, tunes or allocates does so there."""


@dataclass(frozen=True)
class FullGraph:
    """A step of uniform decodes, groups and output rows included."""

    graph: ReplayList
    hidden: torch.Tensor
    outputs: torch.Tensor


class CapturedSteps:
    """Every step within the limits as graphs in one pool. A step that has none is an error.

    The body of a step that is not a uniform decode is captured per number of tokens and leaves its hidden states in a
    buffer outside the pool; its head is captured per number of output rows and reads them there.

    Args:
        runner: whose model and groups run.
        buckets: the sizes to capture.
        inputs: the persistent inputs that graphs read.
        capture: the package's way to capture, with the one pool.
    """

    def __init__(
        self,
        runner: Runner,
        buckets: Buckets,
        breaks: BreakPoints,
        inputs: StepSource,
        capture: SegmentCapture,
        rules: CaptureRules,
    ) -> None:
        self._runner = runner
        self._buckets = buckets
        self._breaks = breaks
        self._inputs = inputs
        self._capture = capture
        self._rules = rules
        self._guard = AddressGuard()
        self.full: dict[tuple[int, int], FullGraph] = {}
        """(tokens, requests) -> graph"""
        self.bodies: dict[int, tuple[ReplayList, torch.Tensor]] = {}
        """tokens -> graph and hidden states"""
        self.heads: dict[int, tuple[ReplayList, torch.Tensor]] = {}
        """output rows -> graph and outputs"""
        self.combines: dict[int, ReplayList] = {}
        """tokens -> graph that fills a draft's hidden states from its target's"""
        self._hidden = self._make_hidden()

    def capture_all(self, report: WarmUpReport) -> None:
        """Capture every bucket, the largest first: what smaller ones need lies in what it has left."""
        for num_tokens in reversed(self._buckets.tokens):
            self.bodies[num_tokens] = self._capture_body(num_tokens)
            report.captured.append(f"{num_tokens} tokens, {self.bodies[num_tokens][0].num_breaks} breaks")
        for num_logits in reversed(self._buckets.logits):
            self.heads[num_logits] = self._capture_head(num_logits)
            report.captured.append(f"{num_logits} rows of output")
        for bucket, length in self._buckets.all_full():
            self.full[bucket.num_tokens, bucket.num_reqs] = self._capture_full(bucket)
            report.captured.append(f"{bucket.num_reqs} decodes of {length} tokens")

    def capture_combines(self, report: WarmUpReport) -> None:
        """Capture `Runner.combine` for the tokens of every bucket."""
        sizes = {*self._buckets.tokens, *(bucket.num_tokens for bucket, _ in self._buckets.all_full())}
        for num_tokens in sorted(sizes, reverse=True):
            step = self._stage(Bucket(mode=Mode.PIECEWISE, num_tokens=num_tokens, num_reqs=0, num_logits=0))
            self.combines[num_tokens], _ = self._record(
                functools.partial(self._runner.combine, step), self._rules.piecewise_breaks
            )
        report.captured.append(f"states of the target combined, {len(sizes)} sizes")

    def combine(self, step: StepInputs) -> None:
        """Replay `Runner.combine`; errors are those of `replay`."""
        self._guard.check(step)
        num_tokens = step.device.input_ids.shape[0]
        if num_tokens:
            _found(self.combines, num_tokens, "tokens to combine").replay()

    def replay(self, step: StepInputs, bucket: Bucket) -> tuple[torch.Tensor, torch.Tensor]:
        """Replay a planned step -> (hidden, output rows), which live until the next replay.

        Raises:
            AddressError: an input is not where the graphs read it.
            LookupError: the bucket was not captured.
        """
        self._guard.check(step)
        if bucket.mode is Mode.FULL:
            found = _found(self.full, (bucket.num_tokens, bucket.num_reqs), "tokens and requests")
            found.graph.replay()
            return found.hidden, found.outputs
        hidden = outputs = self._hidden[:0]
        if bucket.num_tokens:
            body, hidden = _found(self.bodies, bucket.num_tokens, "tokens")
            body.replay()
        if bucket.num_logits:
            head, outputs = _found(self.heads, bucket.num_logits, "rows of output")
            head.replay()
        return hidden, outputs

    def _make_hidden(self) -> torch.Tensor:
        """Room for the hidden states of the largest step, by the example of the smallest one."""
        bucket = Bucket(mode=Mode.PIECEWISE, num_tokens=1, num_reqs=0, num_logits=0)
        example = self._runner.forward(self._stage(bucket))
        return example.new_zeros(self._runner.limits.max_num_tokens, example.shape[1])

    def _capture_body(self, num_tokens: int) -> tuple[ReplayList, torch.Tensor]:
        bucket = Bucket(mode=Mode.PIECEWISE, num_tokens=num_tokens, num_reqs=0, num_logits=0)
        step, hidden = self._stage(bucket), self._hidden[:num_tokens]
        graph, _ = self._record(lambda: hidden.copy_(self._runner.forward(step)), self._rules.piecewise_breaks)
        return graph, hidden

    def _capture_head(self, num_logits: int) -> tuple[ReplayList, torch.Tensor]:
        bucket = Bucket(mode=Mode.PIECEWISE, num_tokens=0, num_reqs=0, num_logits=num_logits)
        indices = self._stage(bucket).device.logits_indices
        return self._record(lambda: self._outputs(self._hidden, indices), self._rules.piecewise_breaks)

    def _capture_full(self, bucket: Bucket) -> FullGraph:
        step = self._stage(bucket)
        hidden = self._hidden[: bucket.num_tokens]

        def forward() -> torch.Tensor:
            hidden.copy_(self._runner.forward(step))
            return self._outputs(hidden, step.device.logits_indices)

        graph, outputs = self._record(forward, self._rules.full_breaks)
        return FullGraph(graph, hidden, outputs)

    def _stage(self, bucket: Bucket) -> StepInputs:
        step = self._inputs.stage(0, BatchCounts(), bucket)
        self._guard.check(step)
        for group in self._runner.groups:
            group.plan(step)
        return step

    def _record(
        self, forward: Callable[[], torch.Tensor], kinds: Collection[BreakKind]
    ) -> tuple[ReplayList, torch.Tensor]:
        if self._rules.runs_before:
            forward()
        return GraphBreaker(self._breaks, self._capture, kinds).record(forward)

    def _outputs(self, hidden: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return self._runner.head(hidden.index_select(0, indices))


def _found(graphs: Mapping[SizeT, FoundT], size: SizeT, what: str) -> FoundT:
    found = graphs.get(size)
    if found is None:
        raise LookupError(f"no graph for {size} {what}; captured: {sorted(graphs, key=str)}")
    return found
