"""The Ascend graph runner: full graphs for uniform decodes, pieces between the groups' calls for every other step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trunnion.contract import BatchCounts, Limits, WarmUpReport
from trunnion.interfaces.attention import Group, StepInputs
from trunnion.interfaces.break_points import BreakKind, BreakPoints
from trunnion.interfaces.model import Model
from trunnion.interfaces.runner import Bucket, Runner, StepSource
from trunnion.runner.captured_steps import CapturedSteps, CaptureRules
from trunnion_ascend.capture import NpuCapture
from trunnion_ascend.graph_budget import GraphBudget
from trunnion_ascend.task_updates import CallsAtOnce, TaskUser

RULES = CaptureRules(piecewise_breaks={BreakKind.GROUP}, full_breaks=(), runs_before=True)
"""HCCL's collectives stand inside graphs. What an operator does when it first runs, a capture refuses."""


class NpuGraphRunner(Runner):
    """Every step within the limits replays. Graphs of all buckets share one pool and lie on one private stream."""

    static_inputs = True

    def __init__(
        self,
        model: Model,
        groups: Sequence[Group],
        limits: Limits,
        breaks: BreakPoints,
        device: torch.device,
        *,
        full_graphs: bool,
        budget: GraphBudget,
    ) -> None:
        super().__init__(model, groups, limits)
        reasons = [type(group).why_not_captured(group.spec) for group in self.groups]
        self._why_not_full = next((reason for reason in reasons if reason is not None), None)
        self._budget = budget
        self._num_layers = sum(group.num_layers for group in self.groups)
        lengths = None if full_graphs and self._why_not_full is None else ()
        self._num_tasks = sum(group.num_layers for group in self.groups if isinstance(group, TaskUser))
        self.buckets = budget.choose(limits, lengths, self._num_layers, self._num_tasks)
        self._breaks = breaks
        self._device = device
        self.steps: CapturedSteps | None = None
        """The graphs, from `warm_up` to `close`."""

    @property
    def streams(self) -> int:
        """Of the device, that its graphs take."""
        return self._budget.needed(self.buckets, self._num_layers)

    @property
    def events(self) -> int:
        """Of the device, that its tasks take."""
        return self._budget.events_needed(self.buckets, self._num_tasks)

    def select(self, counts: BatchCounts) -> Bucket:
        return self.buckets.select(counts)

    @torch.inference_mode()
    def warm_up(self, report: WarmUpReport, inputs: StepSource) -> None:
        """Run every bucket once and capture it, the largest first.

        Raises:
            UnsupportedError: the device has too few streams or events for all of them.
        """
        self._budget.check(self.buckets, self._num_layers, self._num_tasks)
        # Graphs of an earlier warm-up go, and with them their pool.
        self.close()
        before = torch.npu.mem_get_info(self._device)[0]
        capture = NpuCapture(self._device)
        for group in self.groups:
            if isinstance(group, TaskUser):
                group.tasks = capture.tasks
        self.steps = CapturedSteps(self, self.buckets, self._breaks, inputs, capture, RULES)
        self.steps.capture_all(report)
        report.captured.append(
            f"all of it: {self.streams} of {self._budget.for_graphs} streams for graphs, "
            f"{self.events} of {self._budget.events_for_tasks} events for tasks"
        )
        if self._why_not_full is not None:
            report.eager["groups of uniform decodes"] = f"no full graphs: {self._why_not_full}"
        torch.npu.synchronize(self._device)
        report.bytes = max(0, before - torch.npu.mem_get_info(self._device)[0])

    @torch.inference_mode()
    def run(self, step: StepInputs, bucket: Bucket) -> tuple[torch.Tensor, torch.Tensor]:
        """Plan, and replay; errors are those of `CapturedSteps.replay`."""
        assert self.steps is not None, "warm_up comes before run"
        self.plan(step)
        result = self.steps.replay(step, bucket)
        self.counters.replays += 1
        return result

    def close(self) -> None:
        self.steps = None
        for group in self.groups:
            if isinstance(group, TaskUser):
                group.tasks = CallsAtOnce()
