"""What runs a model for one step: eagerly, or by replaying what it captured. Each hardware package has its own."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import torch

from trunnion.contract import BatchCounts, Limits, WarmUpReport
from trunnion.interfaces.attention import Group, StepInputs
from trunnion.interfaces.model import AuxDraftModel, DraftModel, Model, MultiModal, num_token_types, output_head


class Mode(str, Enum):
    """How a step is executed."""

    EAGER = "eager"
    PIECEWISE = "piecewise"
    """Graphs between the groups' calls, which run eagerly: any mix of requests."""
    FULL = "full"
    """One graph, groups included: every request has `decode_query_len` tokens."""


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """The rows of one execution: what the step has, rounded up to what was captured."""

    mode: Mode
    num_tokens: int
    num_reqs: int
    num_logits: int

    @classmethod
    def exact(cls, counts: BatchCounts) -> Bucket:
        """The step as it is, without padding."""
        return cls(
            mode=Mode.EAGER, num_tokens=counts.num_tokens, num_reqs=counts.num_reqs, num_logits=counts.num_logits
        )


class StepSource(Protocol):
    """The executor's persistent inputs, as a runner needs them to capture."""

    def stage(self, buffer_set: int, counts: BatchCounts, bucket: Bucket) -> StepInputs:
        """The step that lies in `buffer_set`, padded to `bucket` and uploaded."""
        ...


@dataclass(slots=True)
class RunnerCounters:
    """What a runner did since it was made; read by the executor's statistics."""

    replays: int = 0
    """Steps that ran without any Python of the model."""
    eager: Counter[str] = field(default_factory=Counter)
    """Reason -> steps that ran the model's Python."""
    plans: int = 0
    """Calls of a group's `plan`."""
    plan_ns: int = 0
    last_plan_ns: tuple[int, int] = (0, 0)
    """Begin and end of the last step's plans, `time.perf_counter_ns`."""
    padded_tokens: int = 0
    """Rows computed beyond the steps' own."""
    kv_event_steps: int = 0
    """Steps whose layers waited for and signalled events of the host: never in a full graph."""
    prefix_level_steps: int = 0
    """Steps in which requests share leading blocks, by the host's word: never in a full graph."""
    token_type_steps: int = 0
    """Steps that brought types of tokens."""
    encodes: int = 0
    """Images encoded, each of them by the model's Python before its step."""


class Runner(ABC):
    """Runs plans and the model. Created once per executor, after the groups are bound to the model's layers.

    A runner that replays at fixed addresses sets `static_inputs`: its steps are padded to the bucket that `select`
    names and lie at the same device addresses every time.
    """

    static_inputs = False

    def __init__(self, model: Model, groups: Sequence[Group], limits: Limits) -> None:
        self.model = model
        self.head = output_head(model)
        self._draft = model if isinstance(model, DraftModel) else None
        self.combines = isinstance(model, AuxDraftModel)
        """Whether the model is a draft that makes of its target's states what it takes: see `combine`."""
        self._takes_token_types = num_token_types(model) > 0
        self.groups = tuple(groups)
        self.limits = limits
        self.counters = RunnerCounters()
        self.shows_progress = False
        """Whether long work of `warm_up` shows a progress bar on stderr."""
        self.tuning_seconds: float | None = None
        """How long `warm_up` may time kernels; None: as the package has it."""

    @abstractmethod
    def select(self, counts: BatchCounts) -> Bucket:
        """The bucket of a step. Pure: it depends on nothing but the counts, so that all ranks choose alike.

        Never FULL where `counts.has_kv_events` is set: inside a graph no layer can wait for the host. Nor where
        `counts.num_prefixes` is not 0: what a group launches depends on which requests share how many blocks.
        """

    @abstractmethod
    def warm_up(self, report: WarmUpReport, inputs: StepSource) -> None:
        """Capture what `run` will replay, largest bucket first, and say in `report` what stays eager, and why.

        Steps for it are staged in `inputs` from counts of zero requests padded to a bucket: slots are -1 and blocks are
        the reserved one, so that nothing in the caches changes.
        """

    @abstractmethod
    def run(self, step: StepInputs, bucket: Bucket) -> tuple[torch.Tensor, torch.Tensor]:
        """Plan every group once, run the model -> (hidden [T, H], output rows [N, width] of `head`, any float dtype).

        Rows are the bucket's; those of the step come first. Without rows asked for, the output may have any width.
        """

    def forward(self, step: StepInputs) -> torch.Tensor:
        """Call the model on the step's device tensors -> hidden states [T, H]; what a runner captures as its body.

        Rows of the encoder pool take the place of embeddings here, and sampled ids that of input ids, so that captured
        steps read them at their addresses. A token without a row takes nothing from the pool, whatever lies there.
        """
        inputs = step.device
        ids, positions = inputs.input_ids, inputs.positions
        if step.sampled_ids is not None:
            ids = torch.ops.trunnion.take_sampled(ids, step.sampled_ids)
        if self._draft is not None:
            assert step.hidden_states is not None, "a step of a draft has hidden states"
            return self._draft.forward(ids, positions, step.hidden_states)
        if self._takes_token_types:
            return self.model.forward(ids, positions, token_type_ids=inputs.token_type_ids)  # type: ignore[call-arg]
        if step.encoder_pool is None:
            return self.model.forward(ids, positions)  # type: ignore[call-arg]
        assert isinstance(self.model, MultiModal) and inputs.encoder_indices is not None, "a pool has who reads it"
        rows = step.encoder_pool.index_select(0, inputs.encoder_indices.clamp(min=0))  # [T, H]
        is_image = (inputs.encoder_indices >= 0).unsqueeze(-1)
        embeds = torch.where(is_image, rows, self.model.embed(ids))
        return self.model.forward(ids, positions, embeds)

    def combine(self, step: StepInputs) -> torch.Tensor:
        """Of an `AuxDraftModel`: make the step's hidden states of the rows of its target's that it asks for, and return
        them; what a runner captures as its `run_combine`."""
        assert isinstance(self._draft, AuxDraftModel), "only such a draft combines what its target keeps"
        assert step.hidden_states is not None and step.target_states is not None, "a step of a draft has both"
        assert step.device.hidden_indices is not None, "a draft asks for hidden_indices"
        rows = step.target_states.index_select(0, step.device.hidden_indices)  # [T, states * H]
        return step.hidden_states.copy_(self._draft.combine_hidden_states(rows))

    @torch.inference_mode()
    def run_combine(self, step: StepInputs) -> None:
        """`combine`, before `run` of a step whose hidden states are its target's."""
        self.combine(step)

    def write_rows(self, rows: torch.Tensor, output: torch.Tensor) -> None:
        """Output rows of `run` [N, width] to where the host reads them: `output` [N, width] float32, dense."""
        output.copy_(rows, non_blocking=True)

    def plan(self, step: StepInputs) -> None:
        """Plan every group, once per step, and count it."""
        started = time.perf_counter_ns()
        for group in self.groups:
            group.plan(step)
        self.counters.plans += len(self.groups)
        ended = time.perf_counter_ns()
        self.counters.plan_ns += ended - started
        self.counters.last_plan_ns = (started, ended)

    def close(self) -> None:
        """Drop captured graphs and buffers."""
        return None
