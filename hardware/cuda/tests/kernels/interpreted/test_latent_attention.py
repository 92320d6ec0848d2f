"""Latent attention in the interpreter against the reference: odd sizes, chunks, placeholders, padding, split keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from trunnion.interfaces.attention import AttentionSpec
from trunnion.reference.attention import attend
from trunnion_cuda.kernels import latent_attention as module
from trunnion_cuda.kernels.latent_attention import latent_attention
from trunnion_cuda.kernels.paged_attention import PagedKeys

CLOSE = {torch.float32: {"rtol": 1e-4, "atol": 1e-5}, torch.bfloat16: {"rtol": 3e-2, "atol": 1e-2}}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
BLOCK_SIZE = 4
DECODES = [(1, 1), (1, 9), (1, 40), (1, 4)]
PREFILLS = [(7, 7), (5, 12), (1, 33), (13, 13)]
Randn = Callable[..., torch.Tensor]


class Step:
    """Requests of (new tokens, cached tokens after the step), their latents, and what the reference makes of them.

    The last `placeholders` tokens of the first request have no slot. What no request owns holds NaN.
    """

    def __init__(
        self,
        randn: Randn,
        requests: Sequence[tuple[int, int]],
        sizes: tuple[int, int, int] = (3, 24, 6),
        dtype: torch.dtype = torch.float32,
        placeholders: int = 0,
    ) -> None:
        num_heads, self.latent, rope = sizes
        self.scale = (self.latent + rope) ** -0.5
        self.requests, self.placeholders = requests, placeholders
        num_tokens = sum(new for new, _ in requests)
        self.q = randn(num_tokens, num_heads, self.latent + rope, dtype=dtype)
        widths = [-(-total // BLOCK_SIZE) for _, total in requests]
        num_blocks = sum(widths) + 1
        self.cache = torch.full((num_blocks, BLOCK_SIZE, self.latent + rope), torch.nan).to(dtype)
        order = (torch.randperm(num_blocks - 1, generator=torch.Generator().manual_seed(0)) + 1).tolist()
        table = torch.zeros(len(requests), max([*widths, 1]), dtype=torch.int32)
        slots = torch.zeros(num_tokens, dtype=torch.int32)
        self.latents, self.starts = [], [0]
        for index, (new, total) in enumerate(requests):
            blocks = [order.pop() for _ in range(widths[index])]
            table[index, : widths[index]] = torch.tensor(blocks, dtype=torch.int32)
            missing = placeholders if index == 0 else 0
            rows = randn(total - missing, self.latent + rope, dtype=dtype)
            token = torch.arange(len(rows))
            self.cache[torch.tensor(blocks, dtype=torch.int64)[token // BLOCK_SIZE], token % BLOCK_SIZE] = rows
            self.latents.append(rows)
            slots[new - missing : new] = -1 if missing else 0
            self.starts.append(self.starts[-1] + new)
        self.keys = PagedKeys(
            block_table=table,
            seq_lens=torch.tensor([total for _, total in requests], dtype=torch.int32),
            query_start_loc=torch.tensor(self.starts, dtype=torch.int32),
            max_query_len=max([new for new, _ in requests], default=1),
            slot_mapping=slots if placeholders else None,
        )

    @property
    def uniform(self) -> PagedKeys:
        return replace(self.keys, query_start_loc=None)

    def run(self, keys: PagedKeys | None = None, **options: object) -> torch.Tensor:
        q_latent, q_rope = self.q[..., : self.latent], self.q[..., self.latent :]
        return latent_attention(q_latent, q_rope, self.cache, keys or self.keys, scale=self.scale, **options)

    def check(self, out: torch.Tensor) -> None:
        """Rows that have a slot."""
        dtype = out.dtype
        spec = AttentionSpec(
            num_qo_heads=out.shape[1], num_kv_heads=1, head_dim=self.q.shape[2], scale=self.scale, dtype=dtype
        )
        for index, (rows, (new, total)) in enumerate(zip(self.latents, self.requests, strict=True)):
            first = self.starts[index]
            real = slice(first, first + new - (self.placeholders if index == 0 else 0))
            keys = rows.unsqueeze(1)
            want = attend(self.q[real], keys, keys[..., : self.latent], spec, total - new, None)
            torch.testing.assert_close(out[real], want.to(dtype), **CLOSE[dtype])


@DTYPES
@pytest.mark.parametrize("sizes", [(1, 16, 16), (5, 40, 6), (24, 24, 8), (40, 7, 3)], ids=str)
@pytest.mark.parametrize("requests", [DECODES, PREFILLS], ids=["decode", "prefill"])
def test_latents(
    randn: Randn, requests: list[tuple[int, int]], sizes: tuple[int, int, int], dtype: torch.dtype
) -> None:
    """Heads of one token in several tiles, and tokens of several requests; rows of a tile past the last."""
    step = Step(randn, requests, sizes, dtype)
    step.check(step.run())


@DTYPES
def test_the_sizes_of_deepseek(randn: Randn, dtype: torch.dtype) -> None:
    step = Step(randn, [(1, 35), (2, 6)], (6, 512, 64), dtype)
    step.check(step.run())


def test_columns_of_a_value_in_several_programs(
    randn: Randn, monkeypatch: pytest.MonkeyPatch, force_configuration: Callable[..., None]
) -> None:
    force_configuration(module, module.Config({"M": 16, "N": 16, "C": 16}))
    step = Step(randn, DECODES, (5, 40, 6))
    step.check(step.run())
    step.check(step.run(splits=2))


@DTYPES
@pytest.mark.parametrize("splits", [2, 8])
def test_split_keys(randn: Randn, splits: int, dtype: torch.dtype) -> None:
    """More splits than some requests have tiles of keys; parts in a workspace, and fewer in a short one."""
    step = Step(randn, [(1, 90), (1, 3), (1, 130)], (5, 24, 6), dtype)
    step.check(step.run(step.uniform, splits=splits))
    step.check(step.run(splits=splits))
    workspace = torch.full((1 << 16,), 255, dtype=torch.uint8)
    step.check(step.run(step.uniform, splits=splits, workspace=workspace))
    step.check(step.run(step.uniform, splits=splits, workspace=workspace[: 3 * 3 * 5 * 26 * 4]))


@pytest.mark.parametrize("splits", [1, 4])
def test_placeholders_reach_nobody(randn: Randn, splits: int) -> None:
    """Keys without a slot are not read: what lies there is NaN."""
    step = Step(randn, [(3, 20), (3, 5)], placeholders=2)
    step.check(step.run(step.uniform, splits=splits))
    step.check(step.run(splits=splits))


@pytest.mark.parametrize("splits", [1, 4])
def test_rows_of_padding_requests_are_zero(randn: Randn, splits: int) -> None:
    """In a graph: no cached tokens, whatever the queries hold."""
    step = Step(randn, [(2, 9), (2, 4), (2, 2)])
    step.q[2:] = math.nan
    lens = step.keys.seq_lens * torch.tensor([1, 0, 0], dtype=torch.int32)
    slots = torch.tensor([0, 0, -1, -1, -1, -1], dtype=torch.int32)
    out = step.run(replace(step.uniform, seq_lens=lens, slot_mapping=slots), splits=splits)
    step.requests = step.requests[:1]
    step.latents = step.latents[:1]
    step.check(out)
    assert (out[2:] == 0).all()


@pytest.mark.parametrize("config", module.SPACE.configs, ids=lambda config: str(dict(config.blocks)))
def test_every_configuration(randn: Randn, force_configuration: Callable[..., None], config: module.Config) -> None:
    force_configuration(module, config)
    dtype = torch.float32 if config["N"] == 16 else torch.bfloat16
    step = Step(randn, PREFILLS, (20, 24, 6), dtype)
    step.check(step.run())


def test_rows_of_no_request_are_cleared_or_left(randn: Randn) -> None:
    step = Step(randn, [(2, 9)])
    queries = torch.cat((step.q, step.q))
    parts = queries[..., : step.latent], queries[..., step.latent :]
    out = torch.full((4, 3, step.latent), 5.0)
    latent_attention(*parts, step.cache, step.keys, scale=step.scale, out=out, clears=False)
    step.check(out[:2])
    assert (out[2:] == 5).all()
    assert (latent_attention(*parts, step.cache, step.keys, scale=step.scale)[2:] == 0).all()


def test_what_the_kernel_cannot_take(randn: Randn) -> None:
    step = Step(randn, DECODES)
    q_latent, q_rope = step.q[..., : step.latent], step.q[..., step.latent :]
    run = lambda *tensors: latent_attention(*tensors, step.keys, scale=1.0)  # noqa: E731
    with pytest.raises(ValueError, match=r"latents of 1024 \+ 6 features are more than 512 \+ 128"):
        run(randn(4, 3, 1024), q_rope, randn(2, 4, 1030))
    with pytest.raises(ValueError, match="do not go with rows of 30"):
        run(q_latent, q_rope[..., :4], step.cache)
    with pytest.raises(ValueError, match="features apart"):
        run(q_latent, q_rope.mT.contiguous().mT, step.cache)
    with pytest.raises(ValueError, match=r"with a cache in torch\.bfloat16"):
        run(q_latent, q_rope, step.cache.to(torch.bfloat16))
