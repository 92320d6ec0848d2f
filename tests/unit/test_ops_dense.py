"""Norms, rotary embedding and gated activations against the functions of transformers."""

from __future__ import annotations

import pytest
import torch
from transformers.models.deepseek_v2.modeling_deepseek_v2 import apply_rotary_emb
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

import trunnion.ops

ops = torch.ops.trunnion
DTYPES = [torch.float32, torch.bfloat16]
SIZES = [1, 7, 63, 1000]
assert trunnion.ops


def _exact(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.dtype == want.dtype and got.is_contiguous()
    torch.testing.assert_close(got, want, rtol=0, atol=0)


def _randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("unit_offset", [False, True], ids=["llama", "gemma"])
def test_rms_norm_equals_transformers(size: int, dtype: torch.dtype, unit_offset: bool) -> None:
    norm = (Gemma3RMSNorm if unit_offset else LlamaRMSNorm)(size, eps=1e-5).to(dtype)
    norm.weight.data = _randn(size, dtype=dtype, seed=1)
    x = 30 * _randn(7, size, dtype=dtype)
    _exact(ops.rms_norm(x, norm.weight.data, 1e-5, unit_offset), norm(x).detach())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("unit_offset", [False, True], ids=["llama", "gemma"])
def test_fused_add_rms_norm_equals_add_then_norm(dtype: torch.dtype, unit_offset: bool) -> None:
    x, residual, weight = _randn(7, 63, dtype=dtype), 40 * _randn(7, 63, dtype=dtype, seed=1), _randn(63, dtype=dtype)
    before = x.clone(), residual.clone()
    normed, total = ops.fused_add_rms_norm(x, residual, weight, 1e-6, unit_offset)
    _exact(total, x + residual)
    _exact(normed, ops.rms_norm(x + residual, weight, 1e-6, unit_offset))
    assert torch.equal(x, before[0]) and torch.equal(residual, before[1])


def test_rms_norm_of_heads_takes_strided_views() -> None:
    qkv = _randn(5, 3 * 4 * 8)
    q = qkv[:, :32].unflatten(-1, (4, 8))
    weight = _randn(8, seed=1)
    _exact(ops.rms_norm(q, weight, 1e-6, False), ops.rms_norm(q.clone(), weight, 1e-6, False))


def test_rms_norm_row_of_nan_stays_in_its_row() -> None:
    x = _randn(3, 8)
    clean = ops.rms_norm(x, torch.ones(8), 1e-6, False)
    x[1] = float("nan")
    got = ops.rms_norm(x, torch.ones(8), 1e-6, False)
    assert torch.equal(got[[0, 2]], clean[[0, 2]]) and got[1].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_gated_activations_equal_torch(size: int, dtype: torch.dtype) -> None:
    x = 3 * _randn(7, 2 * size, dtype=dtype)
    gate, up = x[:, :size], x[:, size:]
    _exact(ops.silu_and_mul(x), torch.nn.functional.silu(gate) * up)
    _exact(ops.gelu_tanh_and_mul(x), torch.nn.functional.gelu(gate, approximate="tanh") * up)


def _table(rotary_dim: int, positions: int = 50) -> torch.Tensor:
    inv_freq = 1.0 / 100.0 ** (torch.arange(0, rotary_dim, 2) / rotary_dim)
    angles = torch.outer(torch.arange(positions).float(), inv_freq)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


@pytest.mark.parametrize("position_dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(1, 1, 2), (4, 2, 6), (7, 1, 64)])
def test_rotary_embedding_equals_transformers(
    heads: int, kv_heads: int, head_dim: int, position_dtype: torch.dtype
) -> None:
    positions = torch.tensor([0, 3, 49, 3, 17, 1, 2], dtype=position_dtype)
    q, k = _randn(7, heads, head_dim), _randn(7, kv_heads, head_dim, seed=1)
    cos, sin = _table(head_dim)[positions.long()].chunk(2, dim=-1)
    want = apply_rotary_pos_emb(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        torch.cat((cos, cos), -1)[None],
        torch.cat((sin, sin), -1)[None],
    )
    got = ops.rotary_embedding(q, k, positions, _table(head_dim), False)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs[0].transpose(0, 1), rtol=0, atol=1e-6)


def test_interleaved_rotary_embedding_equals_transformers() -> None:
    positions = torch.tensor([0, 5, 49], dtype=torch.int32)
    q, k = _randn(3, 4, 6), _randn(3, 1, 6, seed=1)
    cos, sin = _table(6)[positions.long()].chunk(2, dim=-1)
    want = apply_rotary_emb(q.transpose(0, 1)[None], k.transpose(0, 1)[None], torch.complex(cos, sin)[None])
    got = ops.rotary_embedding(q, k, positions, _table(6), True)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs[0].transpose(0, 1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
def test_partial_rotary_embedding_leaves_the_rest(interleaved: bool) -> None:
    positions = torch.tensor([4, 9], dtype=torch.int32)
    q, k = _randn(2, 3, 10), _randn(2, 1, 10, seed=1)
    got_q, got_k = ops.rotary_embedding(q, k, positions, _table(4), interleaved)
    want_q, want_k = ops.rotary_embedding(q[..., :4], k[..., :4], positions, _table(4), interleaved)
    _exact(got_q, torch.cat((want_q, q[..., 4:]), -1))
    _exact(got_k, torch.cat((want_k, k[..., 4:]), -1))
    assert not torch.equal(got_q[..., :4], q[..., :4])


def test_rotary_embedding_in_bfloat16_rounds_once() -> None:
    positions = torch.tensor([31, 2, 0], dtype=torch.int32)
    q, k = _randn(3, 4, 8, dtype=torch.bfloat16), _randn(3, 2, 8, dtype=torch.bfloat16, seed=1)
    got = ops.rotary_embedding(q, k, positions, _table(8), False)
    want = ops.rotary_embedding(q.float(), k.float(), positions, _table(8), False)
    for mine, exact in zip(got, want, strict=True):
        _exact(mine, exact.bfloat16())


SAMPLES = {
    "rms_norm": lambda n, d: (_randn(n, 8, dtype=d), _randn(8, dtype=d), 1e-6, False),
    "rms_norm-gemma-heads": lambda n, d: (_randn(n, 16, dtype=d).unflatten(-1, (2, 8)), _randn(8, dtype=d), 1e-6, True),
    "fused_add_rms_norm": lambda n, d: (_randn(n, 8, dtype=d), _randn(n, 8, dtype=d), _randn(8, dtype=d), 1e-6, True),
    "silu_and_mul": lambda n, d: (_randn(n, 14, dtype=d),),
    "gelu_tanh_and_mul": lambda n, d: (_randn(n, 14, dtype=d),),
    "rotary_embedding": lambda n, d: (
        _randn(n, 48, dtype=d)[:, :32].unflatten(-1, (4, 8)),
        _randn(n, 1, 8, dtype=d),
        torch.arange(n, dtype=torch.int32),
        _table(4),
        False,
    ),
    "rotary_embedding-full": lambda n, d: (
        _randn(n, 4, 8, dtype=d),
        _randn(n, 1, 8, dtype=d),
        torch.arange(n, dtype=torch.int32),
        _table(8),
        True,
    ),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_tokens", [0, 1, 7])
@pytest.mark.parametrize("sample", SAMPLES)
def test_schema_fake_and_aliasing(sample: str, num_tokens: int, dtype: torch.dtype) -> None:
    op = getattr(ops, sample.split("-")[0]).default
    torch.library.opcheck(op, SAMPLES[sample](num_tokens, dtype), test_utils=("test_schema", "test_faketensor"))
