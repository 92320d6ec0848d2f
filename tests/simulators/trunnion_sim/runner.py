"""The simulated package's runner: full graphs for uniform decodes, pieces for everything else, nothing eager."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from capture import SimulatedCapture, SimulatedPool, SimulatedStream

from trunnion.contract import BatchCounts, Limits, WarmUpReport
from trunnion.interfaces.attention import Group, StepInputs
from trunnion.interfaces.break_points import BreakKind, BreakPoints
from trunnion.interfaces.model import Model
from trunnion.interfaces.runner import Bucket, Runner, StepSource
from trunnion.runner.buckets import Buckets
from trunnion.runner.captured_steps import CapturedSteps, CaptureRules

RULES = CaptureRules(piecewise_breaks=tuple(BreakKind), full_breaks={BreakKind.COLLECTIVE}, runs_before=False)


class GraphRunner(Runner):
    """Graphs of all buckets share one pool. A step within the limits that has no graph is an error."""

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
        self.steps: CapturedSteps | None = None
        """The graphs, from `warm_up` to `close`."""

    def select(self, counts: BatchCounts) -> Bucket:
        return self.buckets.select(counts)

    @torch.inference_mode()
    def warm_up(self, report: WarmUpReport, inputs: StepSource) -> None:
        """Capture every bucket, the largest first."""
        # Graphs of an earlier warm-up go, and with them what they had to have.
        self.steps = None
        capture = SimulatedCapture(self.pool, self._stream)
        self.steps = CapturedSteps(self, self.buckets, self._breaks, inputs, capture, RULES)
        self.steps.capture_all(report)
        if self.combines:
            self.steps.capture_combines(report)
        if self._why_not_full is not None:
            report.captured.append(f"no full graphs: {self._why_not_full}")
        report.bytes = self.pool.high_water
        self.pool.poison()

    @torch.inference_mode()
    def run(self, step: StepInputs, bucket: Bucket) -> tuple[torch.Tensor, torch.Tensor]:
        """Plan, and replay; errors are those of `CapturedSteps.replay`."""
        assert self.steps is not None, "warm_up comes before run"
        self.plan(step)
        self.pool.poison()
        self.counters.replays += 1
        return self.steps.replay(step, bucket)

    def run_combine(self, step: StepInputs) -> None:
        """Replay it."""
        assert self.steps is not None, "warm_up comes before run_combine"
        self.steps.combine(step)

    def close(self) -> None:
        self.steps = None
