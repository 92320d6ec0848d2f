"""Steps whose requests share pages: what two levels give, what they read, and that other steps are as ever."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from tests.conformance.batches import GroupRig, Request, Shape, build_step, live_rows, to_device
from tests.conformance.test_executor import batch_of, run
from tests.conformance.tiny_llama import write_tiny_llama

from trunnion.config import ExecutorConfig
from trunnion.contract import ForwardBatch, Limits
from trunnion.interfaces.attention import AttentionSpec, MLASpec, StepInputs
from trunnion.reference import ReferenceHardware
from trunnion.runner.model_executor import ModelExecutor
from trunnion_cuda import merge
from trunnion_cuda.hardware import CudaHardware

DEVICE = torch.device("cuda", 0)


def _attention(num_qo_heads: int, **options: object) -> AttentionSpec:
    shape = {"num_kv_heads": 2, "head_dim": 64, "scale": 0.3, "dtype": torch.bfloat16, **options}
    return AttentionSpec(num_qo_heads=num_qo_heads, **shape)  # type: ignore[arg-type]


def _latent(num_qo_heads: int) -> MLASpec:
    return MLASpec(num_qo_heads=num_qo_heads, kv_lora_rank=512, rope_head_dim=64, scale=0.1, dtype=torch.bfloat16)


SPECS: dict[str, AttentionSpec | MLASpec] = {
    "pairs": _attention(4),
    "groups": _attention(8),
    "soft-cap": _attention(8, soft_cap=2.0),
    "fp8-cache": _attention(8, cache_dtype=torch.float8_e4m3fn),
    "latent": _latent(4),
    "latent-wide": _latent(32),
}
IN_ONE_LEVEL: dict[str, AttentionSpec] = {
    "window": _attention(8, soft_cap=2.0, window=6),
    "sinks": _attention(4, has_sinks=True),
    "own": _attention(4, head_dim=40),
}
NIGHTLY = {"soft-cap", "fp8-cache", "sinks"}
"""Kernels of their own, which every change need not compile."""


def _named(specs: dict[str, AttentionSpec] | dict[str, AttentionSpec | MLASpec]) -> list[object]:
    return [
        pytest.param(spec, id=name, marks=[pytest.mark.nightly] * (name in NIGHTLY)) for name, spec in specs.items()
    ]


class LevelsRig:
    """A group of this package and the reference beside it, with the same caches: NaN where nobody may read."""

    def __init__(self, spec: AttentionSpec | MLASpec, block_size: int = 4) -> None:
        self.spec, self.block_size = spec, block_size
        self.tested = GroupRig(CudaHardware().group_class(spec)[0], spec, DEVICE, block_size)
        self.truth = GroupRig(ReferenceHardware().group_class(spec)[0], spec, torch.device("cpu"), block_size)
        if isinstance(spec, AttentionSpec) and spec.cache_dtype is not None:
            for rig in (self.tested, self.truth):
                rig.group.set_kv_scales(1, 0.5, 0.125)  # type: ignore[attr-defined]

    def step(self, shape: Shape, seed: int) -> StepInputs:
        """Built, and what came before it in the reference's cache."""
        generator = torch.Generator().manual_seed(seed)
        step = build_step(self.spec, shape, self.block_size, self.truth.num_blocks, seed)
        rows = live_rows(self.spec, shape, step, self.block_size)
        for cache in self.truth.caches[1].values():
            cache.fill_(torch.nan)
            values = torch.randn(len(rows), *cache.shape[2:], generator=generator)
            cache.view(-1, *cache.shape[2:])[rows] = values.to(cache.dtype)
        self.tested.fill_like(self.truth)
        return step

    @torch.inference_mode()
    def compare(self, shape: Shape, seed: int) -> None:
        """One step of both: outputs of rows that have a slot, and whole caches."""
        step, generator = self.step(shape, seed), torch.Generator().manual_seed(seed + 1)
        inputs = [torch.randn(shape.num_tokens, *row, generator=generator).bfloat16() for row in self.rows]
        sinks = [torch.linspace(-1, 2, self.spec.num_qo_heads)] if getattr(self.spec, "has_sinks", False) else []
        self.truth.group.plan(step)
        expected = self.truth.group.run(1, *inputs, *sinks)[shape.real_rows]  # type: ignore[attr-defined]
        actual = self.run(step, [*inputs, *sinks]).cpu()[shape.real_rows]
        torch.testing.assert_close(actual.float(), expected.float(), rtol=2e-2, atol=2e-2)
        for name, cache in self.truth.caches[1].items():
            torch.testing.assert_close(self.tested.caches[1][name].cpu().float(), cache.float(), equal_nan=True)

    @torch.inference_mode()
    def run(self, step: StepInputs, inputs: list[torch.Tensor] | None = None) -> torch.Tensor:
        """The group of this package: planned, then run."""
        self.tested.group.plan(to_device(step, DEVICE))
        rows = inputs or [torch.zeros(step.counts.num_tokens, *row).bfloat16() for row in self.rows]
        return self.tested.group.run(1, *(x.to(DEVICE) for x in rows))  # type: ignore[attr-defined]

    @property
    def rows(self) -> list[tuple[int, ...]]:
        """Shapes of one row of the arguments of `run`."""
        spec = self.spec
        if isinstance(spec, AttentionSpec):
            kv = (spec.num_kv_heads, spec.head_dim)
            return [(spec.num_qo_heads, spec.head_dim), kv, kv]
        latent, rope = (spec.kv_lora_rank,), (spec.rope_head_dim,)
        return [(spec.num_qo_heads, *latent), (spec.num_qo_heads, *rope), latent, rope]


def _random_shape(rng: random.Random, block_size: int, most_blocks: int) -> Shape:
    """Decodes first, then chunks and prompts; ranges of any length cross from one to the other."""
    query_len = rng.choice((1, 1, 3))
    num_decodes = rng.randint(0, 4)
    num_reqs = num_decodes + rng.randint(0 if num_decodes else 1, 4)
    levels: list[tuple[int, int]] = []
    while (rest := num_reqs - sum(count for count, _ in levels)) > 0:
        levels.append((rng.randint(1, rest), rng.choice((0, 1, most_blocks))))
    requests = []
    for count, blocks in levels:
        for _ in range(count):
            is_decode = len(requests) < num_decodes
            query = query_len if is_decode else rng.randint(1, 7)
            unwritten = rng.randint(0, query - 1) if query_len > 1 or not is_decode else 0
            context = blocks * block_size + rng.choice((0, 1, block_size, 5))
            requests.append(Request(context, query, unwritten=unwritten))
    return Shape("random", tuple(requests), num_decodes, query_len, levels=tuple(levels))


@pytest.mark.parametrize("spec", _named({**SPECS, **IN_ONE_LEVEL}))
def test_equals_one_level(spec: AttentionSpec | MLASpec) -> None:
    """Random steps, by a group that was planned for others before; some ranges share nothing, some requests are new."""
    rig, rng = LevelsRig(spec), random.Random(5)
    for seed in range(12):
        rig.compare(_random_shape(rng, rig.block_size, most_blocks=3), seed)


@pytest.mark.parametrize("spec", _named(SPECS))
def test_long_levels_are_split(spec: AttentionSpec | MLASpec) -> None:
    """Keys of both levels among blocks of a launch, whose partial sums are merged before the levels are."""
    rig, rng = LevelsRig(spec, block_size=16), random.Random(7)
    for seed in range(2):
        levels = ((3, 20), (1, 0), (2, 9))
        contexts = [320 + rng.randint(0, 40) for _ in range(3)] + [77] + [144 + rng.randint(0, 150) for _ in range(2)]
        requests = tuple(Request(context, rng.randint(1, 5)) for context in contexts)
        rig.compare(Shape("long", requests, levels=levels), seed)


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """The merge in torch, in a group of its own."""
    monkeypatch.setattr(merge, "why_no_kernels", lambda: "this test hides it")
    rng = random.Random(5)
    for spec in (SPECS["pairs"], SPECS["latent"]):
        rig = LevelsRig(spec)
        for seed in range(4):
            rig.compare(_random_shape(rng, rig.block_size, most_blocks=3), seed)


TWO_RANGES = Shape(
    "two-ranges",
    tuple(Request(context, 1) for context in (9, 13, 4, 11, 12, 8)),
    num_decodes=6,
    levels=((2, 2), (1, 0), (3, 2)),
)


def _pages(step: StepInputs, shape: Shape) -> tuple[Counter[int], Counter[int]]:
    """Page -> how often it should be read: those that ranges share, and those of requests."""
    group, shared, own, first = step.host.groups[0], Counter[int](), Counter[int](), 0
    for count, blocks in shape.levels:
        for index in range(first, first + count):
            begin, end = group.kv_indptr[index : index + 2].tolist()
            own.update(group.kv_indices[begin + blocks : end].tolist())
        begin = int(group.kv_indptr[first])
        shared.update(group.kv_indices[begin : begin + blocks].tolist())
        first += count
    return shared, own


@pytest.mark.parametrize("spec", [SPECS["pairs"], SPECS["latent"]], ids=["attention", "latent"])
def test_shared_pages_are_read_once_for_a_range(spec: AttentionSpec | MLASpec) -> None:
    """By the launches themselves: one over what is shared, without a causal mask, and one over the rest, with it."""
    simulation = pytest.importorskip("cuda_simulator").simulation()
    rig = LevelsRig(spec)
    step = rig.step(TWO_RANGES, 0)
    with simulation.noted_launches() as launches:
        rig.run(step)
    reads = {launch.is_causal: launch.reads for launch in launches}
    shared, own = _pages(step, TWO_RANGES)
    assert len(launches) == 2 and reads == {False: shared, True: own}
    step.counts.num_prefixes = 0
    with simulation.noted_launches() as launches:
        rig.run(step)
    assert [launch.is_causal for launch in launches] == [True]
    assert set(launches[0].reads.values()) == {1, 2, 3}, "each request reads the shared pages in one level"


@pytest.mark.parametrize("spec", _named(IN_ONE_LEVEL))
def test_groups_in_one_level(spec: AttentionSpec) -> None:
    """A window, sinks, and this package's own kernels: they accept no levels, and ignore them."""
    group = CudaHardware().group_class(spec)[0]
    assert not group.accepts_prefix_levels(spec)


@pytest.mark.parametrize("spec", _named(SPECS))
def test_groups_in_two_levels(spec: AttentionSpec | MLASpec) -> None:
    assert CudaHardware().group_class(spec)[0].accepts_prefix_levels(spec)


@pytest.mark.parametrize("spec", [SPECS["pairs"], SPECS["latent"]], ids=["attention", "latent"])
def test_a_group_is_made_with_its_merge(spec: AttentionSpec | MLASpec) -> None:
    """Compiled before any step: `warm_up` has none with levels."""
    launches = pytest.importorskip("cuda_simulator").simulation().triton_launches
    before = launches["_merge_kernel"]
    CudaHardware().group_class(spec)[0](spec, 1, DEVICE)
    assert launches["_merge_kernel"] > before


LIMITS = Limits(max_num_tokens=16, max_num_seqs=4, max_model_len=32, max_logits_rows=4, block_size=4)


def _decodes(shared_blocks: int = 0) -> ForwardBatch:
    """Three decodes, the first two of which share blocks: those of the first."""
    batch = batch_of(1, 1, 1, contexts=(9, 11, 10))
    batch.counts.num_decodes = 3
    if shared_blocks:
        group = batch.tensors.groups[0]
        first, second = group.kv_indptr[:2].tolist()
        group.block_table[1, :shared_blocks] = group.block_table[0, :shared_blocks]
        group.kv_indices[second : second + shared_blocks] = group.kv_indices[first : first + shared_blocks]
        batch.counts.num_prefixes = 2
        batch.tensors.prefix_indptr = torch.tensor([0, 2, 3], dtype=torch.int32)
        batch.tensors.prefix_lens = torch.tensor([4 * shared_blocks, 0], dtype=torch.int32)
    return batch


def test_a_step_with_levels_runs_between_pieces(tmp_path) -> None:
    """Decodes in a graph, with shared blocks in pieces, which launch twice in each layer, and in the graph again."""
    simulation = pytest.importorskip("cuda_simulator").simulation()
    folder = write_tiny_llama(tmp_path, head_dim=64)
    executor = ModelExecutor.create(
        ExecutorConfig(model=folder, hardware="cuda", limits=LIMITS, dtype="bfloat16"), CudaHardware()
    )
    executor.allocate_kv_cache([40])
    executor.warm_up()
    assert executor.accepts_prefix_levels
    # All requests have the same tokens: the cached ones are the same in their own blocks and in shared ones.
    for index, length in enumerate((9, 11, 10)):
        prompt = batch_of(*(length if index == other else 1 for other in range(3)))
        run(executor, prompt)
    counters, logits, launches = executor.counters, [], []
    for shared_blocks in (0, 2, 0):
        before = simulation.replays, counters.prefix_level_steps
        with simulation.noted_launches() as noted:
            logits.append(run(executor, _decodes(shared_blocks)).logits.clone())
        replays, level_steps = simulation.replays - before[0], counters.prefix_level_steps - before[1]
        launches.append([launch.is_causal for launch in noted])
        assert level_steps == (1 if shared_blocks else 0)
        assert (replays > 1) == bool(shared_blocks), "several pieces, or one graph"
    assert launches == [[], [True, False] * 2, []]
    assert not counters.eager
    for other in logits[1:]:
        torch.testing.assert_close(other, logits[0], rtol=5e-2, atol=5e-2)
