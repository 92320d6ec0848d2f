"""The gated delta net in the interpreter: operators against theirs, decodes on cached states against the group's."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from trunnion.interfaces.attention import RecurrentSpec
from trunnion.ops import registry
from trunnion.reference.recurrent import advance, start_states
from trunnion_cuda.kernels import gated_delta

REFERENCE = registry.OPERATORS.reference
CLOSE = {torch.float32: {"rtol": 1e-4, "atol": 1e-5}, torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2}}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
Randn = Callable[..., torch.Tensor]


@DTYPES
@pytest.mark.parametrize("kernel", [1, 2, 4])
@pytest.mark.parametrize("num_tokens", [1, 2, 7])
@pytest.mark.parametrize("has_bias", [False, True])
def test_convolution(randn: Randn, num_tokens: int, kernel: int, has_bias: bool, dtype: torch.dtype) -> None:
    wide = randn(2, num_tokens, 12, dtype=dtype)
    bias = randn(9) if has_bias else None
    args = wide[..., :9], randn(2, 9, kernel - 1, dtype=dtype), randn(9, kernel, dtype=dtype), bias
    got, want = gated_delta.causal_conv1d_silu(*args), REFERENCE("causal_conv1d_silu")(*args)
    torch.testing.assert_close(got[0], want[0], **CLOSE[dtype])
    assert torch.equal(got[1], want[1])


def rule_inputs(randn: Randn, num_tokens: int, dtype: torch.dtype, batch: int = 2, v_dim: int = 5) -> tuple:
    """Keys that resemble one another: then the chunks' systems are far from the identity."""
    k = randn(batch, 1, 2, 6) + 0.3 * randn(batch, num_tokens, 2, 6)
    q, v = randn(batch, num_tokens, 2, 6), randn(batch, num_tokens, 4, v_dim)
    g, beta = -randn(batch, num_tokens, 4).abs() / 4, torch.sigmoid(randn(batch, num_tokens, 4) + 2)
    return q.to(dtype), k.to(dtype), v.to(dtype), g, beta, randn(batch, 4, 6, v_dim)


@DTYPES
@pytest.mark.parametrize("num_tokens", [0, 1, 9, 64, 130])
def test_rule(randn: Randn, num_tokens: int, dtype: torch.dtype) -> None:
    args = rule_inputs(randn, num_tokens, dtype)
    got, want = gated_delta.gated_delta_rule(*args), REFERENCE("gated_delta_rule")(*args)
    torch.testing.assert_close(got[0], want[0], **CLOSE[dtype])
    torch.testing.assert_close(got[1], want[1], **CLOSE[dtype])


@pytest.mark.parametrize("decay", [0.0, -300.0])
def test_chunks_survive_equal_keys_and_every_decay(randn: Randn, decay: float) -> None:
    q, k, v, g, beta, state = rule_inputs(randn, 70, torch.bfloat16, batch=1)
    args = q, k[:, :1].expand_as(k).contiguous(), v, torch.full_like(g, decay), torch.ones_like(beta), state
    got, want = gated_delta.gated_delta_rule(*args), REFERENCE("gated_delta_rule")(*args)
    torch.testing.assert_close(got, want, **CLOSE[torch.bfloat16])


@pytest.mark.nightly
@pytest.mark.parametrize("v_dim", [16, 33, 64, 70])
@pytest.mark.parametrize("config", gated_delta.CHUNK_SPACE.configs, ids=lambda config: f"V{config['V']}")
def test_chunks_with_every_configuration(
    randn: Randn, v_dim: int, config: gated_delta.Config, force_configuration: Callable[..., None]
) -> None:
    args = rule_inputs(randn, 200, torch.bfloat16, batch=1, v_dim=v_dim)
    force_configuration(gated_delta, config, "CHUNK_SPACE")
    got, want = gated_delta.gated_delta_rule(*args), REFERENCE("gated_delta_rule")(*args)
    torch.testing.assert_close(got, want, **CLOSE[torch.bfloat16])


SPEC = RecurrentSpec(num_k_heads=2, num_v_heads=4, head_k_dim=6, head_v_dim=5, conv_kernel_size=4, dtype=torch.float32)
NUM_STATES = 12


def decoded(
    randn: Randn, columns: gated_delta.StateColumns, length: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, ...]:
    """Outputs and both caches, of the kernels and then of the reference, whose states are NaN where nobody's are."""
    num_reqs = columns.state_indices.shape[0]
    mixed = randn(num_reqs * length, SPEC.conv_dim, dtype=dtype)
    g, beta = -randn(num_reqs * length, 4).abs(), torch.sigmoid(randn(num_reqs * length, 4))
    weight, bias = randn(SPEC.conv_dim, 4, dtype=dtype), randn(SPEC.conv_dim)
    conv, ssm = randn(NUM_STATES, SPEC.conv_dim, 3, dtype=dtype), randn(NUM_STATES, 4, 6, 5)
    conv[0], ssm[0] = float("nan"), float("nan")
    caches = conv.clone(), ssm.clone()
    got = gated_delta.recurrent_decode(mixed, g, beta, weight, bias, *caches, columns, num_k_heads=2)
    start = start_states(columns.state_indices, columns.has_initial_state, columns.num_accepted)
    is_fresh = columns.has_initial_state == 0
    states = [x.index_select(0, start).masked_fill(is_fresh.view(-1, *[1] * (x.dim() - 1)), 0) for x in (conv, ssm)]
    rows = (x.unflatten(0, (num_reqs, length)) for x in (mixed, g, beta))
    want, convs, ssms = advance(SPEC, *rows, *states, weight, bias, length)
    for request, token in itertools.product(range(num_reqs), range(length)):
        state = int(columns.state_indices[request, token])
        if state:
            conv[state], ssm[state] = convs[request, token], ssms[request, token]
    return got, *caches, want.flatten(0, 1), conv, ssm


def ints(*rows: object) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int32)


def check(results: tuple[torch.Tensor, ...], dtype: torch.dtype = torch.float32) -> None:
    got, conv, ssm, want, want_conv, want_ssm = results
    torch.testing.assert_close(got, want, **CLOSE[dtype])
    torch.testing.assert_close(conv, want_conv, equal_nan=True, **CLOSE[dtype])
    torch.testing.assert_close(ssm, want_ssm, equal_nan=True, **CLOSE[dtype])


@DTYPES
def test_a_decode_of_one_token(randn: Randn, dtype: torch.dtype) -> None:
    """The second request starts here, the last two are padding: state 0, full of NaN, is neither read nor written."""
    columns = gated_delta.StateColumns(state_indices=ints([3], [7], [0], [0]), has_initial_state=ints(1, 0, 0, 0))
    check(decoded(randn, columns, 1, dtype), dtype)


@pytest.mark.parametrize("accepted", [(1, 1, 1), (3, 2, 1), (2, 3, 99)], ids=str)
def test_a_decode_of_drafts_keeps_every_state(randn: Randn, accepted: tuple[int, ...]) -> None:
    """Starts from the last accepted column, which a token of the same step may then write over."""
    columns = gated_delta.StateColumns(
        state_indices=ints([3, 7, 1], [2, 5, 9], [4, 8, 6], [0, 0, 0]),
        has_initial_state=ints(1, 1, 0 if accepted[2] == 99 else 1, 0),
        num_accepted=ints(*accepted, 0),
    )
    check(decoded(randn, columns, 3))
    check(decoded(randn, columns, 2))


def test_more_tokens_than_states_are_refused(randn: Randn) -> None:
    columns = gated_delta.StateColumns(state_indices=ints([3], [7]), has_initial_state=ints(1, 1))
    with pytest.raises(ValueError, match="4 tokens of 2 requests with 1 states each"):
        decoded(randn, columns, 2)
