"""The native cache writes and paged attention against a loop in float64, with every set of kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.usefixtures("isa", "inference")
Check = Callable[[torch.Tensor, torch.Tensor], None]


def operators() -> Any:
    return torch.ops.trunnion_cpu


@dataclass(frozen=True, kw_only=True)
class Case:
    """One shape; requests are (cached tokens after the step, queries, dropped tokens, queries without a slot)."""

    requests: tuple[tuple[int, int, int, int], ...] = ((1, 1, 0, 0), (70, 1, 0, 0), (129, 1, 0, 0))
    q_heads: int = 6
    kv_heads: int = 2
    head_dim: int = 16
    block_size: int = 16
    window: int = 0
    soft_cap: float = 0.0
    sinks: bool = False


CASES = {
    "gqa": Case(),
    "mha": Case(q_heads=3, kv_heads=3),
    "many-queries-to-a-head": Case(q_heads=14, kv_heads=2),
    "one-key": Case(requests=((1, 1, 0, 0),)),
    "no-requests": Case(requests=()),
    "long": Case(requests=((700, 1, 0, 0), (3, 1, 0, 0)), head_dim=64),
    "odd-heads": Case(head_dim=5, block_size=3),
    "heads-of-20": Case(head_dim=20),
    "heads-of-72": Case(head_dim=72),
    "heads-of-256": Case(head_dim=256, q_heads=2, kv_heads=1),
    "window": Case(window=9),
    "window-of-one": Case(window=1),
    "window-and-dropped-blocks": Case(window=40, requests=((100, 1, 48, 0), (90, 1, 32, 0))),
    "dropped": Case(requests=((100, 1, 48, 0), (90, 1, 16, 0))),
    "soft-cap": Case(soft_cap=3.0),
    "sinks": Case(sinks=True),
    "sinks-long": Case(sinks=True, requests=((700, 1, 0, 0), (3, 1, 0, 0)), head_dim=64),
    "sinks-window-soft-cap": Case(sinks=True, window=17, soft_cap=5.0),
    "several-queries": Case(requests=((5, 3, 0, 0), (80, 3, 0, 0), (64, 2, 0, 0))),
    "several-queries-window": Case(requests=((5, 3, 0, 0), (80, 3, 0, 0)), window=2),
    "queries-without-a-slot": Case(requests=((80, 4, 0, 2), (66, 3, 0, 1))),
    "prefill": Case(requests=((7, 7, 0, 0), (200, 200, 0, 0))),
    "prefill-mha": Case(requests=((65, 65, 0, 0),), q_heads=3, kv_heads=3),
    "prefill-of-many-queries-to-a-head": Case(requests=((64, 64, 0, 0),), q_heads=71, kv_heads=1, head_dim=8),
    "chunk": Case(requests=((300, 63, 0, 0), (129, 64, 0, 0)), head_dim=64),
    "chunk-after-dropped": Case(requests=((150, 40, 48, 0),)),
    "chunk-window": Case(requests=((150, 40, 0, 0), (300, 100, 96, 0)), window=33),
    "chunk-window-of-one": Case(requests=((90, 40, 0, 0),), window=1),
    "chunk-soft-cap": Case(requests=((90, 40, 0, 0),), soft_cap=3.0),
    "chunk-sinks": Case(requests=((90, 40, 0, 0), (130, 130, 0, 0)), sinks=True),
    "chunk-sinks-window-soft-cap": Case(requests=((190, 90, 0, 0),), sinks=True, window=17, soft_cap=5.0),
    "chunk-without-slots-at-the-end": Case(requests=((80, 30, 0, 7), (66, 20, 0, 20)), sinks=True),
    "mixed": Case(requests=((70, 1, 0, 0), (1, 1, 0, 0), (90, 3, 0, 0), (40, 40, 0, 0), (100, 17, 0, 0))),
    "chunk-odd-heads": Case(requests=((70, 33, 0, 0),), head_dim=5, block_size=3),
    "chunk-heads-of-20": Case(requests=((70, 33, 0, 0),), head_dim=20),
    "chunk-heads-of-72": Case(requests=((70, 33, 0, 0),), head_dim=72),
    "chunk-heads-of-512": Case(requests=((70, 33, 0, 0),), head_dim=512, q_heads=2, kv_heads=1),
}


class Step:
    """Caches, tables and host tensors of a case; unwritten cache rows are NaN."""

    def __init__(self, case: Case, dtype: torch.dtype) -> None:
        self.case = case
        blocks = [-(-(length - dropped) // case.block_size) for length, _, dropped, _ in case.requests]
        order = (torch.randperm(sum(blocks)) + 1).tolist()
        width = max(blocks, default=0) + 1
        self.table = torch.zeros(len(blocks), width, dtype=torch.int32)
        shape = (sum(blocks) + 1, case.block_size, case.kv_heads, case.head_dim)
        self.k_cache, self.v_cache = (torch.full(shape, float("nan"), dtype=dtype) for _ in range(2))
        self.keys: list[list[torch.Tensor]] = []
        starts, slots = [0], []
        for index, (length, queries, dropped, without) in enumerate(case.requests):
            mine = [order.pop() for _ in range(blocks[index])]
            self.table[index, : len(mine)] = torch.tensor(mine, dtype=torch.int32)
            rows = [mine[i // case.block_size] * case.block_size + i % case.block_size for i in range(length - dropped)]
            written = rows[: len(rows) - without]
            content = [torch.randn(len(written), case.kv_heads, case.head_dim).to(dtype) for _ in range(2)]
            for cache, values in zip((self.k_cache, self.v_cache), content, strict=True):
                cache.view(-1, case.kv_heads, case.head_dim)[written] = values
            self.keys.append(content)
            starts.append(starts[-1] + queries)
            slots += (rows[len(rows) - queries : len(written)] if queries > without else []) + [-1] * without
        self.query_start_loc = torch.tensor(starts, dtype=torch.int32)
        self.seq_lens = torch.tensor([length for length, *_ in case.requests], dtype=torch.int32)
        self.kv_start = torch.tensor([dropped for _, _, dropped, _ in case.requests], dtype=torch.int32)
        self.slots = torch.tensor(slots, dtype=torch.int32)
        self.q = torch.randn(starts[-1], case.q_heads, case.head_dim).to(dtype)
        self.sinks = torch.randn(case.q_heads) if case.sinks else None

    def attend(self) -> torch.Tensor:
        case = self.case
        plan = operators().plan_attention(
            self.query_start_loc, self.seq_lens, self.kv_start, self.slots, len(case.requests), case.window
        )
        out = torch.full_like(self.q, float("nan"))
        operators().attend(
            self.q, self.k_cache, self.v_cache, self.table, plan, 0.3, case.window, case.soft_cap, self.sinks, out
        )
        return out

    def live_rows(self) -> list[int]:
        """Rows whose query has a slot."""
        return [row for row, slot in enumerate(self.slots.tolist()) if slot >= 0]

    def expected(self) -> torch.Tensor:
        case, out = self.case, torch.zeros(self.q.shape, dtype=torch.float64)
        for index, (length, queries, dropped, _) in enumerate(case.requests):
            keys, values = (content.double() for content in self.keys[index])
            for query in range(queries):
                row = int(self.query_start_loc[index]) + query
                own = length - queries + query - dropped
                first = max(0, own - case.window + 1) if case.window else 0
                seen = slice(first, own + 1)
                for head in range(case.q_heads):
                    kv_head = head // (case.q_heads // case.kv_heads)
                    scores = keys[seen, kv_head] @ self.q[row, head].double() * 0.3
                    if case.soft_cap:
                        scores = case.soft_cap * torch.tanh(scores / case.soft_cap)
                    sink = self.sinks[head : head + 1].double() if self.sinks is not None else scores[:0]
                    weights = torch.softmax(torch.cat((scores, sink)), dim=0)[: len(scores)]
                    out[row, head] = weights @ values[seen, kv_head]
        return out


@pytest.mark.parametrize("name", CASES)
def test_attention_over_a_paged_cache(name: str, dtype: torch.dtype, check: Check, threads: int) -> None:
    step = Step(CASES[name], dtype)
    found, live = step.attend(), step.live_rows()
    check(found[live], step.expected()[live])


def test_queries_are_read_where_they_lie(dtype: torch.dtype, check: Check) -> None:
    """Heads of a fused projection."""
    step = Step(CASES["gqa"], dtype)
    expected = step.attend()
    fused = torch.full((step.q.shape[0], 200), float("nan"), dtype=dtype)
    heads = fused[:, 8 : 8 + step.q[0].numel()].unflatten(1, step.q.shape[1:])
    heads.copy_(step.q)
    step.q = heads
    found = torch.empty(step.q.shape, dtype=dtype)
    case = step.case
    plan = operators().plan_attention(step.query_start_loc, step.seq_lens, step.kv_start, step.slots, 3, 0)
    operators().attend(
        heads, step.k_cache, step.v_cache, step.table, plan, 0.3, case.window, case.soft_cap, None, found
    )
    assert torch.equal(found, expected)


def test_plans_of_another_step_are_refused() -> None:
    step = Step(CASES["gqa"], torch.float32)
    step.q = step.q[:1]
    with pytest.raises(RuntimeError, match="plan of another step"):
        step.attend()


def _rotated(x: torch.Tensor, angles: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """As complex numbers: x [T, H, D] float64, angles [T, R]."""
    half = angles.shape[1]
    rotated, rest = x[..., : 2 * half], x[..., 2 * half :]
    pairs = rotated.unflatten(-1, (half, 2)) if interleaved else rotated.unflatten(-1, (2, half)).transpose(-1, -2)
    turned = torch.view_as_real(
        torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angles), angles)[:, None]
    )
    turned = turned if interleaved else turned.transpose(-1, -2)
    return torch.cat((turned.flatten(-2), rest), dim=-1)


@pytest.mark.parametrize(
    ("head_dim", "rotary_dim", "interleaved", "section"),
    [
        (16, 16, False, []),
        (16, 16, True, []),
        (64, 64, False, []),
        (20, 10, False, []),
        (20, 6, True, []),
        (16, 16, False, [2, 3, 3]),
    ],
    ids=["halves", "neighbours", "wide", "partial", "partial-neighbours", "three-axes"],
)
def test_rotation_and_cache_writes(
    dtype: torch.dtype,
    check: Check,
    head_dim: int,
    rotary_dim: int,
    interleaved: bool,
    section: list[int],
    threads: int,
) -> None:
    """Rows without a slot are rotated and not written; rows past the slots are left alone."""
    for tokens, padding in ((1, 0), (5, 3), (40, 0)):
        fused = torch.full((tokens + padding, 12 * head_dim + 7), float("nan"), dtype=dtype)
        fused[:tokens] = torch.randn(tokens, fused.shape[1])
        q, k, v = (
            fused[:, first * head_dim : end * head_dim].unflatten(1, (-1, head_dim))
            for first, end in ((0, 6), (6, 9), (9, 12))
        )
        positions = torch.randint(0, 50, (tokens + padding, 3) if section else (tokens + padding,), dtype=torch.int32)
        frequencies = torch.rand(rotary_dim // 2, dtype=torch.float64)
        table = torch.arange(50).unsqueeze(1) * frequencies
        cos_sin = torch.cat((table.cos(), table.sin()), dim=1).float()
        slots = torch.randperm(max(tokens, 1) * 2)[:tokens].to(torch.int32)
        slots[1::4] = -1
        caches = [torch.full((max(tokens, 1), 2, 3, head_dim), float("nan"), dtype=dtype) for _ in range(2)]
        found_q = operators().rotate_and_write_cache(q, k, v, positions, cos_sin, interleaved, section, slots, *caches)
        axes = [run % 3 for run, pairs in enumerate(section) for _ in range(pairs)] or None
        where = positions[:tokens, axes] if axes else positions[:tokens, None].expand(-1, rotary_dim // 2)
        angles = where.double() * frequencies
        check(found_q[:tokens], _rotated(q[:tokens].double(), angles, interleaved))
        expected_k = _rotated(k[:tokens].double(), angles, interleaved)
        kept = slots >= 0
        by_token = [cache.view(-1, 3, head_dim) for cache in caches]
        check(by_token[0][slots[kept].long()], expected_k[kept])
        assert torch.equal(by_token[1][slots[kept].long()], v[:tokens][kept])
        others = torch.ones(by_token[0].shape[0], dtype=torch.bool)
        others[slots[kept].long()] = False
        assert all(rows[others].isnan().all() for rows in by_token)
        again = [torch.full_like(cache, float("nan")) for cache in caches]
        operators().write_cache(k, v, slots, *again)
        assert torch.equal(again[0].view(-1, 3, head_dim)[slots[kept].long()], k[:tokens][kept])
        assert torch.equal(again[1].nan_to_num(), caches[1].nan_to_num())


def test_what_lies_outside_is_named() -> None:
    k = torch.randn(2, 3, 8)
    caches = [torch.zeros(2, 4, 3, 8) for _ in range(2)]
    slots = torch.tensor([0, 8], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="slot 8 of a cache of 8"):
        operators().write_cache(k, k, slots, *caches)
    table = torch.zeros(10, 8)
    positions = torch.tensor([3, 10], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="position 10 of a table of 10"):
        operators().rotate_and_write_cache(k, k, k, positions, table, False, [], slots - 1, *caches)
