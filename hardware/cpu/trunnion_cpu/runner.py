"""The CPU's runner: steps of few tokens are played from tapes, larger ones run the model's Python code."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from trunnion.contract import BatchCounts, Limits, WarmUpReport
from trunnion.errors import UnsupportedError
from trunnion.interfaces.attention import AttentionSpec, Group, StepInputs
from trunnion.interfaces.break_points import BreakPoints
from trunnion.interfaces.model import Model
from trunnion.interfaces.runner import Bucket, Mode, Runner, StepSource
from trunnion.runner.buckets import ladder
from trunnion_cpu.block_weights import num_tiled_block_layers
from trunnion_cpu.kernels.native import DTYPES, direct
from trunnion_cpu.large_pages import to_large_pages
from trunnion_cpu.methods import MOST_ROWS, packable_layers
from trunnion_cpu.native import Absent, Native, native_state
from trunnion_cpu.native_attention import NativeAttentionGroup, why_not_native
from trunnion_cpu.packed_weights import pack
from trunnion_cpu.program import lowered
from trunnion_cpu.tape import TapeRecorder
from trunnion_cpu.tiled_w8a8 import num_tiled_w8a8_layers
from trunnion_cpu.tiled_weights import num_tiled_layers
from trunnion_cpu.torch_work import is_torch_work

MAX_TAPED_TOKENS = 64
"""Beyond this the arithmetic of a step hides Python, and padding costs more than it saves."""
EXACT_TOKENS = 8
"""Up to this every size has a tape of its own."""

Play = Callable[..., torch.Tensor]


def taped_sizes(limit: int) -> tuple[int, ...]:
    """Sizes that get a tape: 1, 2, 3 ... 8, 16, 24, 32, 48, 64, as far as `limit` goes."""
    limit = min(limit, MAX_TAPED_TOKENS)
    return tuple(sorted({*range(1, min(limit, EXACT_TOKENS) + 1), *ladder(limit)}))


class TapedRunner(Runner):
    """Piecewise execution without segments: a tape holds the groups' calls as lines among the operators.

    One tape per number of tokens for the model, one per number of output rows for its head.
    """

    static_inputs = True

    def __init__(
        self,
        model: Model,
        groups: Sequence[Group],
        limits: Limits,
        breaks: BreakPoints,
        native: Native | Absent,
        *,
        activations: str = "auto",
    ) -> None:
        super().__init__(model, groups, limits)
        self._breaks = breaks
        self._native = native
        self._activations = activations
        self._token_sizes = taped_sizes(limits.max_num_tokens)
        self._logit_sizes = taped_sizes(limits.max_logits_rows)
        self._why_eager = "warm_up has not run"
        # Here, because caches are not there yet: the largest weight is in memory twice meanwhile.
        self._packed = pack(packable_layers(self.model), [self.model], native)
        self._pages = to_large_pages([self.model])
        self._torch_works = not all(isinstance(group, NativeAttentionGroup) for group in groups)
        self._native_rows = 0
        """Tokens up to which no product of a step is torch's, if none is in the tapes."""
        self._bodies: dict[int, Play] = {}
        self._heads: dict[int, Play] = {}
        self._lines: dict[int, Play] = {}
        """Bodies as lines alone: groups' calls can wait for events there, and signal them."""

    def select(self, counts: BatchCounts) -> Bucket:
        if counts.num_tokens > self._token_sizes[-1] or counts.num_logits > self._logit_sizes[-1]:
            return Bucket.exact(counts)
        return Bucket(
            mode=Mode.PIECEWISE,
            num_tokens=_round_up(self._token_sizes, counts.num_tokens),
            num_reqs=counts.num_reqs,
            num_logits=_round_up(self._logit_sizes, counts.num_logits),
        )

    @torch.inference_mode()
    def warm_up(self, report: WarmUpReport, inputs: StepSource) -> None:
        """Record every size once, on padding rows only."""
        report.implementations["native operators"] = native_state(self._native)
        report.implementations["weights packed for products"] = self._packed
        report.implementations["weights in large pages"] = self._pages
        if self._activations != "auto":
            num_layers = num_tiled_layers(self.model, quantises_rows=True)
            where = f"by blocks, in {num_layers} linear layers in 4 or 8 bits by groups"
            report.implementations["activations"] = f"{self._activations} {where}"
        if num_layers := num_tiled_layers(self.model, quantises_rows=False):
            name = f"{num_layers} linear layers in 4 or 8 bits by groups"
            report.implementations[name] = "weights laid out in tiles"
        if num_layers := num_tiled_w8a8_layers(self.model):
            name = f"{num_layers} linear layers of int8 weights and activations"
            report.implementations[name] = "weights laid out in tiles"
        if num_layers := num_tiled_block_layers(self.model):
            name = f"{num_layers} weights in blocks of GGUF"
            report.implementations[name] = "laid out in tiles; rows quantised to int8 by blocks on the way"
        for group in self.groups:
            spec = getattr(group, "spec", None)
            if isinstance(spec, AttentionSpec) and isinstance(self._native, Native) and (why := why_not_native(spec)):
                report.implementations[f"native attention, heads of {spec.head_dim}"] = f"not used: {why}"
        try:
            for num_tokens in reversed(self._token_sizes):
                hidden = self._record_body(num_tokens, inputs)
                report.captured.append(f"{num_tokens} tokens")
            for num_logits in reversed(self._logit_sizes):
                self._record_head(num_logits, hidden, inputs)
                report.captured.append(f"{num_logits} rows of logits")
        except UnsupportedError as error:
            self._bodies.clear()
            self._heads.clear()
            report.captured.clear()
            self._why_eager = str(error)
            report.eager["every step"] = self._why_eager
            return
        threads = torch.get_num_threads()
        others = "torch's operators share them" if self._torch_works else "torch's own operators have one of them"
        report.implementations["threads"] = f"{threads}; in replayed steps {others}"
        self._why_eager = f"more than {self._token_sizes[-1]} tokens or {self._logit_sizes[-1]} rows of logits"
        report.eager[f"steps of {self._why_eager}"] = "arithmetic hides Python there"

    @torch.inference_mode()
    def run(self, step: StepInputs, bucket: Bucket) -> tuple[torch.Tensor, torch.Tensor]:
        """Play the bucket's tapes, or run the model."""
        self.plan(step)
        body, head = self._bodies.get(bucket.num_tokens), self._heads.get(bucket.num_logits)
        if bucket.mode is Mode.PIECEWISE and body is not None and (head is not None or bucket.num_logits == 0):
            with self._threads(0):
                hidden = self._lines[bucket.num_tokens]() if step.counts.has_kv_events else body()
                rows = hidden[:0] if head is None else head(hidden)
            self.counters.replays += 1
            return hidden, rows
        self.counters.eager["no tokens" if not bucket.num_tokens else self._why_eager] += 1
        with self._threads(bucket.num_tokens):
            hidden = self.forward(step)
            return hidden, self.head(hidden.index_select(0, step.device.logits_indices))

    def write_rows(self, rows: torch.Tensor, output: torch.Tensor) -> None:
        if isinstance(self._native, Native) and rows.dtype in DTYPES and output.dtype == torch.float32:
            torch.ops.trunnion_cpu.copy_rows(rows, output)
        else:
            super().write_rows(rows, output)

    def _threads(self, rows: int) -> AbstractContextManager[None]:
        """Whose threads compute in a step of the model's Python with `rows` tokens; 0: while a tape plays."""
        if self._torch_works or not isinstance(self._native, Native) or rows > self._native_rows:
            return nullcontext()
        return self._native.alone()

    def close(self) -> None:
        self._bodies.clear()
        self._heads.clear()
        self._lines.clear()

    def _recorder(self, *arguments: torch.Tensor) -> TapeRecorder:
        if isinstance(self._native, Native):
            return TapeRecorder(arguments=arguments, direct=direct)
        return TapeRecorder(arguments=arguments)

    def _record_body(self, num_tokens: int, inputs: StepSource) -> torch.Tensor:
        bucket = Bucket(mode=Mode.PIECEWISE, num_tokens=num_tokens, num_reqs=0, num_logits=0)
        step = inputs.stage(0, BatchCounts(), bucket)
        for group in self.groups:
            group.plan(step)
        recorder = self._recorder()
        self._breaks.attach(recorder)
        try:
            with recorder:
                hidden = self.forward(step)
        finally:
            self._breaks.detach()
        self._note_work(recorder)
        if isinstance(self._native, Native):
            self._native_rows = MOST_ROWS.get((self._native.isa, hidden.dtype), 0)
        lines = recorder.play(hidden)
        is_native = isinstance(self._native, Native)
        self._bodies[num_tokens] = lowered(recorder, hidden, self._native) if is_native else lines
        self._lines[num_tokens] = lines
        return hidden

    def _record_head(self, num_logits: int, hidden: torch.Tensor, inputs: StepSource) -> None:
        bucket = Bucket(mode=Mode.PIECEWISE, num_tokens=0, num_reqs=0, num_logits=num_logits)
        indices = inputs.stage(0, BatchCounts(), bucket).device.logits_indices
        recorder = self._recorder(hidden)
        self._breaks.attach(recorder)
        try:
            with recorder:
                rows = self.head(hidden.index_select(0, indices))
        finally:
            self._breaks.detach()
        self._note_work(recorder)
        # A few operators, whose results are large: a program would keep them.
        self._heads[num_logits] = recorder.play(rows)

    def _note_work(self, recorder: TapeRecorder) -> None:
        self._torch_works |= is_torch_work(call.function for call in recorder.calls)


def _round_up(sizes: Sequence[int], count: int) -> int:
    """The first size that holds `count`; 0 stays 0."""
    return sizes[bisect.bisect_left(sizes, count)] if count else 0
