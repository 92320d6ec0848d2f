"""torch_npu's fused operators on the simulated NPU, against torch's own attention, transformers and plain loops."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional
from transformers import GptOssConfig
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

simulator = pytest.importorskip("ascend_simulator")
try:
    SIMULATION = simulator.simulation()
except LookupError:
    pytest.skip("there is a real device", allow_module_level=True)

torch_npu = pytest.importorskip("torch_npu")

BF16 = torch.bfloat16
CAUSAL = torch.ones(2048, 2048, dtype=torch.bool).triu(1)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def assert_near(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 0.02) -> None:
    torch.testing.assert_close(found.cpu().double(), expected.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_rms_norm(dtype: torch.dtype) -> None:
    x, norm = torch.randn(7, 63).to(dtype), LlamaRMSNorm(63, eps=1e-5)
    norm.weight.data = torch.rand(63).to(dtype)
    found, reciprocal = torch_npu.npu_rms_norm(x.npu(), norm.weight.npu(), 1e-5)
    assert_near(found, norm(x))
    assert reciprocal.shape == (7, 1) and reciprocal.dtype == torch.float32


def test_gemma_rms_norm_adds_one_to_the_weight() -> None:
    x, norm = torch.randn(7, 64), GemmaRMSNorm(64, eps=1e-5)
    norm.weight.data = torch.rand(64)
    assert_near(torch_npu.npu_gemma_rms_norm(x.npu(), norm.weight.npu(), 1e-5)[0], norm(x), 1e-5)


def test_add_rms_norm_gives_the_sum_too() -> None:
    x, residual, norm = torch.randn(7, 64), torch.randn(7, 64), LlamaRMSNorm(64, eps=1e-5)
    norm.weight.data = torch.rand(64)
    found, _, total = torch_npu.npu_add_rms_norm(x.npu(), residual.npu(), norm.weight.npu(), 1e-5)
    assert_near(total, x + residual, 1e-6)
    assert_near(found, norm(x + residual), 1e-5)


def test_rotary_mul_rotates_halves_as_llama_does() -> None:
    query = torch.randn(2, 3, 4, 16)
    angles = torch.randn(2, 3, 8)
    cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()
    expected, _ = apply_rotary_pos_emb(query, query, cos, sin, unsqueeze_dim=2)
    assert_near(torch_npu.npu_rotary_mul(query.npu(), cos.unsqueeze(2).npu(), sin.unsqueeze(2).npu()), expected, 1e-5)


def test_rotary_mul_rotates_neighbours_as_complex_numbers() -> None:
    query, angles = torch.randn(2, 3, 4, 16), torch.randn(2, 3, 1, 8)
    turned = torch.view_as_complex(query.unflatten(-1, (8, 2))) * torch.polar(torch.ones_like(angles), angles)
    cos, sin = (part.repeat_interleave(2, -1).npu() for part in (angles.cos(), angles.sin()))
    found = torch_npu.npu_rotary_mul(query.npu(), cos, sin, rotary_mode="interleave")
    assert_near(found, torch.view_as_real(turned).flatten(-2), 1e-5)


def test_swiglu_activates_the_first_half() -> None:
    x = torch.randn(7, 64)
    assert_near(torch_npu.npu_swiglu(x.npu()), functional.silu(x[:, :32]) * x[:, 32:], 1e-5)


def test_a_clipped_swiglu_is_that_of_gpt_oss() -> None:
    """Random values lie on both sides of the limit; elements take turns, or halves follow one another."""
    experts = GptOssExperts(GptOssConfig(num_local_experts=1, hidden_size=2, intermediate_size=2))
    x = torch.randn(7, 64) * 6
    expected = experts._apply_gate(x)
    assert_near(torch_npu.npu_clipped_swiglu(x.npu()), expected, 1e-5)
    halves = torch.cat((x[:, ::2], x[:, 1::2]), dim=1)
    assert_near(torch_npu.npu_clipped_swiglu(halves.npu(), interleaved=False), expected, 1e-5)
    experts.alpha, experts.limit = 0.9, 3.0
    assert_near(torch_npu.npu_clipped_swiglu(x.npu(), alpha=0.9, limit=3.0), experts._apply_gate(x), 1e-5)


@pytest.mark.parametrize(
    ("dtype", "bias"), [(BF16, torch.float32), (torch.float16, torch.float16), (torch.float32, torch.float32)], ids=str
)
def test_a_bias_of_groups_has_the_dtype_of_the_table(dtype: torch.dtype, bias: torch.dtype) -> None:
    x, weight, added = torch.randn(5, 16).to(dtype), torch.randn(2, 16, 8).to(dtype), torch.randn(2, 8)
    options = {"split_item": 2, "group_type": 0, "group_list_type": 1, "group_list": torch.tensor([2, 3]).npu()}

    def run(own: torch.dtype) -> torch.Tensor:
        (out,) = torch_npu.npu_grouped_matmul([x.npu()], [weight.npu()], bias=[added.to(own).npu()], **options)
        return out

    rows = [x[row].float() @ weight[group].float() + added.to(bias)[group] for row, group in enumerate([0, 0, 1, 1, 1])]
    assert_near(run(bias), torch.stack(rows).to(dtype), 1e-2)
    wrong = torch.float32 if bias == torch.float16 else torch.float16
    with pytest.raises(RuntimeError, match=f"a bias of {wrong} for rows of {dtype}, expected {bias}"):
        run(wrong)
        torch.npu.synchronize()


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


def test_experts_of_tokens_and_back() -> None:
    """Gating, routing, experts and their sum, against a loop over tokens."""
    tokens, experts, k, hidden, inner = 7, 5, 2, 32, 24
    x, gate = torch.randn(tokens, hidden), torch.randn(tokens, experts)
    w1, w2 = torch.randn(experts, hidden, 2 * inner) * 0.1, torch.randn(experts, inner, hidden) * 0.1
    weights, chosen, rows = torch_npu.npu_moe_gating_top_k_softmax(gate.npu(), None, k)
    expected_weights, expected_experts = gate.softmax(-1).topk(k)
    assert_near(weights, expected_weights, 1e-6)
    assert torch.equal(chosen.cpu().long(), expected_experts)
    expanded, places, sorted_experts = torch_npu.npu_moe_init_routing(x.npu(), rows, chosen, tokens)
    ends = torch_npu.npu_moe_compute_expert_tokens(sorted_experts, experts).long()
    options = {"split_item": 2, "group_type": 0, "group_list": ends, "group_list_type": 0}
    (up,) = torch_npu.npu_grouped_matmul([expanded], [w1.npu()], **options)
    (down,) = torch_npu.npu_grouped_matmul([torch_npu.npu_swiglu(up)], [w2.npu()], **options)
    found = torch_npu.npu_moe_finalize_routing(down, None, None, None, weights, places, chosen)
    expected = torch.zeros_like(x)
    for token in range(tokens):
        for weight, expert in zip(expected_weights[token], expected_experts[token], strict=True):
            left, right = (x[token] @ w1[expert]).chunk(2)
            expected[token] += weight * ((functional.silu(left) * right) @ w2[expert])
    assert_near(found, expected, 1e-5)


def test_routing_for_a_range_of_experts_counts_their_tokens() -> None:
    x = torch.arange(4.0)[:, None].expand(4, 8).contiguous()
    chosen = torch.tensor([[1, 2], [0, 1], [3, 2], [2, 0]], dtype=torch.int32)
    expanded, places, counts, _ = torch_npu.npu_moe_init_routing_v2(
        x.npu(),
        chosen.npu(),
        active_num=8,
        expert_num=4,
        expert_tokens_num_type=1,
        expert_tokens_num_flag=True,
        active_expert_range=[1, 3],
        quant_mode=-1,
        row_idx_type=0,
    )
    # Expert 1 has tokens 0 and 1, expert 2 tokens 0, 2 and 3.
    assert counts.tolist() == [2, 3]
    assert places.tolist() == [0, 2, -1, 1, -1, 3, 4, -1]
    assert expanded[:5, 0].tolist() == [0, 1, 0, 2, 3]


def test_gating_by_groups_as_deepseek_does() -> None:
    """The bias chooses and does not weigh; the best two of a group choose groups."""
    logits, bias = torch.randn(6, 16), torch.randn(16)
    scores = logits.sigmoid()
    choice = (scores + bias).unflatten(-1, (4, 4))
    groups = choice.topk(2, -1).values.sum(-1).topk(2, -1).indices
    allowed = torch.zeros(6, 4, dtype=torch.bool).scatter(1, groups, True)[..., None].expand(6, 4, 4).flatten(1)
    experts = choice.flatten(1).masked_fill(~allowed, -torch.inf).topk(3, -1).indices
    weights = scores.gather(1, experts)
    found, chosen, _ = torch_npu.npu_moe_gating_top_k(
        logits.npu(),
        3,
        bias=bias.npu(),
        k_group=2,
        group_count=4,
        group_select_mode=1,
        norm_type=1,
        routed_scaling_factor=2.5,
    )
    assert torch.equal(chosen.cpu().long(), experts)
    assert_near(found, weights / weights.sum(-1, keepdim=True) * 2.5, 1e-5)


@pytest.mark.parametrize("kind", [0, 1], ids=["sums", "counts"])
def test_groups_are_told_by_sums_or_by_counts(kind: int) -> None:
    x, weight, counts = torch.randn(6, 8), torch.randn(3, 8, 4), torch.tensor([2, 0, 4])
    groups = counts.cumsum(0) if kind == 0 else counts
    (found,) = torch_npu.npu_grouped_matmul(
        [x.npu()], [weight.npu()], group_list=groups.npu(), group_list_type=kind, split_item=2, group_type=0
    )
    assert_near(found, torch.cat((x[:2] @ weight[0], x[2:] @ weight[2])), 1e-5)


def test_quantised_products_are_exact_before_they_are_scaled() -> None:
    x, weight = torch.randn(5, 64, dtype=BF16), torch.randint(-127, 128, (64, 32), dtype=torch.int8)
    scale, bias = torch.rand(32, dtype=BF16), torch.randint(-1000, 1000, (32,), dtype=torch.int32)
    values, token_scale = torch_npu.npu_dynamic_quant(x.npu())
    expected_scale = x.float().abs().amax(-1) / 127
    assert_near(token_scale, expected_scale, 1e-6)
    assert torch.equal(values.cpu(), (x.float() / expected_scale[:, None]).round().to(torch.int8))
    found = torch_npu.npu_quant_matmul(
        values, weight.npu(), scale.npu(), pertoken_scale=token_scale, bias=bias.npu(), output_dtype=BF16
    )
    product = values.cpu().long() @ weight.long() + bias
    assert_near(found, product * scale.double() * expected_scale.double()[:, None], 0.01)


@pytest.mark.parametrize("axis", [-1, 0])
def test_quantising_by_scales_that_are_given(axis: int) -> None:
    x, scales = torch.randn(5, 7) * 3, torch.rand(7 if axis == -1 else 5) * 0.01 + 0.005
    divisor = scales if axis == -1 else scales[:, None]
    found = torch_npu.npu_quantize(x.npu(), scales.npu(), None, torch.qint8, axis, True)
    assert torch.equal(found.cpu(), (x / divisor).round().clamp(-128, 127).to(torch.int8))


def test_a_packed_scale_is_the_scale_but_for_its_last_bits() -> None:
    values, weight = torch.randint(-9, 9, (4, 32), dtype=torch.int8), torch.randint(-9, 9, (32, 16), dtype=torch.int8)
    scale = torch.rand(16)
    packed = torch_npu.npu_trans_quant_param(scale.npu())
    found = torch_npu.npu_quant_matmul(values.npu(), weight.npu(), packed, output_dtype=torch.float16)
    assert packed.dtype == torch.int64
    assert_near(found, (values.long() @ weight.long()) * scale.double(), 0.01)


@pytest.fixture
def internal() -> Iterator[None]:
    """Layouts that are not rows are allowed, which torch_npu's default for these cards is not."""
    torch.npu.config.allow_internal_format = True
    yield
    torch.npu.config.allow_internal_format = False


@pytest.mark.parametrize("dtype", [BF16, torch.int8, torch.float32])
@pytest.mark.parametrize("sizes", [(64, 96), (33, 17), (3, 33, 17)], ids=str)
def test_the_fractal_layout_and_back(internal: None, dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    matrix = torch.randint(-99, 99, sizes).to(dtype)
    fractal = torch_npu.npu_format_cast(matrix.npu(), 29)
    assert int(torch_npu.get_npu_format(fractal)) == 29
    assert torch.equal(torch_npu.npu_format_cast(fractal, 2).cpu(), matrix)


def test_a_fractal_weight_multiplies_as_it_did(internal: None) -> None:
    x, weight = torch.randn(5, 64, dtype=BF16).npu(), torch.randn(64, 96, dtype=BF16).npu()
    ran = SIMULATION.calls["aclnnMatmulWeightNz"]
    assert torch.equal(x @ torch_npu.npu_format_cast(weight, 29), x @ weight)
    assert SIMULATION.calls["aclnnMatmulWeightNz"] == ran + 1


@pytest.mark.parametrize("sizes", [(96, 64), (33, 20)], ids=str)
def test_a_fractal_weight_is_transposed_by_its_view(internal: None, sizes: tuple[int, int]) -> None:
    """As `torch.nn.functional.linear` multiplies."""
    x, weight = torch.randn(5, sizes[1], dtype=BF16).npu(), torch.randn(sizes, dtype=BF16).npu()
    ran = SIMULATION.calls["aclnnMatmulWeightNz"]
    assert torch.equal(functional.linear(x, torch_npu.npu_format_cast(weight, 29)), functional.linear(x, weight))
    assert SIMULATION.calls["aclnnMatmulWeightNz"] == ran + 1


def test_the_fractal_layout_is_not_rows(internal: None) -> None:
    """Its memory, seen as rows, is what the document's picture says: blocks of 16 by 16, columns of blocks first."""
    matrix = torch.arange(32 * 32, dtype=torch.float16).view(32, 32)
    address = torch_npu.npu_format_cast(matrix.npu(), 29).untyped_storage().data_ptr()
    # The simulated device's memory is the host's.
    memory = torch._C._construct_storage_from_data_pointer(address, torch.device("cpu"), matrix.nbytes)
    found = torch.empty(0, dtype=torch.float16).set_(memory, 0, (1024,), (1,))
    blocks = [matrix[row : row + 16, column : column + 16].flatten() for column in (0, 16) for row in (0, 16)]
    assert torch.equal(found, torch.cat(blocks))


def test_without_internal_formats_a_cast_does_nothing() -> None:
    assert int(torch_npu.get_npu_format(torch_npu.npu_format_cast(torch.ones(32, 32).npu(), 29))) == 2
