"""What the simulated device writes as FlashInfer's log-sum-exps, with and without a causal mask, against torch."""

from __future__ import annotations

import math

import pytest
import torch

from trunnion.interfaces.attention import AttentionSpec, MLASpec
from trunnion_cuda.mla import latent_module
from trunnion_cuda.workspaces import PlanMemory, float_workspace
from trunnion_cuda.wrappers import prefill_wrapper, shape

simulator = pytest.importorskip("cuda_simulator")
if torch.cuda.get_device_name() != "simulated":
    pytest.skip("there is a real device", allow_module_level=True)

DEVICE = torch.device("cuda", 0)
SPEC = AttentionSpec(num_qo_heads=4, num_kv_heads=2, head_dim=64, scale=0.3, dtype=torch.bfloat16)
LATENT = MLASpec(num_qo_heads=4, kv_lora_rank=512, rope_head_dim=64, scale=0.1, dtype=torch.bfloat16)
PAGE_SIZE, NUM_PAGES = 16, 64
RUNS = ((3, 40), (5, 0), (1, 33), (0, 16), (40, 600))
"""Queries and keys; those of the last are split among blocks."""
MASKS = pytest.mark.parametrize("causal", [False, True])


def _bounds(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


def _pages() -> tuple[list[int], torch.Tensor]:
    """How many each run has, and which."""
    counts = [-(-keys // PAGE_SIZE) for _, keys in RUNS]
    order = torch.randperm(NUM_PAGES, generator=torch.Generator().manual_seed(0))
    return counts, order[: sum(counts)].int()


def _expected(q: torch.Tensor, cache: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    """q [T, H, D], cache [num_pages, page_size, H, D] -> log2-sum-exps [T, H]."""
    counts, numbers = _pages()
    rows = []
    for (num_queries, num_keys), queries, pages in zip(
        RUNS, q.split([n for n, _ in RUNS]), numbers.split(counts), strict=True
    ):
        k = cache[pages.long()].flatten(0, 1)[:num_keys]
        scores = torch.einsum("nhd,shd->nhs", queries.double(), k.double()) * scale
        if causal:
            ahead = torch.arange(num_keys) > torch.arange(num_queries).unsqueeze(1) + num_keys - num_queries
            scores = scores.masked_fill(ahead.unsqueeze(1), -torch.inf)
        rows.append(torch.logsumexp(scores, -1) / math.log(2))
    return torch.cat(rows).float()


@MASKS
def test_paged_prefill(causal: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(sum(n for n, _ in RUNS), 4, 64, generator=generator).bfloat16()
    caches = [torch.randn(NUM_PAGES, PAGE_SIZE, 2, 64, generator=generator).bfloat16() for _ in "kv"]
    counts, numbers = _pages()
    wrapper = prefill_wrapper(SPEC, DEVICE)
    wrapper.plan(
        qo_indptr=_bounds([n for n, _ in RUNS]),
        paged_kv_indptr=_bounds(counts),
        paged_kv_indices=numbers,
        paged_kv_last_page_len=torch.tensor([keys and (keys - 1) % PAGE_SIZE + 1 for _, keys in RUNS]).int(),
        causal=causal,
        page_size=PAGE_SIZE,
        **shape(SPEC, "head_dim_qk"),
    )
    with simulator.simulation().noted_launches() as launches:
        _, lse = wrapper.run(q.to(DEVICE), tuple(cache.to(DEVICE) for cache in caches), return_lse=True)
    assert [launch.is_causal for launch in launches] == [causal]
    expected = _expected(q, caches[0].repeat_interleave(2, dim=2), SPEC.scale, causal)
    assert expected.isneginf().any()
    torch.testing.assert_close(lse.cpu(), expected, rtol=1e-4, atol=1e-4)


@MASKS
@pytest.mark.parametrize("base", [2.0, math.e])
def test_latent(causal: bool, base: float) -> None:
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(sum(n for n, _ in RUNS), 4, 576, generator=generator).bfloat16()
    cache = torch.randn(NUM_PAGES, PAGE_SIZE, 576, generator=generator).bfloat16()
    counts, numbers = _pages()
    module, memory = latent_module(LATENT), PlanMemory(DEVICE)
    lens = torch.tensor([keys for _, keys in RUNS], dtype=torch.int32)
    bounds = _bounds([n for n, _ in RUNS]), _bounds(counts)
    info = module.plan(float_workspace(DEVICE), *memory.parts, *bounds, lens, 4, 512, causal)
    on_device = cache.to(DEVICE)
    queries, keys = (x.to(DEVICE).split((512, 64), -1) for x in (q, on_device))
    out, lse = torch.empty(len(q), 4, 512, dtype=q.dtype, device=DEVICE), torch.empty(len(q), 4, device=DEVICE)
    with simulator.simulation().noted_launches() as launches:
        module.run(
            float_workspace(DEVICE), memory.parts[0], list(info), *queries, *keys, numbers.to(DEVICE), out, lse,
            int(causal), 4, PAGE_SIZE, LATENT.scale, base == math.e, 1.0, 1.0, None,
        )  # fmt: skip
    assert [launch.is_causal for launch in launches] == [causal]
    expected = _expected(q, cache.unsqueeze(2).expand(-1, -1, 4, -1), LATENT.scale, causal) * math.log(2, base)
    torch.testing.assert_close(lse.cpu(), expected, rtol=1e-4, atol=1e-4)
