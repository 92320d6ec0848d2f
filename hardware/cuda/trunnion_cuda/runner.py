"""The CUDA graph runner: full graphs for uniform decodes, pieces between the groups' calls for every other step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from trunnion.contract import BatchCounts, BatchTensors, Limits, WarmUpReport
from trunnion.interfaces.attention import Group, StepInputs
from trunnion.interfaces.break_points import BreakKind, BreakPoints
from trunnion.interfaces.model import Model
from trunnion.interfaces.runner import Bucket, Mode, Runner, StepSource
from trunnion.runner.buckets import Buckets
from trunnion.runner.graph_break import GraphBreaker, ReplayList
from trunnion_cuda.capture import CudaCapture

FoundT = TypeVar("FoundT")


@dataclass(frozen=True)
class FullGraph:
    """A step of uniform decodes, groups, collectives and logits included."""

    graph: ReplayList
    hidden: torch.Tensor
    logits: torch.Tensor


class AddressError(RuntimeError):
    """An input lies elsewhere than when the graphs were captured: a replay would read what is not there."""


class CudaGraphRunner(Runner):
    """Every step within the limits replays. Graphs of all buckets share one pool and lie on one private stream.

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
        device: torch.device,
        *,
        full_graphs: bool,
    ) -> None:
        super().__init__(model, groups, limits)
        reasons = [type(group).why_not_captured(group.spec) for group in self.groups]
        self._why_not_full = next((reason for reason in reasons if reason is not None), None)
        self.buckets = Buckets(limits, None if full_graphs and self._why_not_full is None else ())
        self._breaks = breaks
        self._device = device
        self._capture = CudaCapture(device)
        self._full: dict[tuple[int, int], FullGraph] = {}
        self._bodies: dict[int, tuple[ReplayList, torch.Tensor]] = {}
        self._heads: dict[int, tuple[ReplayList, torch.Tensor]] = {}
        self._hidden = torch.empty(0)
        self._addresses: dict[str, int] = {}

    def select(self, counts: BatchCounts) -> Bucket:
        return self.buckets.select(counts)

    @torch.inference_mode()
    def warm_up(self, report: WarmUpReport, inputs: StepSource) -> None:
        """Run every bucket once and capture it, the largest first: smaller ones fit into what it has left."""
        self._capture = CudaCapture(self._device)
        before = torch.cuda.mem_get_info(self._device)[0]
        self._hidden = self._make_hidden(inputs)
        for num_tokens in reversed(self.buckets.tokens):
            self._bodies[num_tokens] = self._capture_body(num_tokens, inputs)
            report.captured.append(f"{num_tokens} tokens, {self._bodies[num_tokens][0].num_breaks} breaks")
        for num_logits in reversed(self.buckets.logits):
            self._heads[num_logits] = self._capture_head(num_logits, inputs)
            report.captured.append(f"{num_logits} rows of output")
        for bucket, length in self.buckets.all_full():
            self._full[bucket.num_tokens, bucket.num_reqs] = self._capture_full(bucket, inputs)
            report.captured.append(f"{bucket.num_reqs} decodes of {length} tokens")
        if self._why_not_full is not None:
            report.eager["groups of uniform decodes"] = f"no full graphs: {self._why_not_full}"
        torch.cuda.synchronize(self._device)
        report.bytes = max(0, before - torch.cuda.mem_get_info(self._device)[0])

    @torch.inference_mode()
    def run(self, step: StepInputs, bucket: Bucket) -> tuple[torch.Tensor, torch.Tensor]:
        """Plan, and replay.

        Raises:
            LookupError: the bucket was not captured.
            AddressError: an input is not where the graphs read it.
        """
        self.plan(step)
        self._check_addresses(step)
        self.counters.replays += 1
        if bucket.mode is Mode.FULL:
            found = _found(self._full, (bucket.num_tokens, bucket.num_reqs), "tokens and requests")
            found.graph.replay()
            return found.hidden, found.logits
        hidden = outputs = self._hidden[:0]
        if bucket.num_tokens:
            body, hidden = _found(self._bodies, bucket.num_tokens, "tokens")
            body.replay()
        if bucket.num_logits:
            head, outputs = _found(self._heads, bucket.num_logits, "rows of output")
            head.replay()
        return hidden, outputs

    def close(self) -> None:
        self._full.clear()
        self._bodies.clear()
        self._heads.clear()

    def _make_hidden(self, inputs: StepSource) -> torch.Tensor:
        """Room for the hidden states of the largest step, by the example of the smallest one."""
        bucket = Bucket(mode=Mode.PIECEWISE, num_tokens=1, num_reqs=0, num_logits=0)
        step = self._stage(bucket, inputs)
        self._addresses = {}
        example = self.forward(step)
        return example.new_zeros(self.limits.max_num_tokens, example.shape[1])

    def _capture_body(self, num_tokens: int, inputs: StepSource) -> tuple[ReplayList, torch.Tensor]:
        bucket = Bucket(mode=Mode.PIECEWISE, num_tokens=num_tokens, num_reqs=0, num_logits=0)
        step, hidden = self._stage(bucket, inputs), self._hidden[:num_tokens]
        graph, _ = self._record(lambda: hidden.copy_(self.forward(step)), {BreakKind.GROUP})
        return graph, hidden

    def _capture_head(self, num_logits: int, inputs: StepSource) -> tuple[ReplayList, torch.Tensor]:
        bucket = Bucket(mode=Mode.PIECEWISE, num_tokens=0, num_reqs=0, num_logits=num_logits)
        indices = self._stage(bucket, inputs).device.logits_indices
        return self._record(lambda: self._outputs(self._hidden, indices), {BreakKind.GROUP})

    def _capture_full(self, bucket: Bucket, inputs: StepSource) -> FullGraph:
        step = self._stage(bucket, inputs)
        hidden = self._hidden[: bucket.num_tokens]

        def forward() -> torch.Tensor:
            hidden.copy_(self.forward(step))
            return self._outputs(hidden, step.device.logits_indices)

        graph, logits = self._record(forward, ())
        return FullGraph(graph, hidden, logits)

    def _stage(self, bucket: Bucket, inputs: StepSource) -> StepInputs:
        step = inputs.stage(0, BatchCounts(), bucket)
        self._check_addresses(step)
        for group in self.groups:
            group.plan(step)
        return step

    def _record(
        self, forward: Callable[[], torch.Tensor], kinds: Collection[BreakKind]
    ) -> tuple[ReplayList, torch.Tensor]:
        # What compiles, tunes or allocates when it first runs must have run before: in a capture it may not.
        forward()
        return GraphBreaker(self._breaks, self._capture, kinds).record(forward)

    def _outputs(self, hidden: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return self.head(hidden.index_select(0, indices))

    def _check_addresses(self, step: StepInputs) -> None:
        for name, address in _addresses(step).items():
            if self._addresses.setdefault(name, address) != address:
                raise AddressError(f"{name} lies at {address:#x}; the graphs read it at {self._addresses[name]:#x}")


def _addresses(step: StepInputs) -> dict[str, int]:
    """Where the inputs of a step lie, those that belong to one block by its first field."""
    inputs: BatchTensors = step.device
    named = {
        "input_ids": inputs.input_ids,
        "logits_indices": inputs.logits_indices,
        "hidden_states": step.hidden_states,
        "encoder_pool": step.encoder_pool,
        "sampled_ids": step.sampled_ids,
    }
    found = {name: tensor.data_ptr() for name, tensor in named.items() if tensor is not None and tensor.numel()}
    for index, group in enumerate(inputs.groups):
        for name in ("slot_mapping", "block_table", "kv_indices", "state_indices"):
            tensor = getattr(group, name)
            if tensor is not None and tensor.numel():
                found[f"groups[{index}].{name}"] = tensor.data_ptr()
    return found


def _found(graphs: dict[object, FoundT], size: object, what: str) -> FoundT:
    found = graphs.get(size)
    if found is None:
        raise LookupError(f"no graph for {size} {what}; captured: {sorted(graphs, key=str)}")
    return found
