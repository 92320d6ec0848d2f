"""torch_npu's norms, rotations and activations on the simulated NPU, against transformers."""

from __future__ import annotations

import hardware.ascend.tests.simulated  # noqa: F401  (skips this module where there is a real device)
import pytest
import torch
from hardware.ascend.tests.near import assert_near
from torch.nn import functional
from transformers import GptOssConfig
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

torch_npu = pytest.importorskip("torch_npu")

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


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
