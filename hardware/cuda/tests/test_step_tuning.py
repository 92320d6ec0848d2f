"""What `warm_up` times: every kernel of a model's step, before the first capture, once per machine; steps time none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.conformance.batches import GroupRig
from tests.conformance.test_executor import batch_of, run
from tests.conformance.tiny_llama import write_tiny_llama

from trunnion.config import ExecutorConfig
from trunnion.contract import BatchCounts, Limits, WarmUpReport
from trunnion.interfaces.attention import AttentionSpec, MLASpec, RecurrentSpec
from trunnion.interfaces.runner import Bucket
from trunnion.runner.buckets import Buckets
from trunnion.runner.model_executor import ModelExecutor
from trunnion_cuda import runner
from trunnion_cuda.capture import CudaCapture
from trunnion_cuda.device_clock import LAUNCHES, REPLAYS, time_call
from trunnion_cuda.hardware import CudaHardware
from trunnion_cuda.kernels.tuning import TUNER, Budget
from trunnion_cuda.step_tuning import TunedGroup, TuningLimits, tune_steps
from trunnion_cuda.tuned_choices import ChoicesFile

DEVICE = torch.device("cuda", 0)
LIMITS = Limits(max_num_tokens=4, max_num_seqs=2, max_model_len=32, max_logits_rows=2, block_size=4)
KERNELS = {"gated_activation", "rms_norm", "rotary_embedding", "paged_attention"}


class Clock:
    """Stands in for the device's: the last configuration is the fastest. Nothing runs."""

    def __init__(self) -> None:
        self.timed = 0
        self.timed_before_captures = 0

    def __call__(self, call: Callable[[], Any]) -> float:
        assert not torch.cuda.is_current_stream_capturing()
        self.timed += 1
        return 1 / self.timed


@pytest.fixture(autouse=True)
def forgets_choices() -> Iterator[None]:
    TUNER.clear()
    yield
    TUNER.clear()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Clock:
    """As on a device, with an empty cache folder."""
    found = Clock()

    class Capture(CudaCapture):
        def begin(self) -> None:
            found.timed_before_captures = found.timed_before_captures or found.timed
            super().begin()

    monkeypatch.setattr(runner, "CudaCapture", Capture)
    monkeypatch.setattr(runner, "time_call", found)
    monkeypatch.setattr(runner, "why_no_times", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return found


def executor(folder: Path, tuning: TuningLimits | None = None, seconds: float | None = None) -> ModelExecutor:
    """A tiny decoder in float32, whose attention is this package's own."""
    folder.mkdir(exist_ok=True)
    config = ExecutorConfig(
        model=write_tiny_llama(folder), hardware="cuda", limits=LIMITS, dtype="float32", tuning_seconds=seconds
    )
    found = ModelExecutor.create(config, CudaHardware(tuning=tuning))
    found.allocate_kv_cache([40])
    return found


def test_everything_a_step_launches_is_timed_once(clock: Clock, tmp_path: Path) -> None:
    """Then a second start times nothing, and no captured call stands in for another."""
    report = executor(tmp_path / "first").warm_up()
    assert clock.timed > 0 and report.untuned == {}
    assert clock.timed_before_captures == clock.timed, "captured before it was timed"
    assert set(report.tuned) <= KERNELS and len(report.tuned) > 1, report.tuned
    timed, choices = clock.timed, TUNER.choices()
    assert f"{sum(int(text.split()[-2]) for text in report.tuned.values())} timings" == f"{timed} timings"
    TUNER.clear()
    again = executor(tmp_path / "second")
    report = again.warm_up()
    assert clock.timed == timed and TUNER.choices() == choices and report.untuned == {}
    assert all(text.startswith("0 choices made, ") for text in report.tuned.values())
    for lengths in ((1,), (3, 1), (4,)):
        run(again, batch_of(*lengths))
    assert clock.timed == timed and TUNER.choices() == choices, "a step was timed"


class Stages:
    """Steps that say how many tokens they have, and a runner that only combines the states of those it is given."""

    combines, groups, shows_progress = True, (), False

    def __init__(self) -> None:
        self.model = torch.nn.Linear(1, 1)
        self.combined: list[int] = []

    def stage(self, buffer_set: int, counts: BatchCounts, bucket: Bucket) -> Any:
        return SimpleNamespace(device=SimpleNamespace(input_ids=torch.zeros(bucket.num_tokens, dtype=torch.int32)))

    def forward(self, step: Any) -> torch.Tensor:
        return torch.zeros(len(step.device.input_ids), 1)

    def head(self, rows: torch.Tensor) -> torch.Tensor:
        return rows

    def combine(self, step: Any) -> None:
        self.combined.append(len(step.device.input_ids))


def test_what_a_draft_combines_is_timed(tmp_path: Path) -> None:
    """At every size that is captured: a layer of its own makes one state of its target's."""
    found, buckets = Stages(), Buckets(LIMITS)
    options = {"tuner": TUNER, "measure": Clock(), "limits": TuningLimits(), "file": ChoicesFile(tmp_path / "file")}
    tune_steps(found, buckets, found, WarmUpReport(), **options)  # type: ignore[arg-type]
    assert found.combined == sorted(buckets.tokens, reverse=True)


def test_timing_leaves_the_caches(clock: Clock, tmp_path: Path) -> None:
    found = executor(tmp_path)
    caches = [cache for layers in found._caches for layer in layers for cache in layer.values()]
    for cache in caches:
        cache.fill_(3.0)
    found.warm_up()
    assert clock.timed and all((cache == 3.0).all() for cache in caches)


def test_what_the_limits_leave_over_is_reported(clock: Clock, tmp_path: Path) -> None:
    report = executor(tmp_path, TuningLimits(max_timings=7)).warm_up()
    assert 0 < clock.timed <= 7
    assert any("left over after" in text and "max_timings=7" in text for text in report.untuned.values())
    assert any(text.startswith("runs with the choice for size") for text in report.untuned.values()), report.untuned


def test_no_seconds_time_nothing(clock: Clock, tmp_path: Path) -> None:
    report = executor(tmp_path, seconds=0.0).warm_up()
    assert clock.timed == 0 and report.tuned == {}
    assert "max_seconds=0.0" in report.untuned["rms_norm"]
    with pytest.raises(ValueError, match=r"tuning_seconds is -1, expected 0 or more, or None"):
        executor(tmp_path, seconds=-1)


def test_a_spoiled_cache_is_reported(clock: Clock, tmp_path: Path) -> None:
    executor(tmp_path / "first").warm_up()
    (kept,) = (tmp_path / "cache" / "trunnion" / "cuda" / "tuned").iterdir()
    kept.write_text("spoiled")
    TUNER.clear()
    report = executor(tmp_path / "second").warm_up()
    assert f"{kept} cannot be read, and is ignored" in report.untuned["kept choices"]
    assert TUNER.choices()


def test_a_simulated_device_is_not_timed(tmp_path: Path) -> None:
    pytest.importorskip("cuda_simulator").simulation()
    report = executor(tmp_path).warm_up()
    assert report.tuned == {} and TUNER.choices() == {}
    assert "first configurations: Triton interprets its kernels" in report.untuned["all kernels"]


@pytest.mark.parametrize(
    ("spec", "kernels"),
    [
        (
            AttentionSpec(num_qo_heads=8, num_kv_heads=2, head_dim=40, scale=1.0, dtype=torch.bfloat16),
            {"paged_attention"},
        ),
        (
            MLASpec(num_qo_heads=40, kv_lora_rank=24, rope_head_dim=8, scale=1.0, dtype=torch.bfloat16),
            {"latent_attention"},
        ),
        (
            RecurrentSpec(
                num_k_heads=1, num_v_heads=2, head_k_dim=16, head_v_dim=16, conv_kernel_size=4, dtype=torch.bfloat16
            ),
            {"causal_conv1d", "gated_delta_chunks"},
        ),
    ],
    ids=["attention", "latent", "recurrent"],
)
def test_groups_offer_their_kernels(spec: AttentionSpec | MLASpec | RecurrentSpec, kernels: set[str]) -> None:
    hardware = CudaHardware()
    hardware.initialize(0)
    group = GroupRig(hardware.group_class(spec)[0], spec, DEVICE).group
    assert isinstance(group, TunedGroup)
    limits = Limits(max_num_tokens=70, max_num_seqs=2, max_model_len=70, max_logits_rows=2, block_size=4)
    budget = Budget(max_seconds=math.inf, max_timings=1000)
    with torch.inference_mode(), TUNER.tuning(Clock(), budget, lambda: False):
        for call in list(group.examples(Buckets(limits)))[:3]:
            call()
    assert set(budget.timings) == kernels


def test_a_call_is_timed_in_a_graph() -> None:
    """Compiled outside of it; a replay takes a millisecond when simulated."""
    simulation = pytest.importorskip("cuda_simulator").simulation()
    x, calls, before = torch.zeros(4, device=DEVICE), [], simulation.replays
    with torch.inference_mode():
        assert time_call(lambda: calls.append(x.add_(1) is x and simulation.recording is not None)) == 1e-3 / LAUNCHES
    assert calls == [False, *[True] * LAUNCHES] and simulation.replays == before + 1 + REPLAYS


def test_a_configuration_that_does_not_fit_takes_forever() -> None:
    from triton.runtime.errors import OutOfResources

    def call() -> None:
        raise OutOfResources(300_000, 200_000, "shared memory")

    assert time_call(call) == math.inf
