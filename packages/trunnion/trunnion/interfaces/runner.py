"""What runs a model for one step: eagerly, or by replaying what it captured. Each hardware package has its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from trunnion.contract import WarmUpReport
from trunnion.interfaces.attention import Group, StepInputs
from trunnion.interfaces.model import CausalLM


class Runner(ABC):
    """Runs plans and the model. Created once per executor, after the groups are bound to the model's layers."""

    def __init__(self, model: CausalLM, groups: Sequence[Group]) -> None:
        self.model = model
        self.groups = tuple(groups)

    @abstractmethod
    def warm_up(self, report: WarmUpReport) -> None:
        """Capture what `run` will replay and say in `report` what stays eager, and why."""

    @abstractmethod
    def run(self, step: StepInputs) -> tuple[torch.Tensor, torch.Tensor]:
        """Plan every group once, run the model -> (hidden [T, H], logits [N, vocab_size] in the model's dtype)."""

    def close(self) -> None:
        """Drop captured graphs and buffers."""
        return None
