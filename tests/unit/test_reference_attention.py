"""The reference paged attention against transformers' eager attention over the whole, unpaged history."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Sequence

import pytest
import torch
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as eager_with_soft_cap
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as eager_with_sinks

import trunnion.reference.attention as reference_attention
from trunnion.contract import BatchCounts, BatchTensors, CacheKind, GroupTensors
from trunnion.interfaces.attention import AttentionSpec, StepInputs
from trunnion.reference.attention import ReferenceAttentionGroup

BLOCK_SIZE = 4
NUM_BLOCKS = 64
PAD_TOKENS = 3
SPEC = AttentionSpec(num_qo_heads=4, num_kv_heads=2, head_dim=6, scale=0.31, dtype=torch.float32)
SPECS = {
    "gqa": SPEC,
    "mha": dataclasses.replace(SPEC, num_kv_heads=4),
    "mqa": dataclasses.replace(SPEC, num_kv_heads=1),
    "one-head": dataclasses.replace(SPEC, num_qo_heads=1, num_kv_heads=1, head_dim=1),
    "window-1": dataclasses.replace(SPEC, window=1),
    "window-5": dataclasses.replace(SPEC, window=5),
    "window-1000": dataclasses.replace(SPEC, window=1000),
    "soft-cap": dataclasses.replace(SPEC, soft_cap=0.7),
    "sinks": dataclasses.replace(SPEC, has_sinks=True),
    "window-sinks": dataclasses.replace(SPEC, window=5, has_sinks=True),
    "window-soft-cap": dataclasses.replace(SPEC, window=7, soft_cap=2.0),
}
STEPS = {
    "prefill": [(0, 13)],
    "one-token": [(0, 1)],
    "chunk": [(9, 6)],
    "chunk-on-block-edge": [(8, 4)],
    "decode": [(1, 1), (15, 1), (4, 1), (30, 1)],
    "verify": [(7, 3), (12, 3)],
    "mixed": [(6, 1), (23, 1), (5, 11), (0, 7)],
}


class Requests:
    """Whole histories of q, k, v, and the paged cache that a group sees of them; what is not written is NaN."""

    def __init__(self, spec: AttentionSpec, lengths: Sequence[int], seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def rows(length: int, heads: int) -> torch.Tensor:
            return torch.randn(length, heads, spec.head_dim, generator=generator).to(spec.dtype)

        self.spec = spec
        self.q = [rows(length, spec.num_qo_heads) for length in lengths]
        self.k = [rows(length, spec.num_kv_heads) for length in lengths]
        self.v = [rows(length, spec.num_kv_heads) for length in lengths]
        self.sinks = torch.randn(spec.num_qo_heads, generator=generator) if spec.has_sinks else None
        pool = (torch.randperm(NUM_BLOCKS - 1, generator=generator) + 1).tolist()
        self.blocks = [[pool.pop() for _ in range(-(-length // BLOCK_SIZE))] for length in lengths]
        tensors = ReferenceAttentionGroup.cache_tensors(spec, BLOCK_SIZE)
        self.caches = [
            {t.name: torch.full((NUM_BLOCKS, *t.shape), float("nan"), dtype=t.dtype) for t in tensors} for _ in range(2)
        ]
        self.group = ReferenceAttentionGroup(spec, 2, torch.device("cpu"))
        self.group.bind_kv_cache(0, self.caches)

    def slots(self, request: int, first: int, last: int) -> list[int]:
        blocks = self.blocks[request]
        return [blocks[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE for i in range(first, last)]

    def put(self, request: int, length: int) -> None:
        """Fill layer 1's cache with what earlier steps would have left."""
        slots = torch.tensor(self.slots(request, 0, length), dtype=torch.int64)
        for name, history in (("k_cache", self.k), ("v_cache", self.v)):
            self.caches[1][name].flatten(0, 1)[slots] = history[request][:length]

    def step(self, spans: Sequence[tuple[int, int, int]], kv_starts: Sequence[int] | None = None) -> StepInputs:
        """A step of (request, first token, end token), with rows of padding that only the tensors have."""
        kv_starts = kv_starts or [0] * len(spans)
        lens = [end - first for _, first, end in spans]
        width = 2 + max((len(blocks) for blocks in self.blocks), default=0)
        table = torch.zeros(len(spans) + 1, width, dtype=torch.int32)
        for row, ((request, _, end), kv_start) in enumerate(zip(spans, kv_starts, strict=True)):
            used = self.blocks[request][kv_start // BLOCK_SIZE : -(-end // BLOCK_SIZE)]
            table[row, : len(used)] = torch.tensor(used, dtype=torch.int32)
        slots = [slot for request, first, end in spans for slot in self.slots(request, first, end)]
        total = sum(lens)
        tensors = BatchTensors(
            input_ids=torch.zeros(total + PAD_TOKENS, dtype=torch.int32),
            positions=_ints([i for _, first, end in spans for i in range(first, end)] + [0] * PAD_TOKENS),
            query_start_loc=_ints([sum(lens[:i]) for i in range(len(lens) + 1)] + [total]),
            seq_lens=_ints([end for _, _, end in spans] + [0]),
            logits_indices=_ints([]),
            groups=(
                GroupTensors(
                    # Padding points at real slots on purpose: rows beyond the counts must not be looked at.
                    slot_mapping=_ints(slots + list(range(PAD_TOKENS))),
                    block_table=table,
                    kv_start=_ints([*kv_starts, 0]),
                ),
            ),
        )
        counts = BatchCounts(
            num_tokens=total, num_reqs=len(spans), max_query_len=max(lens, default=0), max_seq_len=max(tensors.seq_lens)
        )
        return StepInputs(counts, tensors, tensors)

    def run(self, spans: Sequence[tuple[int, int, int]], kv_starts: Sequence[int] | None = None) -> torch.Tensor:
        """Plan and run layer 1; the real rows of the output."""
        step = self.step(spans, kv_starts)
        self.group.plan(step)
        rows = []
        for history in (self.q, self.k, self.v):
            real = [history[request][first:end] for request, first, end in spans]
            padding = history[0].new_full((PAD_TOKENS, *history[0].shape[1:]), float("nan"))
            rows.append(torch.cat([*real, padding]))
        out = self.group.run(1, *rows, self.sinks)
        assert out.shape == rows[0].shape and out.dtype == self.spec.dtype
        assert (out[step.counts.num_tokens :] == 0).all(), "padding rows reached the output"
        return out[: step.counts.num_tokens]

    def expected(self, request: int) -> torch.Tensor:
        """[length, H, D] by transformers, with one additive mask over the whole history."""
        spec, q, k, v = self.spec, self.q[request], self.k[request], self.v[request]
        i, j = torch.arange(len(q))[:, None], torch.arange(len(q))
        visible = j <= i if spec.window is None else (j <= i) & (j > i - spec.window)
        mask = torch.zeros(len(q), len(q)).masked_fill(~visible, float("-inf"))[None, None]
        module = types.SimpleNamespace(
            num_key_value_groups=spec.num_qo_heads // spec.num_kv_heads, training=False, sinks=self.sinks
        )
        heads_first = [x.float().transpose(0, 1)[None] for x in (q, k, v)]
        if spec.has_sinks:
            out, _ = eager_with_sinks(module, *heads_first, mask, scaling=spec.scale)
        else:
            out, _ = eager_with_soft_cap(module, *heads_first, mask, scaling=spec.scale, softcap=spec.soft_cap)
        return out[0]


def _ints(values: Sequence[int]) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


def _close(got: torch.Tensor, want: torch.Tensor, tolerance: float = 1e-5) -> None:
    assert not got.isnan().any()
    torch.testing.assert_close(got.float(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("spec", SPECS)
def test_step_equals_transformers(spec: str, step: str) -> None:
    spans = [(request, cached, cached + new) for request, (cached, new) in enumerate(STEPS[step])]
    requests = Requests(SPECS[spec], [end for _, _, end in spans])
    for request, cached, _ in spans:
        requests.put(request, cached)
    out = requests.run(spans)
    _close(out, torch.cat([requests.expected(request)[first:end] for request, first, end in spans]))


@pytest.mark.parametrize("spec", ["gqa", "window-5", "window-sinks"])
@pytest.mark.parametrize("split", range(1, 14))
def test_prompt_split_anywhere_gives_the_same(spec: str, split: int) -> None:
    requests = Requests(SPECS[spec], [14])
    _close(torch.cat([requests.run([(0, 0, split)]), requests.run([(0, split, 14)])]), requests.expected(0))


@pytest.mark.parametrize("window", [1, 3, 5, 9])
def test_window_needs_only_the_blocks_it_can_see(window: int) -> None:
    """Decode a long request while the host drops every block that it may; dropped blocks become NaN."""
    requests = Requests(dataclasses.replace(SPEC, window=window), [40])
    requests.run([(0, 0, 6)])
    expected = requests.expected(0)
    for token in range(6, 40):
        kv_start = max(0, token - window + 1) // BLOCK_SIZE * BLOCK_SIZE
        for block in requests.blocks[0][: kv_start // BLOCK_SIZE]:
            for cache in requests.caches[1].values():
                cache[block] = float("nan")
        _close(requests.run([(0, token, token + 1)], [kv_start]), expected[token : token + 1])


def test_chunk_with_dropped_blocks() -> None:
    requests = Requests(SPECS["window-5"], [30, 10])
    requests.put(0, 21)
    out = requests.run([(0, 21, 30), (1, 0, 10)], [16, 0])
    _close(out, torch.cat((requests.expected(0)[21:30], requests.expected(1))))


def test_only_the_steps_slots_are_written() -> None:
    requests = Requests(SPEC, [9, 6])
    requests.run([(0, 0, 9), (1, 0, 6)])
    written = set(requests.slots(0, 0, 9) + requests.slots(1, 0, 6))
    for name, cache in requests.caches[1].items():
        real = (~cache.flatten(0, 1).isnan().flatten(1).any(-1)).nonzero().flatten().tolist()
        assert set(real) == written, name
        assert requests.caches[0][name].isnan().all(), "another layer's cache was touched"


def test_padded_draft_is_not_written_and_reaches_no_row_before_it() -> None:
    requests = Requests(SPEC, [8, 6])
    requests.put(0, 5)
    before = {name: cache.clone() for name, cache in requests.caches[1].items()}
    step = requests.step([(0, 5, 8), (1, 0, 6)])
    slots = step.host.groups[0].slot_mapping
    assert slots is not None
    slots[1:3] = -1
    requests.group.plan(step)
    rows = [torch.cat((history[0][5:8], history[1])) for history in (requests.q, requests.k, requests.v)]
    for history in rows[1:]:
        history[1:3] = float("nan")
    out = requests.group.run(1, *rows)
    _close(out[:1], requests.expected(0)[5:6])
    _close(out[3:], requests.expected(1))
    for name, cache in requests.caches[1].items():
        for slot in requests.slots(0, 6, 8):
            assert cache.flatten(0, 1)[slot].isnan().all(), name
        block = requests.blocks[0][0]
        assert torch.equal(cache[block], before[name][block])


def test_step_without_tokens() -> None:
    requests = Requests(SPEC, [4])
    assert requests.run([]).shape == (0, 4, 6)
    assert all(cache.isnan().all() for cache in requests.caches[1].values())


def test_nan_of_one_request_stays_in_it() -> None:
    requests = Requests(SPEC, [9, 6])
    requests.k[0][3] = requests.v[0][3] = float("nan")
    out = requests.run([(0, 0, 9), (1, 0, 6)])
    _close(out[9:], requests.expected(1))
    assert out[3:9].isnan().all()


def test_slices_of_queries_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_attention, "SCORE_BYTES", 4 * 4 * 23 * 3)
    requests = Requests(SPECS["window-sinks"], [23])
    _close(requests.run([(0, 0, 23)]), requests.expected(0))


def test_shuffled_requests_give_the_same_rows() -> None:
    requests = Requests(SPEC, [9, 6, 17])
    out = requests.run([(0, 0, 9), (1, 0, 6), (2, 0, 17)])
    shuffled = requests.run([(2, 0, 17), (0, 0, 9), (1, 0, 6)])
    assert torch.equal(torch.cat((shuffled[17:], shuffled[:17])), out)


def test_bfloat16_is_as_close_as_rounding_allows() -> None:
    requests = Requests(dataclasses.replace(SPEC, dtype=torch.bfloat16), [13])
    _close(requests.run([(0, 0, 13)]), requests.expected(0), tolerance=2**-8)


def test_specs_name_their_cache_kind() -> None:
    assert SPEC.kind is CacheKind.FULL
    assert SPECS["window-5"].kind is CacheKind.WINDOW


def test_wrong_number_of_caches_is_refused() -> None:
    group = ReferenceAttentionGroup(SPEC, 2, torch.device("cpu"))
    with pytest.raises(ValueError, match="expected the caches of 2 layers, got 0"):
        group.bind_kv_cache(0, [])


@pytest.mark.parametrize("scales", [(1.0, 1.0), (0.25, 4.0), (1e-3, 2e-3)], ids=str)
def test_a_cache_in_float8_holds_scaled_values(scales: tuple[float, float]) -> None:
    """What is used is what the cache holds, times the scale; the smallest scales cut what is stored."""
    spec = dataclasses.replace(SPEC, cache_dtype=torch.float8_e4m3fn)
    requests = Requests(spec, [13])
    requests.group.set_kv_scales(1, *scales)
    out = requests.run([(0, 0, 13)])
    for rows, scale in ((requests.k, scales[0]), (requests.v, scales[1])):
        rows[0] = (rows[0] / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale
    _close(out, requests.expected(0))
    slots = requests.slots(0, 0, 13)
    stored = requests.caches[1]["k_cache"].float().flatten(0, 1)[slots]
    _close(stored * scales[0], requests.k[0])


@pytest.mark.parametrize("scales", [(0.0, 1.0), (1.0, -2.0), (float("nan"), 1.0)], ids=str)
def test_scales_are_positive(scales: tuple[float, float]) -> None:
    group = ReferenceAttentionGroup(dataclasses.replace(SPEC, cache_dtype=torch.float8_e4m3fn), 1, torch.device("cpu"))
    with pytest.raises(ValueError, match="layer 0: scales of cached keys and values are positive, got"):
        group.set_kv_scales(0, *scales)
