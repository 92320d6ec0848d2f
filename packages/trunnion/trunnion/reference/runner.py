"""The eager runner: plan every group once, run the model, take the logits of the rows asked for."""

from __future__ import annotations

import torch

from trunnion.contract import WarmUpReport
from trunnion.interfaces.attention import StepInputs
from trunnion.interfaces.runner import Runner


class EagerRunner(Runner):
    """Captures nothing; every step runs the model's Python code."""

    def warm_up(self, report: WarmUpReport) -> None:
        """Nothing to capture, and the report says so."""
        reason = "the eager runner captures no graphs"
        report.eager.update({"decode": reason, "mixed": reason})

    @torch.inference_mode()
    def run(self, step: StepInputs) -> tuple[torch.Tensor, torch.Tensor]:
        """One step -> (hidden [T, hidden_size], logits [N, vocab_size] in the model's dtype)."""
        for group in self.groups:
            group.plan(step)
        inputs = step.device
        hidden = self.model.forward(inputs.input_ids, inputs.positions)
        logits = self.model.compute_logits(hidden.index_select(0, inputs.logits_indices))
        return hidden, logits
