"""Paged attention in the interpreter against the reference: chunks, windows, caps, sinks, placeholders, padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from trunnion.interfaces.attention import AttentionSpec
from trunnion.reference.attention import attend
from trunnion_cuda.kernels import paged_attention as module
from trunnion_cuda.kernels.paged_attention import PagedKeys, paged_attention

CLOSE = {torch.float32: {"rtol": 1e-4, "atol": 1e-5}, torch.bfloat16: {"rtol": 3e-2, "atol": 1e-2}}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
BLOCK_SIZE = 4
Randn = Callable[..., torch.Tensor]


class Step:
    """Requests of (new tokens, cached tokens after the step), their caches, and what the reference makes of them."""

    def __init__(
        self,
        randn: Randn,
        requests: Sequence[tuple[int, int]],
        heads: tuple[int, int, int] = (6, 2, 12),
        dtype: torch.dtype = torch.float32,
        dropped: Sequence[int] = (),
        placeholders: int = 0,
    ) -> None:
        num_heads, kv_heads, head_dim = heads
        self.spec = AttentionSpec(
            num_qo_heads=num_heads, num_kv_heads=kv_heads, head_dim=head_dim, scale=head_dim**-0.5, dtype=dtype
        )
        self.requests, self.dropped = requests, dropped or [0] * len(requests)
        num_tokens = sum(new for new, _ in requests)
        self.q = randn(num_tokens, num_heads, head_dim, dtype=dtype)
        widths = [-(-(total - start) // BLOCK_SIZE) for (_, total), start in zip(requests, self.dropped, strict=True)]
        num_blocks = sum(widths) + 1
        # What no request owns holds NaN: block 0, and the rest of each last block.
        self.k_cache, self.v_cache = (
            torch.full((num_blocks, BLOCK_SIZE, kv_heads, head_dim), torch.nan).to(dtype) for _ in "kv"
        )
        order = (torch.randperm(num_blocks - 1, generator=torch.Generator().manual_seed(0)) + 1).tolist()
        table = torch.zeros(len(requests), max([*widths, 1]), dtype=torch.int32)
        self.keys: list[tuple[torch.Tensor, torch.Tensor]] = []
        slots = torch.zeros(num_tokens, dtype=torch.int32)
        starts = [0]
        for index, ((new, total), start) in enumerate(zip(requests, self.dropped, strict=True)):
            table[index, : widths[index]] = torch.tensor([order.pop() for _ in range(widths[index])], dtype=torch.int32)
            blocks = table[index, : widths[index]].long()
            kept = total - start - (placeholders if index == 0 else 0)
            k, v = (randn(kept, kv_heads, head_dim, dtype=dtype) for _ in "kv")
            token = torch.arange(kept)
            where = blocks[token // BLOCK_SIZE], token % BLOCK_SIZE
            self.k_cache[where], self.v_cache[where] = k, v
            self.keys.append((k, v))
            if index == 0 and placeholders:
                slots[new - placeholders : new] = -1
            starts.append(starts[-1] + new)
        self.starts = starts
        self.paged = PagedKeys(
            block_table=table,
            seq_lens=torch.tensor([total for _, total in requests], dtype=torch.int32),
            query_start_loc=torch.tensor(starts, dtype=torch.int32),
            max_query_len=max([new for new, _ in requests], default=1),
            kv_start=torch.tensor(self.dropped, dtype=torch.int32) if dropped else None,
            slot_mapping=slots if placeholders else None,
        )

    def run(self, **options: object) -> torch.Tensor:
        paged = options.pop("keys", self.paged)
        return paged_attention(self.q, self.k_cache, self.v_cache, paged, scale=self.spec.scale, **options)

    def want(self, sinks: torch.Tensor | None = None, **options: object) -> torch.Tensor:
        """Of each request's rows that have a slot."""
        spec, rows = replace(self.spec, **options), []
        for start, (k, v), (new, total), dropped in zip(
            self.starts, self.keys, self.requests, self.dropped, strict=False
        ):
            own = len(k) - (total - dropped - new)
            rows.append(attend(self.q[start : start + own], k, v, spec, len(k) - own, sinks).to(self.q.dtype))
        return torch.cat(rows) if rows else self.q


DECODES = [(1, 1), (1, 9), (1, 70)]
PREFILLS = [(5, 5), (1, 3), (0, 0), (9, 23)]


@DTYPES
@pytest.mark.parametrize("requests", [DECODES, PREFILLS], ids=["decodes", "prefills"])
@pytest.mark.parametrize("heads", [(6, 2, 12), (3, 3, 16), (7, 1, 10)], ids=str)
def test_equals_the_reference(
    randn: Randn, requests: list[tuple[int, int]], heads: tuple[int, int, int], dtype: torch.dtype
) -> None:
    step = Step(randn, requests, heads, dtype)
    torch.testing.assert_close(step.run(), step.want(), **CLOSE[dtype])


@pytest.mark.parametrize("requests", [DECODES, PREFILLS], ids=["decodes", "prefills"])
@pytest.mark.parametrize("window", [1, 3, 8, 100])
def test_windows(randn: Randn, requests: list[tuple[int, int]], window: int) -> None:
    step = Step(randn, requests)
    torch.testing.assert_close(step.run(window=window), step.want(window=window), **CLOSE[torch.float32])


def test_keys_of_a_tile_that_some_of_its_queries_do_not_see(randn: Randn) -> None:
    """60 queries share a tile, and 32 keys: the last queries see none of the first keys."""
    step = Step(randn, [(60, 60)], (1, 1, 8))
    step.q, step.k_cache, step.v_cache = step.q.bfloat16(), step.k_cache.bfloat16(), step.v_cache.bfloat16()
    step.keys = [(k.bfloat16(), v.bfloat16()) for k, v in step.keys]
    torch.testing.assert_close(step.run(window=2), step.want(window=2), **CLOSE[torch.bfloat16])


def test_a_window_that_has_dropped_its_first_blocks(randn: Randn) -> None:
    step = Step(randn, [(1, 30), (3, 22)], dropped=[24, 12])
    torch.testing.assert_close(step.run(window=5), step.want(window=5), **CLOSE[torch.float32])


@pytest.mark.parametrize("requests", [DECODES, PREFILLS], ids=["decodes", "prefills"])
def test_soft_caps_and_sinks(randn: Randn, requests: list[tuple[int, int]]) -> None:
    step = Step(randn, requests)
    sinks = 3 * randn(6)
    got = step.run(soft_cap=0.7, sinks=sinks)
    torch.testing.assert_close(got, step.want(sinks, soft_cap=0.7), **CLOSE[torch.float32])


@pytest.mark.parametrize("splits", [2, 4])
@pytest.mark.parametrize("window", [None, 7])
def test_split_keys(randn: Randn, splits: int, window: int | None) -> None:
    step = Step(randn, [*DECODES, (2, 40)])
    sinks = randn(6)
    got = step.run(splits=splits, sinks=sinks, window=window)
    torch.testing.assert_close(got, step.want(sinks, window=window), **CLOSE[torch.float32])


def test_placeholders_are_seen_by_nobody(randn: Randn) -> None:
    step = Step(randn, [(4, 11), (4, 9)], placeholders=2)
    got, want = step.run(), step.want()
    torch.testing.assert_close(torch.cat((got[:2], got[4:])), want, **CLOSE[torch.float32])
    assert got.isfinite().all()


@pytest.mark.parametrize("splits", [1, 2])
def test_padding_requests_of_a_graph_give_zeros(randn: Randn, splits: int) -> None:
    """Uniform decodes of two tokens; the padding requests have block 0, which holds NaN, and rows full of NaN."""
    step = Step(randn, [(2, 9), (2, 2)])
    want = step.want()
    step.q = torch.cat((step.q, torch.full((4, 6, 12), torch.nan)))
    table = torch.cat((step.paged.block_table, torch.zeros(2, step.paged.block_table.shape[1], dtype=torch.int32)))
    lens = torch.cat((step.paged.seq_lens, torch.zeros(2, dtype=torch.int32)))
    keys = PagedKeys(block_table=table, seq_lens=lens, query_start_loc=None, max_query_len=2)
    got = step.run(keys=keys, splits=splits)
    torch.testing.assert_close(got[:4], want, **CLOSE[torch.float32])
    assert torch.equal(got[4:], torch.zeros(4, 6, 12))


@pytest.mark.parametrize("splits", [1, 2])
def test_rows_of_no_request_become_zero(randn: Randn, splits: int) -> None:
    step = Step(randn, [(1, 6), (2, 7)])
    want = step.want()
    step.q = torch.cat((step.q, torch.full((3, 6, 12), torch.nan)))
    got = step.run(splits=splits, out=torch.full_like(step.q, torch.nan))
    torch.testing.assert_close(got[:3], want, **CLOSE[torch.float32])
    assert torch.equal(got[3:], torch.zeros(3, 6, 12))


def test_a_cache_in_fp8(randn: Randn) -> None:
    step = Step(randn, PREFILLS)
    k_scale, v_scale = 0.02, 0.03
    step.keys = [
        tuple(
            (x / scale).to(torch.float8_e4m3fn).float() * scale
            for x, scale in zip(pair, (k_scale, v_scale), strict=True)
        )
        for pair in step.keys
    ]
    step.k_cache, step.v_cache = (
        (x / scale).to(torch.float8_e4m3fn) for x, scale in ((step.k_cache, k_scale), (step.v_cache, v_scale))
    )
    torch.testing.assert_close(step.run(k_scale=k_scale, v_scale=v_scale), step.want(), **CLOSE[torch.float32])


def test_no_tokens_and_wrong_shapes(randn: Randn) -> None:
    assert Step(randn, [(0, 0)]).run().shape == (0, 6, 12)
    with pytest.raises(ValueError, match="6 query heads do not divide among 4 KV heads"):
        Step(randn, DECODES, (6, 4, 8)).run()
    with pytest.raises(ValueError, match="head_dim 300 is more than 256"):
        Step(randn, DECODES, (2, 2, 300)).run()


def test_splits_fill_the_device_without_slicing_too_thin() -> None:
    calls = (500, 1), (8192, 8), (131072, 8), (131072, 999)
    assert [module.num_splits(keys, programs, 132) for keys, programs in calls] == [1, 8, 16, 1]


@pytest.mark.nightly
@DTYPES
@pytest.mark.parametrize("config", module.SPACE.configs, ids=lambda config: str(dict(config.blocks)))
@pytest.mark.parametrize("window", [None, 37])
def test_every_configuration(
    randn: Randn,
    config: module.Config,
    window: int | None,
    dtype: torch.dtype,
    force_configuration: Callable[..., None],
) -> None:
    requests = [(1, 300), (3, 131), (2, 2)] if config["M"] == 16 else [(60, 200), (35, 35), (1, 90)]
    step = Step(randn, requests, (6, 2, 20), dtype)
    force_configuration(module, config)
    sinks = randn(6)
    torch.testing.assert_close(step.run(window=window, sinks=sinks), step.want(sinks, window=window), **CLOSE[dtype])
