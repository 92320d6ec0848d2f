"""torch_npu's attention and cache writes on the simulated NPU, against torch's own attention and plain loops."""

from __future__ import annotations

import hardware.ascend.tests.simulated  # noqa: F401  (skips this module where there is a real device)
import pytest
import torch
from hardware.ascend.tests.near import assert_near
from torch.nn import functional

torch_npu = pytest.importorskip("torch_npu")

BF16 = torch.bfloat16
CAUSAL = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
PAGED = {
    "atten_mask": CAUSAL,
    "sparse_mode": 3,
    "actual_seq_qlen": [1, 3],
    "actual_seq_kvlen": [4, 9],
    "num_query_heads": 4,
    "num_key_value_heads": 2,
    "block_size": 16,
    "block_table": torch.tensor([[1], [2]], dtype=torch.int32),
    "input_layout": "TND",
}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """[N, S, D] over [KV, T, D] by torch, in float64; `mask` is True where a query sees a key."""
    parts = (part.double().unsqueeze(0) for part in (query, key, value))
    return functional.scaled_dot_product_attention(*parts, attn_mask=mask, enable_gqa=True)[0]


@pytest.mark.parametrize("layout", ["BSH", "BSND", "BNSD", "BNSD_BSND"])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_attention_of_dense_layouts(layout: str, masked: bool) -> None:
    """[B, N, S, D] in every layout; `atten_mask` is True where a query does not see a key."""
    query, key, value = torch.randn(2, 4, 5, 16, dtype=BF16), *torch.randn(2, 2, 2, 7, 16, dtype=BF16)
    sees = torch.rand(2, 1, 5, 7) > 0.3
    sees[..., 0] = True
    expected = torch.stack([attention(query[b], key[b], value[b], sees[b] if masked else None) for b in range(2)])
    inputs = [part if layout.startswith("BNSD") else part.transpose(1, 2) for part in (query, key, value)]
    if layout == "BSH":
        inputs = [part.flatten(2) for part in inputs]
    found, _ = torch_npu.npu_fused_infer_attention_score(
        *(part.contiguous().npu() for part in inputs),
        atten_mask=(~sees).npu() if masked else None,
        num_heads=4,
        num_key_value_heads=2,
        scale=0.25,
        input_layout=layout,
    )
    found = found.unflatten(-1, (4, 16)) if layout == "BSH" else found
    assert_near(found if layout == "BNSD" else found.transpose(1, 2), expected)


@pytest.mark.parametrize("paged", [False, True], ids=["rows", "pages"])
@pytest.mark.parametrize("cache", ["BnBsH", "BnNBsD"])
def test_attention_of_ragged_requests(paged: bool, cache: str) -> None:
    """Prefill and decode in one: lengths of queries are sums, those of keys too unless they lie in pages."""
    heads, kv_heads, size, block = 4, 2, 64, 16
    rows, lengths = [3, 1, 5], [3, 19, 33]
    query = torch.randn(sum(rows), heads, size, dtype=BF16)
    key, value = ([torch.randn(length, kv_heads, size, dtype=BF16) for length in lengths] for _ in range(2))
    expected = []
    for own, k, v in zip(query.split(rows), key, value, strict=True):
        sees = torch.ones(len(own), len(k), dtype=torch.bool).tril(len(k) - len(own))
        heads_first = (part.transpose(0, 1) for part in (own, k, v))
        expected.append(attention(*heads_first, sees).transpose(0, 1))
    if paged:
        table = torch.tensor([[7, 0, 0], [2, 5, 0], [1, 6, 3]], dtype=torch.int32)
        caches = [torch.full((8, block, kv_heads, size), torch.nan, dtype=BF16) for _ in range(2)]
        for pages, parts in zip(caches, (key, value), strict=True):
            for request, part in enumerate(parts):
                for place, token in enumerate(part):
                    pages[table[request, place // block], place % block] = token
        stored = [pages.flatten(2) if cache == "BnBsH" else pages.transpose(1, 2).contiguous() for pages in caches]
        rest = {"block_table": table.npu(), "block_size": block, "actual_seq_lengths_kv": lengths}
    else:
        stored = [torch.cat(key), torch.cat(value)]
        rest = {"actual_seq_lengths_kv": torch.tensor(lengths).cumsum(0).tolist()}
    found, _ = torch_npu.npu_fused_infer_attention_score(
        query.npu(),
        *(part.npu() for part in stored),
        atten_mask=CAUSAL.npu(),
        sparse_mode=3,
        actual_seq_lengths=torch.tensor(rows).cumsum(0).tolist(),
        num_heads=heads,
        num_key_value_heads=kv_heads,
        scale=size**-0.5,
        input_layout="TND",
        **rest,
    )
    assert_near(found, torch.cat(expected))


def test_attention_in_a_band_is_a_window() -> None:
    query, key, value = torch.randn(4, 9, 16, dtype=BF16), *torch.randn(2, 2, 20, 16, dtype=BF16)
    row, place = torch.arange(9)[:, None] + 11, torch.arange(20)
    expected = attention(query, key, value, (place <= row) & (place > row - 5))
    found, _ = torch_npu.npu_fused_infer_attention_score(
        query.unsqueeze(0).npu(),
        key.unsqueeze(0).npu(),
        value.unsqueeze(0).npu(),
        atten_mask=CAUSAL.npu(),
        sparse_mode=4,
        pre_tokens=4,
        next_tokens=0,
        num_heads=4,
        num_key_value_heads=2,
        scale=0.25,
        input_layout="BNSD",
    )
    assert_near(found[0], expected)


def test_attention_of_latents_has_its_rotary_part_apart() -> None:
    """MLA: 512 numbers are keys and values, 64 more are keys only."""
    heads, block = 8, 16
    query, rope = torch.randn(2, heads, 512, dtype=BF16), torch.randn(2, heads, 64, dtype=BF16)
    cache, rope_cache = torch.randn(4, block, 512, dtype=BF16), torch.randn(4, block, 64, dtype=BF16)
    lengths, table = [5, 20], torch.tensor([[3, 0], [1, 2]], dtype=torch.int32)
    expected = []
    for own, own_rope, length, blocks in zip(query, rope, lengths, table.long(), strict=True):
        latent, rotary = (pages[blocks].flatten(0, 1)[:length] for pages in (cache, rope_cache))
        scores = (own.double() @ latent.double().t() + own_rope.double() @ rotary.double().t()) * 0.05
        expected.append(scores.softmax(-1) @ latent.double())
    found, _ = torch_npu.npu_fused_infer_attention_score(
        query.unsqueeze(1).npu(),
        cache.npu(),
        cache.npu(),
        query_rope=rope.unsqueeze(1).npu(),
        key_rope=rope_cache.npu(),
        block_table=table.npu(),
        block_size=block,
        actual_seq_lengths_kv=lengths,
        num_heads=heads,
        num_key_value_heads=1,
        scale=0.05,
        input_layout="BSND",
    )
    assert_near(found.squeeze(1), torch.stack(expected))


def test_attention_gives_logarithms_of_its_sums() -> None:
    query, key, value = torch.randn(1, 4, 5, 16, dtype=BF16), *torch.randn(2, 1, 4, 7, 16, dtype=BF16)
    _, lse = torch_npu.npu_fused_infer_attention_score(
        query.npu(), key.npu(), value.npu(), num_heads=4, scale=0.25, input_layout="BNSD", softmax_lse_flag=True
    )
    expected = torch.logsumexp(query.double() @ key.double().transpose(-1, -2) * 0.25, -1, keepdim=True)
    assert_near(lse, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actual_seq_lengths": None}, "needs actual_seq_lengths"),
        ({"actual_seq_lengths": [3, 2]}, r"are sums up to 5 tokens, not \[3, 2\]"),
        ({"actual_seq_lengths": [3, 4]}, r"are sums up to 5 tokens, not \[3, 4\]"),
        ({"actual_seq_lengths_kv": [9]}, "has 1 lengths for 2 requests"),
        ({"atten_mask": None}, r"sparse_mode 3 needs an atten_mask of \[2048, 2048\], not None"),
        ({"atten_mask": CAUSAL[:64, :64]}, r"not \[64, 64\]"),
        ({"atten_mask": ~CAUSAL}, "must hide what lies above its diagonal"),
        ({"key_rope": torch.zeros(9, 1, 64, dtype=BF16)}, "given both or neither"),
    ],
    ids=["no lengths", "no sums", "a row too many", "requests", "no mask", "small mask", "wrong mask", "half a rope"],
)
def test_what_the_document_of_attention_refuses(change: dict[str, object], message: str) -> None:
    arguments = {
        "atten_mask": CAUSAL,
        "sparse_mode": 3,
        "actual_seq_lengths": [3, 5],
        "actual_seq_lengths_kv": [4, 9],
        "num_heads": 4,
        "num_key_value_heads": 1,
        "input_layout": "TND",
        **change,
    }
    moved = {name: value.npu() if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}
    query, key = torch.randn(5, 4, 128, dtype=BF16).npu(), torch.randn(9, 1, 128, dtype=BF16).npu()
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_fused_infer_attention_score(query, key, key, **moved)


@pytest.mark.parametrize(
    ("change", "size", "dtype", "message"),
    [
        ({}, 80, BF16, "are 64, 128 or 192, not 80, 80 and 80"),
        ({}, 64, torch.float16, "is for bfloat16, not torch.float16"),
        ({"sparse_mode": 0}, 64, BF16, "takes sparse_mode 0 without a mask, 3 or 4"),
        ({"actual_seq_kvlen": [0, 0]}, 64, BF16, "no request has a key"),
        ({"learnable_sink": torch.zeros(4)}, 64, BF16, "not torch.float32"),
        ({"learnable_sink": torch.zeros(2, dtype=BF16)}, 64, BF16, r"not torch.bfloat16 \[2\]"),
    ],
    ids=["head size", "dtype", "mask", "no key", "sinks in float32", "sinks of other heads"],
)
def test_what_the_tiling_of_ragged_attention_refuses(
    change: dict[str, object], size: int, dtype: torch.dtype, message: str
) -> None:
    arguments = {**PAGED, **change}
    moved = {name: value.npu() if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}
    query, cache = torch.randn(3, 4, size, dtype=dtype).npu(), torch.randn(4, 16, 2 * size, dtype=dtype).npu()
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_fused_infer_attention_score_v2(query, cache, cache, **moved)


@pytest.mark.parametrize(
    ("heads", "rows", "block", "message"),
    [
        (4, 17, 16, "has 17 queries; of latents there are up to 16"),
        (6, 3, 16, "not 1, 6"),
        (4, 3, 32, "in blocks of 16 or 128 tokens, not of 32"),
    ],
    ids=["queries", "heads", "block size"],
)
def test_what_the_tiling_of_latent_attention_refuses(heads: int, rows: int, block: int, message: str) -> None:
    query, rope = torch.randn(rows, heads, 512, dtype=BF16).npu(), torch.randn(rows, heads, 64, dtype=BF16).npu()
    cache, rope_cache = (torch.randn(4, block, width, dtype=BF16).npu() for width in (512, 64))
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_fused_infer_attention_score_v2(
            query,
            cache,
            cache,
            query_rope=rope,
            key_rope=rope_cache,
            atten_mask=CAUSAL.npu(),
            sparse_mode=3,
            actual_seq_qlen=[rows],
            actual_seq_kvlen=[rows],
            block_table=torch.tensor([[1, 2]], dtype=torch.int32).npu(),
            block_size=block,
            num_query_heads=heads,
            num_key_value_heads=1,
            input_layout="TND",
        )


def test_sinks_take_their_share_of_attention() -> None:
    """Against a softmax with one more key, whose value is zero."""
    query, keys = torch.randn(3, 4, 64, dtype=BF16), torch.randn(4, 16, 2, 64, dtype=BF16)
    sinks = torch.randn(4, dtype=BF16)
    given = {name: value.npu() if isinstance(value, torch.Tensor) else value for name, value in PAGED.items()}
    cache = keys.flatten(2).npu()
    found, _ = torch_npu.npu_fused_infer_attention_score_v2(
        query.npu(), cache, cache, learnable_sink=sinks.npu(), softmax_scale=0.25, **given
    )
    for row, (block, seen) in enumerate(((1, 4), (2, 8), (2, 9))):
        own = keys[block, :seen].double().repeat_interleave(2, 1)
        scores = torch.einsum("hd,shd->hs", query[row].double(), own) * 0.25
        weights = torch.cat((scores, sinks.double()[:, None]), 1).softmax(-1)[:, :-1]
        assert_near(found[row], torch.einsum("hs,shd->hd", weights, own))


def test_a_cache_takes_rows_by_slots() -> None:
    key, value = torch.randn(3, 2, 16), torch.randn(3, 2, 16)
    caches = [torch.zeros(4, 16, 2, 16).npu() for _ in range(2)]
    slots = torch.tensor([0, 33, 17], dtype=torch.int32).npu()
    torch_npu.npu_scatter_pa_kv_cache(key.npu(), value.npu(), *caches, slots, cache_mode="Norm")
    for cache, rows in zip(caches, (key, value), strict=True):
        flat = cache.cpu().flatten(0, 1)
        assert torch.equal(flat[[0, 33, 17]], rows)
        assert flat.count_nonzero() == rows.numel()
    with pytest.raises(RuntimeError, match="slots -1 to 3 of a cache of 64"):
        torch_npu.npu_scatter_pa_kv_cache(
            key.npu(), value.npu(), *caches, torch.tensor([0, -1, 3]).int().npu(), cache_mode="Norm"
        )


def test_a_cache_of_the_boost_library_leaves_out_negative_slots() -> None:
    """As the library's own test expects it."""
    key, value = torch.randn(3, 2, 16), torch.randn(3, 2, 16)
    caches = [torch.zeros(4, 16, 2, 16).npu() for _ in range(2)]
    torch_npu._npu_reshape_and_cache(key.npu(), value.npu(), *caches, torch.tensor([33, -1, 17]).int().npu())
    for cache, rows in zip(caches, (key, value), strict=True):
        expected = torch.zeros(64, 2, 16)
        expected[33], expected[17] = rows[0], rows[2]
        assert torch.equal(cache.cpu().flatten(0, 1), expected)
    # torch_npu drops the operator's error: whoever waits next is told.
    torch_npu._npu_reshape_and_cache(key.npu(), value.npu(), *caches, torch.tensor([0, 64, 1]).int().npu())
    with pytest.raises(RuntimeError, match="slots 0 to 64 of a cache of 64"):
        torch.npu.synchronize()
