"""Attention inside captured graphs: replays on other steps than the one that was captured, against the reference."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from tests.conformance.batches import GroupRig, Request, Shape, build_step, live_rows, same_tensors

from trunnion.contract import BatchTensors, GroupTensors
from trunnion.interfaces.attention import AttentionSpec, MLASpec, StepInputs
from trunnion.reference import ReferenceHardware
from trunnion.reference.captured import CapturedAttentionGroup
from trunnion_ascend.capture import NpuCapture
from trunnion_ascend.hardware import AscendHardware
from trunnion_ascend.task_updates import TaskUser

simulator = pytest.importorskip("ascend_simulator")
try:
    SIMULATION = simulator.simulation()
except LookupError:
    SIMULATION = None

DEVICE = torch.device("npu", 0)
NUM_REQS, MAX_BLOCKS, BLOCK_SIZE = 4, 10, 16


def _attention(**options: object) -> AttentionSpec:
    shape = {"num_kv_heads": 2, "head_dim": 64, "scale": 0.3, "dtype": torch.bfloat16}
    return AttentionSpec(**{**shape, **options})  # type: ignore[arg-type]


SPECS: dict[str, AttentionSpec | MLASpec] = {
    "one-head-each": _attention(num_qo_heads=2),
    "shared-heads": _attention(num_qo_heads=8, head_dim=128),
    "window": _attention(num_qo_heads=8, window=6),
    "sinks": _attention(num_qo_heads=4, has_sinks=True),
    "sinks-window": _attention(num_qo_heads=8, has_sinks=True, window=20),
    "latent": MLASpec(num_qo_heads=16, kv_lora_rank=512, rope_head_dim=64, scale=0.05, dtype=torch.bfloat16),
    "reference-soft-cap": _attention(num_qo_heads=8, soft_cap=2.0),
    "reference-float32": _attention(num_qo_heads=4, dtype=torch.float32),
}
UPDATED = [name for name in SPECS if not name.startswith("reference")]


def _rows(spec: AttentionSpec | MLASpec) -> list[tuple[int, ...]]:
    """Shapes of one row of the arguments of `run`."""
    if isinstance(spec, MLASpec):
        heads = spec.num_qo_heads
        return [(heads, spec.kv_lora_rank), (heads, spec.rope_head_dim), (spec.kv_lora_rank,), (spec.rope_head_dim,)]
    kv = (spec.num_kv_heads, spec.head_dim)
    return [(spec.num_qo_heads, spec.head_dim), kv, kv]


class GraphRig:
    """One bucket of a group: persistent inputs, a captured call of `run`, and the reference beside it."""

    def __init__(self, spec: AttentionSpec | MLASpec, query_len: int, captured: Shape | None = None) -> None:
        self.spec, self.query_len = spec, query_len
        self.tested = GroupRig(AscendHardware().group_class(spec)[0], spec, DEVICE, BLOCK_SIZE)
        self.truth = GroupRig(ReferenceHardware().group_class(spec)[0], spec, torch.device("cpu"), BLOCK_SIZE)
        self.rows = NUM_REQS * query_len
        self.inputs = {
            "slot_mapping": (self.rows,),
            "block_table": (NUM_REQS, MAX_BLOCKS),
            "kv_start": (NUM_REQS,),
            "kv_indptr": (NUM_REQS + 1,),
            "kv_indices": (NUM_REQS * MAX_BLOCKS,),
            "kv_last_page_len": (NUM_REQS,),
        }
        self.device = {
            name: torch.zeros(shape, dtype=torch.int32, device=DEVICE) for name, shape in self.inputs.items()
        }
        self.seq_lens = torch.zeros(NUM_REQS, dtype=torch.int32, device=DEVICE)
        self.args = [torch.zeros(self.rows, *shape, dtype=spec.dtype, device=DEVICE) for shape in _rows(spec)]
        self.sinks: tuple[torch.Tensor, ...] = ()
        if isinstance(spec, AttentionSpec) and spec.has_sinks:
            self.sinks = (torch.linspace(-1, 2, spec.num_qo_heads).to(DEVICE),)
        self.capture = NpuCapture(DEVICE)
        if isinstance(self.tested.group, TaskUser):
            self.tested.group.tasks = self.capture.tasks
        shape = captured or Shape("none", ())
        with torch.inference_mode():
            self.stage(build_step(spec, shape, BLOCK_SIZE, self.tested.num_blocks, 0))
            self.tested.group.run(1, *self.args, *self.sinks)
            self.capture.begin()
            self.out = self.tested.group.run(1, *self.args, *self.sinks)
            self.graph = self.capture.end()

    def stage(self, step: StepInputs) -> None:
        """Pad and upload as the executor does, and plan."""
        host = step.host.groups[0]
        count = step.counts.num_reqs
        for name in self.inputs:
            self.device[name].fill_(-1 if name == "slot_mapping" else 0)
            values = getattr(host, name)
            used = int(host.kv_indptr[count]) if name == "kv_indices" else len(values)
            target = self.device[name][:used]
            (target[:, : values.shape[1]] if values.dim() == 2 else target).copy_(values[:used])
        self.device["kv_indptr"][count + 1 :] = int(host.kv_indptr[count])
        self.seq_lens.zero_()
        self.seq_lens[:count].copy_(step.host.seq_lens)
        device = dataclasses.replace(step.host, seq_lens=self.seq_lens, groups=(GroupTensors(**self.device),))
        assert isinstance(device, BatchTensors)
        self.tested.group.plan(StepInputs(step.counts, step.host, device, in_full_graph=True))

    @torch.inference_mode()
    def replay(self, shape: Shape, seed: int) -> None:
        """One step of both, compared: outputs of rows that have a slot, and whole caches."""
        generator = torch.Generator().manual_seed(seed)
        step = build_step(self.spec, shape, BLOCK_SIZE, self.truth.num_blocks, seed)
        rows = live_rows(self.spec, shape, step, BLOCK_SIZE)
        for cache in self.truth.caches[1].values():
            cache.fill_(torch.nan)
            # Nobody's block: whoever writes to it shall be seen.
            cache[0] = 1.0
            values = torch.randn(len(rows), *cache.shape[2:], generator=generator)
            cache.view(-1, *cache.shape[2:])[rows] = values.to(cache.dtype)
        self.tested.fill_like(self.truth)
        inputs = [torch.randn(self.rows, *x.shape[1:], generator=generator).to(x.dtype) for x in self.args]
        for target, values in zip(self.args, inputs, strict=True):
            target.copy_(values)
            target[shape.num_tokens :] = torch.nan
        self.stage(step)
        self.graph.replay()
        self.truth.group.plan(step)
        sinks = (tensor.cpu() for tensor in self.sinks)
        expected = self.truth.group.run(1, *(x[: shape.num_tokens] for x in inputs), *sinks)[shape.real_rows]
        actual = self.out.cpu()[shape.real_rows]
        torch.testing.assert_close(actual.float(), expected.float(), rtol=2e-2, atol=2e-2)
        own = same_tensors(self.tested.caches[1], self.truth.caches[1])
        for name, cache in self.truth.caches[1].items():
            torch.testing.assert_close(own[name].cpu().float(), cache.float(), equal_nan=True)


def _decodes(*contexts: int) -> Shape:
    requests = tuple(Request(context, 1) for context in contexts)
    return Shape("decode", requests, num_decodes=len(requests))


@pytest.mark.parametrize("name", SPECS)
def test_a_replay_follows_the_lengths(name: str) -> None:
    """Captured without a request; replayed full, with fewer requests, long ones and again short ones."""
    rig = GraphRig(SPECS[name], 1)
    for seed, contexts in enumerate(((3, 0, 17, 5), (40, 39), (60, 1, 2, 61), (1,), (), (4, 4, 4))):
        rig.replay(_decodes(*contexts), seed)


@pytest.mark.parametrize("name", UPDATED)
def test_captured_at_length_1_and_replayed_at_100(name: str) -> None:
    """The lengths of the capture are in the graph, those of each step take their place."""
    rig = GraphRig(SPECS[name], 1, captured=_decodes(0, 0, 0, 0))
    for seed, context in enumerate((99, 0, 99)):
        rig.replay(_decodes(*[context] * NUM_REQS), seed)


@pytest.mark.parametrize("name", [name for name in SPECS if name != "one-head-each"])
def test_a_replay_verifies_drafts_that_are_short(name: str) -> None:
    """Placeholders in a graph: their rows take no part, whatever lies in the cache where they would be."""
    rig = GraphRig(SPECS[name], 3)
    rng = random.Random(1)
    for seed in range(6):
        requests = tuple(Request(rng.randint(1, 90), 3, unwritten=rng.randint(0, 2)) for _ in range(rng.randint(0, 4)))
        rig.replay(Shape("verify", requests, num_decodes=len(requests), decode_query_len=3), seed)


@pytest.mark.skipif(SIMULATION is None, reason="a real device is as late as it is")
@pytest.mark.parametrize("name", UPDATED)
def test_an_update_that_comes_late_is_waited_for(name: str) -> None:
    rig = GraphRig(SPECS[name], 1, captured=_decodes(0, 0, 0, 0))
    with SIMULATION.held(rig.capture.tasks.stream):
        rig.replay(_decodes(99, 3, 64), 0)


@pytest.mark.skipif(SIMULATION is None, reason="only the simulation counts")
@pytest.mark.parametrize("name", UPDATED)
def test_a_step_waits_for_nothing_and_allocates_nothing(name: str) -> None:
    """Plan, replay and updates, by the device's own count."""
    rig = GraphRig(SPECS[name], 1)
    steps = [build_step(SPECS[name], _decodes(*c), BLOCK_SIZE, 64, 1) for c in ((3, 0, 17, 5), (99, 2), (1, 5, 80, 9))]
    with torch.inference_mode():
        for step in steps:
            rig.stage(step)
            # Filled as a host fills them: by copies that wait. What is counted comes behind.
            device = dataclasses.replace(step.host, seq_lens=rig.seq_lens, groups=(GroupTensors(**rig.device),))
            before = SIMULATION.count("waits"), SIMULATION.count("device_allocations")
            rig.tested.group.plan(StepInputs(step.counts, step.host, device, in_full_graph=True))
            rig.graph.replay()
            assert (SIMULATION.count("waits"), SIMULATION.count("device_allocations")) == before


def test_what_the_operator_refuses_runs_on_the_reference() -> None:
    for name, reason in (("reference-soft-cap", "has no soft cap"), ("reference-float32", "in float32")):
        found, why = AscendHardware().group_class(SPECS[name])
        assert found is CapturedAttentionGroup
        assert why is not None and reason in why
