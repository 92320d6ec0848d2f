"""Times the kernels of a runner's steps in `warm_up`, before anything is captured, and says what was chosen by what."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from tqdm import tqdm

from trunnion.contract import BatchCounts, WarmUpReport
from trunnion.interfaces.attention import StepInputs
from trunnion.interfaces.runner import Bucket, Mode, Runner, StepSource
from trunnion.runner.buckets import Buckets
from trunnion_cuda.kernels.tuning import Budget, Measure, Tuner
from trunnion_cuda.tuned_choices import ChoicesFile


@dataclass(frozen=True, kw_only=True)
class TuningLimits:
    """How much `warm_up` may time; the rest runs with the nearest size's choice, or its first configuration."""

    max_seconds: float = 120.0
    """Compiling included; a kernel that was begun is finished."""
    max_timings: int = 2000

    def within(self, seconds: float | None) -> TuningLimits:
        """With other seconds, or with its own."""
        return self if seconds is None else replace(self, max_seconds=seconds)

    def __post_init__(self) -> None:
        if self.max_seconds < 0 or self.max_timings < 0:
            raise ValueError(f"limits of tuning are not negative, got {self}")


@runtime_checkable
class TunedGroup(Protocol):
    """A group on kernels that have configurations."""

    def examples(self, buckets: Buckets) -> Iterator[Callable[[], object]]:
        """Calls of its kernels at the buckets' shapes, the largest first. They read caches and change none."""
        ...


def tune_steps(
    runner: Runner,
    buckets: Buckets,
    inputs: StepSource,
    report: WarmUpReport,
    *,
    tuner: Tuner,
    measure: Measure,
    limits: TuningLimits,
    file: ChoicesFile,
) -> None:
    """Run every bucket once, timing what `file` has no choice for, and note it in `report`."""
    if (problem := file.load(tuner)) is not None:
        report.untuned["kept choices"] = problem
    known = Counter(name for name, _ in tuner.choices())
    budget = Budget(max_seconds=limits.max_seconds, max_timings=limits.max_timings)
    calls = [*_operators(runner, buckets, inputs), *_groups(runner, buckets)]
    with tuner.tuning(measure, budget, torch.cuda.is_current_stream_capturing):
        for call in tqdm(calls, desc="kernels", disable=not runner.shows_progress, file=sys.stderr, leave=False):
            call()
    if budget.timings and (problem := file.save(tuner)) is not None:
        report.untuned["kept choices"] = problem
    chosen = Counter(name for name, _ in tuner.choices())
    for name, count in sorted(chosen.items()):
        timings = f", {budget.timings[name]} timings" if budget.timings[name] else ""
        report.tuned[name] = f"{count - known[name]} choices made, {known[name]} kept from before{timings}"
    for name, count in sorted(budget.refused.items()):
        report.untuned[name] = f"{count} kinds of call left over after {budget.timings.total()} timings: {limits}"


def report_stand_ins(report: WarmUpReport, tuner: Tuner) -> None:
    """Note which captured calls run with a configuration that was not chosen for them."""
    for label, what in tuner.stand_ins.items():
        report.untuned.setdefault(label, f"runs with {what}")


def _operators(runner: Runner, buckets: Buckets, inputs: StepSource) -> Iterator[Callable[[], object]]:
    """The model on padded steps of no requests, in which groups have nothing to do; what a draft combines; the head."""
    vocabulary = _vocabulary_size(runner)
    for num_tokens in reversed(buckets.tokens):
        yield lambda size=num_tokens: _forward(runner, inputs, size, vocabulary)
    if runner.combines:
        for num_tokens in reversed(buckets.tokens):
            yield lambda size=num_tokens: runner.combine(_stage(inputs, size))
    for num_logits in reversed(buckets.logits):
        yield lambda rows=num_logits: _outputs(runner, inputs, rows)


def _forward(runner: Runner, inputs: StepSource, num_tokens: int, vocabulary: int) -> torch.Tensor:
    step = _stage(inputs, num_tokens)
    # Rows of one token would all choose the same experts.
    ids = step.device.input_ids
    ids.copy_(torch.arange(num_tokens, dtype=ids.dtype, device=ids.device) % vocabulary)
    for group in runner.groups:
        group.plan(step)
    return runner.forward(step)


def _stage(inputs: StepSource, num_tokens: int) -> StepInputs:
    return inputs.stage(0, BatchCounts(), Bucket(mode=Mode.PIECEWISE, num_tokens=num_tokens, num_reqs=0, num_logits=0))


def _outputs(runner: Runner, inputs: StepSource, num_logits: int) -> torch.Tensor:
    hidden = _forward(runner, inputs, 1, 1)
    return runner.head(hidden.expand(num_logits, -1).contiguous())


def _groups(runner: Runner, buckets: Buckets) -> Iterator[Callable[[], object]]:
    for group in runner.groups:
        if isinstance(group, TunedGroup):
            yield from group.examples(buckets)


def _vocabulary_size(runner: Runner) -> int:
    """Ids below it are tokens; 1 for a model without a vocabulary."""
    assert isinstance(runner.model, torch.nn.Module), f"{type(runner.model).__name__} is not a module"
    shards = (getattr(module, "shard", None) for module in runner.model.modules())
    return next((shard.vocab_size for shard in shards if hasattr(shard, "vocab_size")), 1)
