"""Groups on the fused operator against the reference: what conformance's shapes leave out, and steps in full graphs.

Lengths are what a graph is not captured with: each replay is told them by task updates.
"""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from tests.conformance.batches import GroupRig, Request, Shape, build_step, live_rows, same_tensors, to_device

from trunnion.contract import BatchTensors, GroupTensors
from trunnion.interfaces.attention import AttentionSpec, MLASpec, StepInputs
from trunnion.reference import ReferenceHardware
from trunnion_ascend.attention import FusedAttentionGroup
from trunnion_ascend.capture import NpuCapture
from trunnion_ascend.hardware import AscendHardware
from trunnion_ascend.mla import FusedMLAGroup

DEVICE, HOST = torch.device("npu", 0), torch.device("cpu")
BLOCK_SIZE, NUM_REQS, MAX_BLOCKS = 16, 4, 5
NO_REQUEST = Shape("none", ())


def _attention(head_dim: int = 64, **options: object) -> AttentionSpec:
    return AttentionSpec(num_qo_heads=4, num_kv_heads=2, head_dim=head_dim, scale=0.3, dtype=torch.bfloat16, **options)  # type: ignore[arg-type]


SPECS: dict[str, AttentionSpec | MLASpec] = {
    "full": _attention(128),
    "window": _attention(window=21),
    "window-of-one": _attention(window=1),
    "sinks": _attention(window=9, has_sinks=True),
    "latent": MLASpec(num_qo_heads=2, kv_lora_rank=512, rope_head_dim=64, scale=0.1, dtype=torch.bfloat16),
}
EVERY = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


@pytest.fixture(autouse=True)
def _initialized() -> None:
    AscendHardware().initialize(0)


def _inputs(spec: AttentionSpec | MLASpec, rows: int, generator: torch.Generator) -> list[torch.Tensor]:
    """Arguments of `run` after the layer, without sinks."""
    if isinstance(spec, MLASpec):
        heads, latent, rope = spec.num_qo_heads, spec.kv_lora_rank, spec.rope_head_dim
        shapes = [(heads, latent), (heads, rope), (latent,), (rope,)]
    else:
        kv = (spec.num_kv_heads, spec.head_dim)
        shapes = [(spec.num_qo_heads, spec.head_dim), kv, kv]  # type: ignore[list-item]
    return [torch.randn(rows, *shape, generator=generator).to(spec.dtype) for shape in shapes]


class Pair:
    """A group of the package and the reference's, with the same caches: NaN wherever nothing was written."""

    def __init__(self, spec: AttentionSpec | MLASpec) -> None:
        self.spec = spec
        self.tested = GroupRig(AscendHardware().group_class(spec)[0], spec, DEVICE, BLOCK_SIZE)
        self.truth = GroupRig(ReferenceHardware().group_class(spec)[0], spec, HOST, BLOCK_SIZE)
        assert isinstance(self.tested.group, FusedAttentionGroup | FusedMLAGroup)
        has_sinks = isinstance(spec, AttentionSpec) and spec.has_sinks
        self.sinks = [torch.linspace(-1, 2, spec.num_qo_heads)] if has_sinks else []

    def step(self, shape: Shape, seed: int, generator: torch.Generator) -> StepInputs:
        """The host's step, on caches that hold what came before it."""
        step = build_step(self.spec, shape, BLOCK_SIZE, self.truth.num_blocks, seed)
        rows = live_rows(self.spec, shape, step, BLOCK_SIZE)
        for cache in self.truth.caches[1].values():
            cache.fill_(torch.nan)
            # Nobody's block: whoever writes to it shall be seen.
            cache[0] = 1.0
            values = torch.randn(len(rows), *cache.shape[2:], generator=generator)
            cache.view(-1, *cache.shape[2:])[rows] = values.to(cache.dtype)
        self.tested.fill_like(self.truth)
        return step

    def check(self, shape: Shape, step: StepInputs, inputs: list[torch.Tensor], found: torch.Tensor) -> None:
        """Outputs of rows that have a slot, and whole caches."""
        self.truth.group.plan(step)
        expected = self.truth.group.run(1, *inputs, *self.sinks)[shape.real_rows]  # type: ignore[attr-defined]
        actual = found.cpu()[shape.real_rows]
        torch.testing.assert_close(actual.float(), expected.float(), rtol=2e-2, atol=2e-2)
        caches = same_tensors(self.tested.caches[1], self.truth.caches[1])
        for name, cache in self.truth.caches[1].items():
            torch.testing.assert_close(caches[name].cpu().float(), cache.float(), equal_nan=True)


STEPS = (
    Shape("long-prompts", (Request(0, 50), Request(20, 17), Request(3, 16), Request(31, 1))),
    Shape("long-placeholders", (Request(30, 1), Request(11, 40, unwritten=18)), num_decodes=1),
    Shape("dropped-blocks", tuple(Request(length, 1) for length in (70, 16, 37, 21, 20)), 5),
    Shape("full-blocks", (Request(15, 1), Request(16, 1), Request(31, 17)), num_decodes=2),
)


@EVERY
@pytest.mark.parametrize("shape", STEPS, ids=[shape.name for shape in STEPS])
def test_a_step_is_as_on_the_reference(spec: AttentionSpec | MLASpec, shape: Shape) -> None:
    pair, generator = Pair(spec), torch.Generator().manual_seed(5)
    step = pair.step(shape, 3, generator)
    inputs = _inputs(spec, shape.num_tokens, generator)
    pair.tested.group.plan(to_device(step, DEVICE))
    with torch.inference_mode():
        found = pair.tested.group.run(1, *(x.to(DEVICE) for x in (*inputs, *pair.sinks)))  # type: ignore[attr-defined]
    pair.check(shape, step, inputs, found)


class GraphRig(Pair):
    """One bucket: persistent inputs, a captured call of `run` whose lengths are updated, the reference beside it."""

    def __init__(self, spec: AttentionSpec | MLASpec, query_len: int) -> None:
        super().__init__(spec)
        self.rows = NUM_REQS * query_len
        shapes = {"slot_mapping": (self.rows,), "block_table": (NUM_REQS, MAX_BLOCKS), "kv_start": (NUM_REQS,)}
        self.device = {name: torch.zeros(shape, dtype=torch.int32).to(DEVICE) for name, shape in shapes.items()}
        self.seq_lens = torch.zeros(NUM_REQS, dtype=torch.int32).to(DEVICE)
        self.args = [torch.zeros_like(x).to(DEVICE) for x in _inputs(spec, self.rows, torch.Generator())]
        self.device_sinks = [x.to(DEVICE) for x in self.sinks]
        group, arguments = self.tested.group, (*self.args, *self.device_sinks)
        with torch.inference_mode():
            self.stage(build_step(spec, NO_REQUEST, BLOCK_SIZE, self.tested.num_blocks, 0))
            capture = NpuCapture(DEVICE)
            group.tasks = capture.tasks  # type: ignore[attr-defined]
            group.run(1, *arguments)  # type: ignore[attr-defined]
            capture.begin()
            self.out = group.run(1, *arguments)  # type: ignore[attr-defined]
            self.graph = capture.end()

    def stage(self, step: StepInputs) -> None:
        """Pad and upload as the executor does, and plan."""
        host, count = step.host.groups[0], step.counts.num_reqs
        for name, target in self.device.items():
            target.fill_(-1 if name == "slot_mapping" else 0)
            values = getattr(host, name)
            if values.dim() == 2:
                values = values[:, :MAX_BLOCKS]
                target[: len(values), : values.shape[1]].copy_(values)
            else:
                target[: len(values)].copy_(values)
        self.seq_lens.zero_()
        self.seq_lens[:count].copy_(step.host.seq_lens)
        device = dataclasses.replace(step.host, seq_lens=self.seq_lens, groups=(GroupTensors(**self.device),))
        assert isinstance(device, BatchTensors)
        self.tested.group.plan(StepInputs(step.counts, step.host, device, in_full_graph=True))

    @torch.inference_mode()
    def replay(self, shape: Shape, seed: int) -> None:
        """One step of both, compared; rows of padding hold NaN."""
        generator = torch.Generator().manual_seed(seed)
        step = self.step(shape, seed, generator)
        inputs = _inputs(self.spec, self.rows, generator)
        for target, values in zip(self.args, inputs, strict=True):
            target.copy_(values)
            target[shape.num_tokens :] = torch.nan
        self.stage(step)
        self.graph.replay()
        self.check(shape, step, [x[: shape.num_tokens] for x in inputs], self.out)


@EVERY
def test_a_replay_follows_the_lengths(spec: AttentionSpec | MLASpec) -> None:
    """Captured without a request; replayed full, with fewer requests, long ones and again short ones."""
    rig = GraphRig(spec, 1)
    for seed, contexts in enumerate(((3, 0, 17, 5), (40, 39), (60, 1, 2, 61), (1,), (), (15, 16, 4, 4))):
        requests = tuple(Request(context, 1) for context in contexts)
        rig.replay(Shape("decode", requests, num_decodes=len(requests)), seed)


@EVERY
def test_a_replay_verifies_drafts_that_are_short(spec: AttentionSpec | MLASpec) -> None:
    """Placeholders in a graph: their rows take no part, whatever lies in the cache where they would be."""
    rig = GraphRig(spec, 3)
    rng = random.Random(1)
    for seed in range(6):
        requests = tuple(Request(rng.randint(1, 50), 3, unwritten=rng.randint(0, 2)) for _ in range(rng.randint(0, 4)))
        rig.replay(Shape("verify", requests, num_decodes=len(requests), decode_query_len=3), seed)


@EVERY
def test_a_replay_takes_no_memory(spec: AttentionSpec | MLASpec) -> None:
    """Updates bring the workspace of the capture: what they would take themselves is gone when the task runs."""
    rig = GraphRig(spec, 1)
    shape = Shape("decode", (Request(17, 1), Request(3, 1)), num_decodes=2)
    rig.stage(build_step(spec, shape, BLOCK_SIZE, rig.truth.num_blocks, 0))
    before = torch.npu.memory_stats()["allocation.all.allocated"]
    with torch.inference_mode():
        rig.graph.replay()
    assert torch.npu.memory_stats()["allocation.all.allocated"] == before
