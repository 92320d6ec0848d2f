"""The CUDA graph runner: full graphs for uniform decodes, pieces between the groups' calls for every other step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trunnion.contract import BatchCounts, Limits, WarmUpReport
from trunnion.interfaces.attention import Group, StepInputs
from trunnion.interfaces.break_points import BreakKind, BreakPoints
from trunnion.interfaces.model import Model
from trunnion.interfaces.runner import Bucket, Runner, StepSource
from trunnion.runner.buckets import Buckets
from trunnion.runner.captured_steps import CapturedSteps, CaptureRules
from trunnion_cuda import ahead
from trunnion_cuda.capture import CudaCapture
from trunnion_cuda.device_clock import time_call
from trunnion_cuda.environment import why_no_kernels, why_no_times
from trunnion_cuda.kernels.tuning import TUNER
from trunnion_cuda.step_tuning import TuningLimits, report_stand_ins, tune_steps
from trunnion_cuda.tuned_choices import choices_file

RULES = CaptureRules(piecewise_breaks={BreakKind.GROUP}, full_breaks=(), runs_before=True)
"""NCCL's collectives stand inside graphs. Triton compiles when a kernel first runs, which a capture refuses."""


class CudaGraphRunner(Runner):
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
        tuning: TuningLimits,
    ) -> None:
        super().__init__(model, groups, limits)
        reasons = [type(group).why_not_captured(group.spec) for group in self.groups]
        self._why_not_full = next((reason for reason in reasons if reason is not None), None)
        self.buckets = Buckets(limits, None if full_graphs and self._why_not_full is None else ())
        self._breaks = breaks
        self._device = device
        self._tuning = tuning
        self.steps: CapturedSteps | None = None
        """The graphs, from `warm_up` to `close`."""

    def select(self, counts: BatchCounts) -> Bucket:
        return self.buckets.select(counts)

    @torch.inference_mode()
    def warm_up(self, report: WarmUpReport, inputs: StepSource) -> None:
        """Time kernels that have configurations; then run every bucket once and capture it, the largest first."""
        # Graphs of an earlier warm-up go, and with them their pool.
        self.steps = None
        self._tune(report, inputs)
        before = torch.cuda.mem_get_info(self._device)[0]
        self.steps = CapturedSteps(self, self.buckets, self._breaks, inputs, CudaCapture(self._device), RULES)
        self.steps.capture_all(report)
        if self.combines:
            self.steps.capture_combines(report)
        if why_no_times() is None:
            report_stand_ins(report, TUNER)
        if self._why_not_full is not None:
            report.eager["groups of uniform decodes"] = f"no full graphs: {self._why_not_full}"
        report.implementations.update(_implementations())
        if (cubins := ahead.installed()) is not None:
            report.compiled.update(cubins.report())
        torch.cuda.synchronize(self._device)
        report.bytes = max(0, before - torch.cuda.mem_get_info(self._device)[0])

    @torch.inference_mode()
    def run(self, step: StepInputs, bucket: Bucket) -> tuple[torch.Tensor, torch.Tensor]:
        """Plan, and replay; errors are those of `CapturedSteps.replay`."""
        assert self.steps is not None, "warm_up comes before run"
        self.plan(step)
        result = self.steps.replay(step, bucket)
        self.counters.replays += 1
        return result

    def run_combine(self, step: StepInputs) -> None:
        """Replay it."""
        assert self.steps is not None, "warm_up comes before run_combine"
        self.steps.combine(step)

    def close(self) -> None:
        self.steps = None

    def _tune(self, report: WarmUpReport, inputs: StepSource) -> None:
        if (reason := why_no_times()) is not None:
            report.untuned["all kernels"] = f"run with their first configurations: {reason}"
            return
        tune_steps(
            self,
            self.buckets,
            inputs,
            report,
            tuner=TUNER,
            measure=time_call,
            limits=self._tuning.within(self.tuning_seconds),
            file=choices_file(self._device),
        )
        # What it took is not the graphs'.
        torch.cuda.empty_cache()


def _implementations() -> dict[str, str]:
    """Of operators that have several."""
    if why_no_kernels() is not None:
        return {}
    # Imports Triton, as `why_no_kernels`.
    from trunnion_cuda.kernels.block_fp8_gemm import tile_gemms
    from trunnion_cuda.kernels.mla_decode import tile_decodes

    return {**tile_gemms().report(), **tile_decodes().report()}
