"""The TileLang kernels on the host: TileLang's C target in float32, where shared memory and registers are plain arrays.

Proves their indices, masks, scales and sums; not their layouts, pipelines or the tensor cores' arithmetic.
"""

from __future__ import annotations

from typing import Any

import pytest
import tilelang
import tilelang.language
import torch

from trunnion.interfaces.attention import AttentionSpec
from trunnion.reference.attention import attend
from trunnion_cuda.kernels import block_fp8_gemm, mla_decode

HEADS, LATENT, ROPE, BLOCK_SIZE = 5, 16, 8, 4
SCALE = 0.3


class HostLanguage:
    """TileLang's language with every tile a plain array and every parallel loop a loop.

    Strides are those of packed tensors: what TileLang makes for the C target hands no others over.
    """

    alloc_shared = alloc_fragment = staticmethod(tilelang.language.alloc_local)
    Parallel = staticmethod(tilelang.language.grid)

    @staticmethod
    def StridedTensor(shape: Any, strides: Any, dtype: str) -> Any:
        return tilelang.language.Tensor(shape, dtype)

    def __getattr__(self, name: str) -> Any:
        return getattr(tilelang.language, name)


def compiled(program: Any) -> Any:
    return tilelang.compile(program, target="c", execution_backend="cython")


def nan(*shape: int) -> torch.Tensor:
    return torch.full(shape, float("nan"))


@pytest.mark.parametrize(("num_columns", "depth"), [(200, 384), (64, 128), (129, 272)])
def test_block_scaled_gemm(num_columns: int, depth: int) -> None:
    torch.manual_seed(0)
    program = block_fp8_gemm.program(
        num_columns, depth, 32, 64, 128, 1, operand="float32", result="float32", language=HostLanguage()
    )
    kernel = compiled(program)
    groups, rows = -(-depth // 128), -(-num_columns // 128)
    weight, weight_scales = torch.randn(num_columns, depth), torch.rand(rows, groups)
    for num_tokens in (1, 45):
        x, x_scales, out = torch.randn(num_tokens, depth), torch.rand(num_tokens, groups), nan(num_tokens, num_columns)
        kernel(x, x_scales, weight, weight_scales, out)
        scaled = x * x_scales.repeat_interleave(128, 1)[:, :depth]
        spread = weight_scales.repeat_interleave(128, 0)[:num_columns].repeat_interleave(128, 1)[:, :depth]
        torch.testing.assert_close(out, scaled @ (weight * spread).T, rtol=1e-4, atol=1e-3)


def summed(part: torch.Tensor, part_max: torch.Tensor, part_sum: torch.Tensor) -> torch.Tensor:
    """As `add_parts`, which has no device here."""
    shrink = torch.exp(part_max - part_max.amax(0))
    total = (part_sum * shrink).sum(0)
    return (part * shrink.unsqueeze(-1)).sum(0) / torch.where(total == 0, 1.0, total).unsqueeze(-1)


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("query_len", [1, 3])
def test_latent_decode(query_len: int, splits: int) -> None:
    """The second request's last token is a placeholder if there are three; the last request is padding, block 0 NaN."""
    torch.manual_seed(0)
    kernel = compiled(
        mla_decode.program(
            HEADS, LATENT, ROPE, BLOCK_SIZE, query_len, SCALE, splits, 4, 8, 128, 1,
            dtype="float32", language=HostLanguage(),
        )
    )  # fmt: skip
    seq_lens = torch.tensor([37, 9, query_len, 0], dtype=torch.int32)
    num_tokens = 4 * query_len
    cache = nan(40, BLOCK_SIZE, LATENT + ROPE)
    table = torch.zeros(4, 10, dtype=torch.int32)
    slots = torch.zeros(num_tokens, dtype=torch.int32)
    slots[-query_len:] = -1
    keys, blocks = [], (torch.randperm(39) + 1).int().tolist()
    for request, total in enumerate(seq_lens.tolist()):
        for column in range(-(-total // BLOCK_SIZE)):
            table[request, column] = blocks.pop()
        written = total - (1 if request == 1 and query_len == 3 else 0)
        new = torch.randn(written, LATENT + ROPE)
        for token in range(written):
            cache[table[request, token // BLOCK_SIZE], token % BLOCK_SIZE] = new[token]
        keys.append(new)
    if query_len == 3:
        slots[5] = -1
    q = torch.randn(num_tokens, HEADS, LATENT + ROPE)
    part, part_max, part_sum = (nan(splits, num_tokens, HEADS, *last) for last in ((LATENT,), (), ()))
    q_latent, q_rope = (x.contiguous() for x in q.split((LATENT, ROPE), dim=-1))
    kernel(q_latent, q_rope, cache, table, seq_lens, slots, part, part_max, part_sum)
    out = part[0] if splits == 1 else summed(part, part_max, part_sum)
    spec = AttentionSpec(num_qo_heads=HEADS, num_kv_heads=1, head_dim=24, scale=SCALE, dtype=torch.float32)
    for request, latents in enumerate(keys[:3]):
        own = query_len - int(seq_lens[request]) + len(latents)
        rows = slice(request * query_len, request * query_len + own)
        k = latents.unsqueeze(1)
        want = attend(q[rows], k, k[..., :LATENT], spec, len(latents) - own, None)
        torch.testing.assert_close(out[rows], want, rtol=1e-4, atol=1e-4)
    assert out.isfinite().all() and not out[-query_len:].any()
