"""The eager runner: plan every group once, run the model, put its head on the rows asked for."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trunnion.contract import BatchCounts, Limits, WarmUpReport
from trunnion.interfaces.attention import Group, StepInputs
from trunnion.interfaces.model import Model
from trunnion.interfaces.runner import Bucket, Runner, StepSource

REASON = "the eager runner captures no graphs"


class EagerRunner(Runner):
    """Captures nothing; every step runs the model's Python code on exactly its own rows.

    Args:
        reason: why, for reports and counters.
    """

    def __init__(self, model: Model, groups: Sequence[Group], limits: Limits, reason: str = REASON) -> None:
        super().__init__(model, groups, limits)
        self.reason = reason

    def select(self, counts: BatchCounts) -> Bucket:
        return Bucket.exact(counts)

    def warm_up(self, report: WarmUpReport, inputs: StepSource) -> None:
        """Nothing to capture, and the report says so."""
        report.eager.update({"decode": self.reason, "mixed": self.reason})

    @torch.inference_mode()
    def run(self, step: StepInputs, bucket: Bucket) -> tuple[torch.Tensor, torch.Tensor]:
        """One step -> (hidden [T, hidden_size], output rows [N, width])."""
        self.counters.eager[self.reason] += 1
        self.plan(step)
        hidden = self.forward(step)
        return hidden, self.head(hidden.index_select(0, step.device.logits_indices))
