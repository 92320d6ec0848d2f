"""The reference hardware serves every group and scheme; its runner plans once and runs once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trunnion.contract import BatchCounts, BatchTensors, Field, KVCacheSpec, Limits, WarmUpReport
from trunnion.errors import UnsupportedError
from trunnion.interfaces.attention import AttentionSpec, MLASpec, RecurrentSpec, StepInputs
from trunnion.interfaces.break_points import BreakPoints
from trunnion.interfaces.collectives import NoCollectives
from trunnion.interfaces.quantization import MXFP4, W8A8, BlockFP8
from trunnion.interfaces.runner import Bucket
from trunnion.ops.registry import OPERATORS
from trunnion.reference import ReferenceHardware
from trunnion.reference.linear_method import UnquantizedLinearMethod
from trunnion.reference.moe_method import UnquantizedMoEMethod
from trunnion.reference.mxfp4_moe_method import MXFP4MoEMethod
from trunnion.reference.quantised_methods import BlockFP8LinearMethod, W8A8LinearMethod
from trunnion.reference.quantised_moe_methods import BlockFP8MoEMethod, W8A8MoEMethod
from trunnion.runner.input_buffers import InputBuffers

LIMITS = Limits(max_num_tokens=8, max_num_seqs=2, max_model_len=8, max_logits_rows=4)

SPECS = [
    AttentionSpec(num_qo_heads=2, num_kv_heads=1, head_dim=4, scale=1.0, dtype=torch.float32),
    MLASpec(num_qo_heads=2, kv_lora_rank=4, rope_head_dim=2, scale=1.0, dtype=torch.float32),
    RecurrentSpec(num_k_heads=1, num_v_heads=2, head_k_dim=4, head_v_dim=4, conv_kernel_size=3, dtype=torch.float32),
]


class ToyHardware(ReferenceHardware):
    """A package that overrides nothing."""

    name = "toy"


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_every_group_kind_is_served_and_says_it_is_the_reference(spec: AttentionSpec) -> None:
    group_class, reason = ToyHardware().group_class(spec)
    assert reason is not None and "'toy'" in reason and type(spec).__name__ in reason
    tensors = group_class.cache_tensors(spec, 4)
    assert tensors and group_class(spec, 1, torch.device("cpu")).num_layers == 1


def test_every_scheme_has_a_method() -> None:
    hardware = ToyHardware()
    for scheme, methods in (
        (None, (UnquantizedLinearMethod, UnquantizedMoEMethod)),
        (BlockFP8(), (BlockFP8LinearMethod, BlockFP8MoEMethod)),
        (W8A8(dtype=torch.int8), (W8A8LinearMethod, W8A8MoEMethod)),
    ):
        assert type(hardware.linear_method(scheme, "model.mlp")) is methods[0]
        assert type(hardware.moe_method(scheme, "model.mlp")) is methods[1]


def test_mxfp4_is_of_experts_alone() -> None:
    assert type(ToyHardware().moe_method(MXFP4(), "model.mlp")) is MXFP4MoEMethod
    with pytest.raises(UnsupportedError, match=r"model\.mlp: a linear layer in MXFP4.*choices: experts"):
        ToyHardware().linear_method(MXFP4(), "model.mlp")


def test_one_rank_needs_no_group() -> None:
    assert isinstance(ToyHardware().collectives(0, 1, ""), NoCollectives)
    with pytest.raises(ValueError, match="2 ranks need a tp_init_method"):
        ToyHardware().collectives(0, 2, "")


def test_operators_without_a_kernel_are_listed() -> None:
    hardware = ToyHardware()
    hardware.device_type = "xpu"
    assert set(hardware.on_reference()) == set(OPERATORS.names())
    OPERATORS.register("toy", "XPU", "rms_norm", lambda *args: args[0])
    try:
        assert set(OPERATORS.names()) - set(hardware.on_reference()) == {"rms_norm"}
    finally:
        OPERATORS.unregister("toy")


class RecordingModel(nn.Module):
    """Returns its ids as hidden states, and logits that are the hidden states doubled."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events
        self.proj = nn.Parameter(torch.ones(3, 5))

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        self.events.append("forward")
        assert torch.is_inference_mode_enabled()
        return (input_ids + positions).float().unsqueeze(-1).expand(-1, 3)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.events.append("logits")
        return hidden * 2


class RecordingGroup:
    def __init__(self, name: str, events: list[str]) -> None:
        self.name, self.events = name, events

    def plan(self, step: StepInputs) -> None:
        self.events.append(f"plan {self.name}")


def _step(num_tokens: int, rows: list[int]) -> StepInputs:
    ints = torch.arange(num_tokens, dtype=torch.int32)
    tensors = BatchTensors(
        input_ids=ints * 10,
        positions=ints,
        query_start_loc=torch.tensor([0, num_tokens], dtype=torch.int32),
        seq_lens=torch.tensor([num_tokens], dtype=torch.int32),
        logits_indices=torch.tensor(rows, dtype=torch.int32),
    )
    return StepInputs(BatchCounts(num_tokens=num_tokens, num_reqs=1, num_logits=len(rows)), tensors, tensors)


def test_eager_runner_plans_every_group_then_runs_once() -> None:
    events: list[str] = []
    groups = [RecordingGroup("full", events), RecordingGroup("window", events)]
    runner = ToyHardware().create_runner(RecordingModel(events), groups, LIMITS, BreakPoints())  # type: ignore[arg-type]
    step = _step(5, [4, 0, 4])
    hidden, logits = runner.run(step, runner.select(step.counts))
    assert runner.counters.plans == 2 and runner.counters.replays == 0
    assert events == ["plan full", "plan window", "forward", "logits"]
    assert hidden[:, 0].tolist() == [0, 11, 22, 33, 44]
    assert logits[:, 0].tolist() == [88, 0, 88]


def test_eager_runner_without_tokens() -> None:
    step = _step(0, [])
    hidden, logits = (
        ToyHardware().create_runner(RecordingModel([]), [], LIMITS, BreakPoints()).run(step, Bucket.exact(step.counts))
    )
    assert hidden.shape == (0, 3) and logits.shape == (0, 3)


def test_eager_runner_reports_that_it_captures_nothing() -> None:
    report = WarmUpReport()
    spec = KVCacheSpec(groups=())
    inputs = InputBuffers(LIMITS, spec, Field.REQUIRED, 3, torch.device("cpu"), static=False, on_host=True)
    ToyHardware().create_runner(RecordingModel([]), [], LIMITS, BreakPoints()).warm_up(report, inputs)
    assert report.captured == [] and set(report.eager) == {"decode", "mixed"}


def test_memory_profile_counts_weights_and_grows_with_the_step() -> None:
    hardware, model = ToyHardware(), RecordingModel([])
    small, large = (
        hardware.memory_profile(
            model, Limits(max_num_tokens=tokens, max_num_seqs=1, max_model_len=100, max_logits_rows=rows)
        )
        for tokens, rows in ((1, 1), (100, 10))
    )
    assert small.weights == 60
    assert large.activations > small.activations > 0 and large.total > large.weights
