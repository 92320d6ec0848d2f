"""Attention inside captured graphs: replays on other steps than the one that was captured, against the reference."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

import pytest
import torch
from _pytest.mark.structures import ParameterSet
from hardware.cuda.tests.torch_tiles import TorchDecodes
from tests.conformance.batches import GroupRig, Request, Shape, build_step, live_rows

from trunnion.contract import BatchTensors, GroupTensors
from trunnion.interfaces.attention import AttentionSpec, MLASpec, StepInputs
from trunnion.reference import ReferenceHardware
from trunnion.reference.captured import CapturedAttentionGroup
from trunnion_cuda.capture import CudaCapture
from trunnion_cuda.hardware import CudaHardware
from trunnion_cuda.kernels import latent_attention, paged_attention
from trunnion_cuda.kernels.tuning import TUNER, Budget, size_class
from trunnion_cuda.triton_attention import TritonAttentionGroup
from trunnion_cuda.triton_mla import TritonMLAGroup

DEVICE = torch.device("cuda", 0)
NUM_REQS, MAX_BLOCKS, BLOCK_SIZE = 4, 24, 4


def _attention(**options: object) -> AttentionSpec:
    shape = {"num_kv_heads": 2, "head_dim": 64, "scale": 0.3, "dtype": torch.bfloat16}
    return AttentionSpec(**{**shape, **options})  # type: ignore[arg-type]


SPECS: dict[str, AttentionSpec | MLASpec] = {
    "cuda-cores": _attention(num_qo_heads=4),
    "tensor-cores": _attention(num_qo_heads=8),
    "soft-cap-window": _attention(num_qo_heads=8, soft_cap=2.0, window=6),
    "sinks": _attention(num_qo_heads=4, has_sinks=True),
    "sinks-window": _attention(num_qo_heads=8, has_sinks=True, window=6),
    "fp8-cache": _attention(num_qo_heads=8, cache_dtype=torch.float8_e4m3fn),
    "fp8-cache-cuda-cores": _attention(num_qo_heads=4, cache_dtype=torch.float8_e4m3fn),
    "own-float32": _attention(num_qo_heads=4, head_dim=24, dtype=torch.float32, has_sinks=True, window=6),
    "own-fp8-cache": _attention(num_qo_heads=4, head_dim=40, cache_dtype=torch.float8_e4m3fn),
    "own": _attention(num_qo_heads=8, head_dim=40, soft_cap=2.0, has_sinks=True),
    "own-latent": MLASpec(num_qo_heads=5, kv_lora_rank=40, rope_head_dim=8, scale=0.1, dtype=torch.bfloat16),
    "own-latent-float32": MLASpec(num_qo_heads=3, kv_lora_rank=24, rope_head_dim=6, scale=0.1, dtype=torch.float32),
    "latent": MLASpec(num_qo_heads=16, kv_lora_rank=512, rope_head_dim=64, scale=0.05, dtype=torch.bfloat16),
}

NIGHTLY = {"sinks", "sinks-window", "fp8-cache", "fp8-cache-cuda-cores"}
"""Kernels of their own, which every change need not compile."""


VERIFIED = (
    "tensor-cores",
    "soft-cap-window",
    "sinks-window",
    "fp8-cache",
    "own",
    "own-fp8-cache",
    "own-latent",
    "own-latent-float32",
    "latent",
)
"""With drafts, some of them short."""


def _named(*names: str) -> list[ParameterSet]:
    return [pytest.param(name, marks=[pytest.mark.nightly] if name in NIGHTLY else []) for name in names]


def _rows(spec: AttentionSpec | MLASpec) -> list[tuple[int, ...]]:
    """Shapes of one row of the arguments of `run`."""
    if isinstance(spec, MLASpec):
        heads = spec.num_qo_heads
        return [(heads, spec.kv_lora_rank), (heads, spec.rope_head_dim), (spec.kv_lora_rank,), (spec.rope_head_dim,)]
    kv = (spec.num_kv_heads, spec.head_dim)
    return [(spec.num_qo_heads, spec.head_dim), kv, kv]


class GraphRig:
    """One bucket of a group: persistent inputs, a captured call of `run`, and the reference beside it."""

    def __init__(self, spec: AttentionSpec | MLASpec, query_len: int) -> None:
        self.spec, self.query_len = spec, query_len
        self.tested = GroupRig(CudaHardware().group_class(spec)[0], spec, DEVICE, BLOCK_SIZE)
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
            self.sinks = (torch.linspace(-1, 2, spec.num_qo_heads, device=DEVICE),)
        if isinstance(spec, AttentionSpec) and spec.cache_dtype is not None:
            for rig in (self.tested, self.truth):
                rig.group.set_kv_scales(1, 0.5, 0.125)
        with torch.inference_mode():
            self.stage(build_step(spec, Shape("none", ()), BLOCK_SIZE, self.tested.num_blocks, 0))
            capture = CudaCapture(DEVICE)
            self.tested.group.run(1, *self.args, *self.sinks)
            capture.begin()
            self.out = self.tested.group.run(1, *self.args, *self.sinks)
            self.graph = capture.end()

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
        for name, cache in self.truth.caches[1].items():
            torch.testing.assert_close(self.tested.caches[1][name].cpu().float(), cache.float(), equal_nan=True)


@pytest.mark.parametrize("name", _named(*SPECS))
def test_a_replay_follows_the_lengths(name: str) -> None:
    """Captured without a request; replayed full, with fewer requests, long ones and again short ones."""
    rig = GraphRig(SPECS[name], 1)
    for seed, contexts in enumerate(((3, 0, 17, 5), (40, 39), (60, 1, 2, 61), (1,), (), (4, 4, 4))):
        requests = tuple(Request(context, 1) for context in contexts)
        rig.replay(Shape("decode", requests, num_decodes=len(requests)), seed)


@pytest.mark.parametrize("name", _named(*VERIFIED))
def test_a_replay_verifies_drafts_that_are_short(name: str) -> None:
    """Placeholders in a graph: their rows take no part, whatever lies in the cache where they would be."""
    rig = GraphRig(SPECS[name], 3)
    rng = random.Random(1)
    for seed in range(6):
        requests = tuple(Request(rng.randint(1, 50), 3, unwritten=rng.randint(0, 2)) for _ in range(rng.randint(0, 4)))
        rig.replay(Shape("verify", requests, num_decodes=len(requests), decode_query_len=3), seed)


@pytest.mark.parametrize("name", ["own", "own-latent"])
def test_long_keys_are_split_among_programs(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """This package's own kernels; replays with more splits than a request has keys, and with some for each."""
    monkeypatch.setattr(paged_attention, "SPLIT_KEYS", 16)
    rig = GraphRig(SPECS[name], 1)
    assert rig.tested.group._parts[0].splits == 4  # type: ignore[attr-defined]
    for seed, contexts in enumerate(((3, 0, 70, 5), (80, 39), (1,))):
        requests = tuple(Request(context, 1) for context in contexts)
        rig.replay(Shape("decode", requests, num_decodes=len(requests)), seed)


@pytest.fixture
def forgets_choices() -> Iterator[None]:
    yield
    TUNER.clear()


@pytest.mark.parametrize("is_split", [False, True], ids=["whole", "split"])
@pytest.mark.parametrize("query_len", [1, 3])
@pytest.mark.usefixtures("forgets_choices")
def test_a_tile_kernel_follows_replays(monkeypatch: pytest.MonkeyPatch, query_len: int, is_split: bool) -> None:
    """A kernel in TileLang's place, which `warm_up` has chosen: lengths, short drafts, padding rows, parts."""
    tiles = TorchDecodes()
    monkeypatch.setattr(latent_attention, "tile_decodes", lambda: tiles)
    monkeypatch.setattr(paged_attention, "SPLIT_KEYS", 16 if is_split else 1024)
    spec = MLASpec(num_qo_heads=5, kv_lora_rank=64, rope_head_dim=16, scale=0.1, dtype=torch.bfloat16)
    key = str(spec.dtype), 5, 64, 16, 4 if is_split else 1, size_class(query_len)
    TUNER.take([(latent_attention.EITHER.name, key, len(latent_attention.SPACE.configs))])
    with TUNER.tuning(lambda run: 0.0, Budget(max_seconds=0, max_timings=0), lambda: True):
        rig = GraphRig(spec, query_len)
    rng, num_runs = random.Random(0), tiles.num_runs
    for seed, contexts in enumerate(((3, 0, 70, 5), (80, 39), (1,), (), (4, 4, 4))):
        requests = tuple(Request(context, query_len, rng.randrange(query_len)) for context in contexts)
        rig.replay(Shape("verify", requests, num_decodes=len(requests), decode_query_len=query_len), seed)
    assert len(tiles.made) == 1 and tiles.num_runs == num_runs and "latent_decode on Triton" not in tiles.report()


def test_what_the_library_refuses_runs_on_own_kernels() -> None:
    for name in ("own", "own-float32"):
        assert CudaHardware().group_class(SPECS[name]) == (TritonAttentionGroup, None)
    for name in ("own-latent", "own-latent-float32"):
        assert CudaHardware().group_class(SPECS[name]) == (TritonMLAGroup, None)
    too_long = _attention(num_qo_heads=4, head_dim=512)
    found, reason = CudaHardware().group_class(too_long)
    assert found is CapturedAttentionGroup
    assert reason is not None and "no kernel for head_dim 512" in reason and "head_dim 512 is more than 256" in reason
