"""The gated delta net (arXiv:2412.06464): its convolution and recurrence, on whole sequences and on cached states.

Decode, per token and v-head: the state of Dk x Dv float32 is read and written once, `8 Dk Dv` bytes for about `7 Dk Dv`
FLOPs: memory bandwidth is the limit. Prefill goes in chunks of C tokens: the system's inverse is made for all chunks at
once (C ^ 2 (2 Dk + C) FLOPs each), then the state passes through the chunks (`2 C (3 Dk Dv + C (Dk + Dv))` each):
tensor cores, with as many programs as there are requests, v-heads and V-blocks. The convolution moves `2 T C b`
bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from trunnion.ops.registry import decline
from trunnion_cuda.kernels.activation import silu
from trunnion_cuda.kernels.launch import EVERY_ARCHITECTURE, ceil_div, launch, power_of_two
from trunnion_cuda.kernels.tuning import TUNER, Config, Space, size_class

ARCHITECTURES = EVERY_ARCHITECTURE
MAX_KERNEL = 4
"""Taps of the convolution: the inputs before a token are kept in three variables."""
MAX_KEY_DIM = 256
CHUNK = 32
"""Tokens of a chunk; shorter sequences run token by token, and so do all in float32. 64 would spill registers."""
L2_EPS = 1e-6
CONV_SPACE = Space(
    "causal_conv1d", (Config({"BLOCK": 256}), Config({"BLOCK": 512}), Config({"BLOCK": 128}, num_warps=2))
)
CHUNK_SPACE = Space(
    "gated_delta_chunks",
    (
        Config({"V": 16}, num_warps=4, num_stages=1),
        Config({"V": 32}, num_warps=8, num_stages=1),
    ),
)
RECURRENT_V = 32
"""Columns of the state per program of a decode. Not tuned: a decode changes its state."""


@triton.jit
def _conv_kernel(
    x, state, weight, bias, out, new_state, num_tokens, channels, x_batch, x_token,
    HAS_BIAS: tl.constexpr, KERNEL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One token of one sequence; the last program of a sequence writes its state."""
    token = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    mask = channel < channels
    total = tl.zeros([BLOCK], tl.float32)
    before = state + (batch * channels + channel) * (KERNEL - 1)
    rows = x + batch * x_batch + channel
    dtype = x.dtype.element_ty
    for tap in tl.static_range(KERNEL):
        at = token + tap - (KERNEL - 1)
        if at >= 0:
            value = tl.load(rows + at.to(tl.int64) * x_token, mask=mask, other=0.0)
        else:
            value = tl.load(before + at + KERNEL - 1, mask=mask, other=0.0).to(dtype)
        total += value.to(tl.float32) * tl.load(weight + channel * KERNEL + tap, mask=mask, other=0.0).to(tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + channel, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + (batch * num_tokens + token) * channels + channel, silu(total).to(dtype), mask=mask)
    if token == num_tokens - 1:
        for kept in tl.static_range(KERNEL - 1):
            at = token + kept - (KERNEL - 2)
            if at >= 0:
                value = tl.load(rows + at.to(tl.int64) * x_token, mask=mask, other=0.0)
            else:
                value = tl.load(before + at + KERNEL - 1, mask=mask, other=0.0).to(dtype)
            target = new_state + (batch * channels + channel) * (KERNEL - 1) + kept
            tl.store(target, value.to(new_state.dtype.element_ty), mask=mask)


def causal_conv1d_silu(
    x: torch.Tensor, state: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `trunnion::causal_conv1d_silu`."""
    batch, num_tokens, channels = x.shape
    kernel = weight.shape[1]
    if x.stride(2) != 1 or not (state.is_contiguous() and weight.is_contiguous()):
        return decline("causal_conv1d_silu", "strided channels, states or weights", x, state, weight, bias)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    new_state = torch.empty(state.shape, dtype=state.dtype, device=x.device)

    def run(config: Config) -> None:
        block = min(config["BLOCK"], power_of_two(channels))
        launch(
            _conv_kernel, (num_tokens, batch, ceil_div(channels, block)),
            x, state, weight, weight if bias is None else bias, out, new_state,
            num_tokens, channels, x.stride(0), x.stride(1),
            HAS_BIAS=bias is not None, KERNEL=kernel, BLOCK=block, **config.options,
        )  # fmt: skip

    TUNER.run(CONV_SPACE, (str(x.dtype), channels, size_class(batch * num_tokens)), run)
    return out, new_state


@triton.jit
def _loaded_key(at, dim, DIM: tl.constexpr, EPS: tl.constexpr):
    """A query or key of length 1, float32."""
    feature = tl.arange(0, DIM)
    x = tl.load(at + feature, mask=feature < dim, other=0.0).to(tl.float32)
    return x * tl.rsqrt(tl.sum(x * x, axis=0) + EPS)


@triton.jit
def _recurrent_kernel(
    q, k, v, g, beta, states, new_states, out, state_indices, has_initial_state, num_accepted,
    num_tokens, key_dim, value_dim, value_heads, repeats, q_scale,
    q_token, q_batch, v_token, v_batch, g_token, g_batch, beta_token, beta_batch, state_stride, index_row,
    CACHED: tl.constexpr, HAS_ACCEPTED: tl.constexpr, EPS: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """V columns of one head's state through the tokens of one request. CACHED: states are rows of a cache."""
    request = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    column = tl.program_id(2) * V + tl.arange(0, V)
    feature = tl.arange(0, K)
    is_column = column < value_dim
    mask = (feature < key_dim)[:, None] & is_column[None, :]
    within = head * key_dim * value_dim + feature[:, None] * value_dim + column[None, :]
    if CACHED:
        continues = tl.load(has_initial_state + request) != 0
        first = 0
        if HAS_ACCEPTED:
            first = tl.where(continues, tl.load(num_accepted + request) - 1, 0)
        origin = tl.load(state_indices + request * index_row + first).to(tl.int64)
        state = tl.load(states + origin * state_stride + within, mask=mask & continues, other=0.0).to(tl.float32)
    else:
        state = tl.load(states + request * state_stride + within, mask=mask, other=0.0).to(tl.float32)
    key_at = request * q_batch + (head // repeats) * key_dim
    for token in range(num_tokens):
        # An int64, as `request` is.
        place = request * 0 + token
        query = _loaded_key(q + key_at + place * q_token, key_dim, K, EPS) * q_scale
        key = _loaded_key(k + key_at + place * q_token, key_dim, K, EPS)
        value = tl.load(v + request * v_batch + place * v_token + head * value_dim + column, mask=is_column, other=0.0)
        decay = tl.load(g + request * g_batch + token * g_token + head).to(tl.float32)
        rate = tl.load(beta + request * beta_batch + token * beta_token + head).to(tl.float32)
        state = state * tl.exp(decay)
        correction = rate * (value.to(tl.float32) - tl.sum(state * key[:, None], axis=0))
        state = state + key[:, None] * correction[None, :]
        result = tl.sum(state * query[:, None], axis=0)
        row = (request * num_tokens + token) * value_heads + head
        tl.store(out + row * value_dim + column, result.to(out.dtype.element_ty), mask=is_column)
        if CACHED:
            # State 0 is nobody's: padding requests have it, and must leave it as it is.
            target = tl.load(state_indices + request * index_row + token).to(tl.int64)
            kept = state.to(new_states.dtype.element_ty)
            tl.store(new_states + target * state_stride + within, kept, mask=mask & (target > 0))
    if not CACHED:
        kept = state.to(new_states.dtype.element_ty)
        tl.store(new_states + request * state_stride + within, kept, mask=mask)


@triton.jit
def _loaded_keys(at, row_stride, is_token, dim, C: tl.constexpr, DIM: tl.constexpr, EPS: tl.constexpr):
    """[C, DIM] queries or keys of length 1, zero where there is no token."""
    feature = tl.arange(0, DIM)
    mask = is_token[:, None] & (feature < dim)[None, :]
    x = tl.load(at + tl.arange(0, C)[:, None] * row_stride + feature[None, :], mask=mask, other=0.0).to(tl.float32)
    return x * tl.rsqrt(tl.sum(x * x, axis=1) + EPS)[:, None]


@triton.jit
def _decays(g, first, num_tokens, g_token, C: tl.constexpr):
    """Log decay from the chunk's start to each of its tokens, that token's included."""
    token = tl.arange(0, C)
    each = tl.load(g + (first + token) * g_token, mask=first + token < num_tokens, other=0.0).to(tl.float32)
    return tl.cumsum(each, axis=0)


@triton.jit
def _inverse_kernel(
    k, g, beta, inverse, num_tokens, num_chunks, key_dim, value_heads, repeats, q_token, q_batch, g_token, g_batch,
    beta_token, beta_batch, EPS: tl.constexpr, C: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """The inverse of one chunk's unit lower triangular system, [C, C], by forward substitution."""
    chunk = tl.program_id(0)
    head = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    token = tl.arange(0, C)
    first = chunk * C
    is_token = first + token < num_tokens
    keys = _loaded_keys(
        k + batch * q_batch + first.to(tl.int64) * q_token + (head // repeats) * key_dim,
        q_token,
        is_token,
        key_dim,
        C,
        K,
        EPS,
    )
    total = _decays(g + batch * g_batch + head, first, num_tokens, g_token, C)
    rate = tl.load(beta + batch * beta_batch + (first + token) * beta_token + head, mask=is_token, other=0.0).to(
        tl.float32
    )
    is_past = token[:, None] > token[None, :]
    between = tl.exp(tl.where(is_past, total[:, None] - total[None, :], float("-inf")))
    system = -rate[:, None] * between * tl.dot(keys, tl.trans(keys))
    made = system
    for row in range(1, C):
        # Row by row: a row of the inverse is made of the system's row and of the inverse's rows above it.
        own = tl.sum(tl.where((token == row)[:, None], system, 0.0), axis=0)
        own = own + tl.sum(tl.where((token < row)[:, None], own[:, None] * made, 0.0), axis=0)
        made = tl.where((token == row)[:, None], own[None, :], made)
    made = made + tl.where(token[:, None] == token[None, :], 1.0, 0.0)
    at = ((batch * value_heads + head) * num_chunks + chunk) * C * C
    tl.store(inverse + at + token[:, None] * C + token[None, :], made)


@triton.jit
def _chunks_kernel(
    q, k, v, g, beta, inverse, states, new_states, out, num_tokens, num_chunks, key_dim, value_dim, value_heads,
    repeats, q_scale, q_token, q_batch, v_token, v_batch, g_token, g_batch, beta_token, beta_batch,
    EPS: tl.constexpr, C: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """V columns of one head's state through all chunks of one sequence."""
    batch = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    column = tl.program_id(2) * V + tl.arange(0, V)
    feature = tl.arange(0, K)
    token = tl.arange(0, C)
    is_column = column < value_dim
    mask = (feature < key_dim)[:, None] & is_column[None, :]
    state_at = (batch * value_heads + head) * key_dim * value_dim + feature[:, None] * value_dim + column[None, :]
    state = tl.load(states + state_at, mask=mask, other=0.0).to(tl.float32)
    key_at = batch * q_batch + (head // repeats) * key_dim
    # Products of the inputs' dtype, added up in float32: float32 operands of whole keys would not stay in registers.
    dtype: tl.constexpr = v.dtype.element_ty
    for chunk in range(num_chunks):
        first = chunk * C
        row = (first + token).to(tl.int64)
        is_token = row < num_tokens
        k_at = k + key_at + first.to(tl.int64) * q_token
        keys = _loaded_keys(k_at, q_token, is_token, key_dim, C, K, EPS).to(dtype)
        total = _decays(g + batch * g_batch + head, first, num_tokens, g_token, C)
        from_start = tl.exp(total)
        rate = tl.load(beta + batch * beta_batch + row * beta_token + head, mask=is_token, other=0.0).to(tl.float32)
        v_at = v + batch * v_batch + row[:, None] * v_token + head * value_dim + column[None, :]
        value_mask = is_token[:, None] & is_column[None, :]
        values = tl.load(v_at, mask=value_mask, other=0.0).to(tl.float32)
        carried = state.to(dtype)
        wanted = rate[:, None] * (values - from_start[:, None] * tl.dot(keys, carried))
        at = ((batch * value_heads + head) * num_chunks + chunk) * C * C
        solved = tl.load(inverse + at + token[:, None] * C + token[None, :]).to(dtype)
        corrections = tl.dot(solved, wanted.to(dtype))
        q_at = q + key_at + first.to(tl.int64) * q_token
        queries = (_loaded_keys(q_at, q_token, is_token, key_dim, C, K, EPS) * q_scale).to(dtype)
        is_past = token[:, None] >= token[None, :]
        between = tl.exp(tl.where(is_past, total[:, None] - total[None, :], float("-inf")))
        within = between * tl.dot(queries, tl.trans(keys))
        result = from_start[:, None] * tl.dot(queries, carried)
        result += tl.dot(within.to(dtype), corrections.to(dtype))
        out_at = out + ((batch * num_tokens + row) * value_heads + head)[:, None] * value_dim + column[None, :]
        tl.store(out_at, result.to(out.dtype.element_ty), mask=value_mask)
        end = tl.sum(tl.where(token == C - 1, total, 0.0), axis=0)
        # The decay to the end goes with the corrections: the keys' product is then the same as above.
        fading = (corrections * tl.exp(end - total)[:, None]).to(dtype)
        state = tl.exp(end) * state + tl.dot(tl.trans(keys), fading)
    tl.store(new_states + state_at, state.to(new_states.dtype.element_ty), mask=mask)


def _why_not(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor) -> str | None:
    if q.shape[-1] > MAX_KEY_DIM:
        return f"keys of more than {MAX_KEY_DIM} features"
    if any(x.stride(-1) != 1 or x.stride(-2) != x.shape[-1] for x in (q, k, v)) or q.stride() != k.stride():
        return "heads that are not neighbours in memory"
    if g.stride(-1) != 1 or beta.stride(-1) != 1:
        return "strided decays or rates"
    return None


def gated_delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `trunnion::gated_delta_rule`: token by token if there are few, else in chunks."""
    reason = _why_not(q, k, v, g, beta) or (None if state.is_contiguous() else "strided states")
    if reason is not None:
        return decline("gated_delta_rule", reason, q, k, v, g, beta, state)
    batch, num_tokens, value_heads, value_dim = v.shape
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    new_state = torch.empty(state.shape, dtype=state.dtype, device=v.device)
    if num_tokens < CHUNK or v.dtype == torch.float32:
        _recurrent(q, k, v, g, beta, state, new_state, out, None)
        return out, new_state
    key_dim, repeats, num_chunks = q.shape[-1], value_heads // k.shape[2], ceil_div(num_tokens, CHUNK)
    inverse = torch.empty((batch, value_heads, num_chunks, CHUNK, CHUNK), dtype=torch.float32, device=v.device)
    block_k = max(power_of_two(key_dim), 16)
    rates = g.stride(1), g.stride(0), beta.stride(1), beta.stride(0)
    launch(
        _inverse_kernel, (num_chunks, value_heads, batch), k, g, beta, inverse, num_tokens, num_chunks, key_dim,
        value_heads, repeats, k.stride(1), k.stride(0), *rates, EPS=L2_EPS, C=CHUNK, K=block_k,
        num_warps=4, num_stages=1,
    )  # fmt: skip

    def run(config: Config) -> None:
        launch(
            _chunks_kernel, (batch, value_heads, ceil_div(value_dim, config["V"])),
            q, k, v, g, beta, inverse, state, new_state, out, num_tokens, num_chunks, key_dim, value_dim, value_heads,
            repeats, key_dim**-0.5, q.stride(1), q.stride(0), v.stride(1), v.stride(0), *rates,
            EPS=L2_EPS, C=CHUNK, K=block_k, **config.blocks, **config.options,
        )  # fmt: skip

    TUNER.run(CHUNK_SPACE, (str(v.dtype), value_heads, key_dim, value_dim, batch), run)
    return out, new_state


@dataclass(frozen=True, kw_only=True)
class StateColumns:
    """Which states a step's requests start from and leave, as the host contract says it; device tensors, int32."""

    state_indices: torch.Tensor
    """[B, W]: column i holds the state after token i of a decode; 0 is nobody's and never written."""
    has_initial_state: torch.Tensor
    """[B]: 0 starts from zeros."""
    num_accepted: torch.Tensor | None = None
    """[B]: the step starts from the state in column `num_accepted - 1`; read only where there is an initial state."""


def _recurrent(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    states: torch.Tensor,
    new_states: torch.Tensor,
    out: torch.Tensor,
    columns: StateColumns | None,
) -> None:
    batch, num_tokens, value_heads, value_dim = v.shape
    key_dim = q.shape[-1]
    block_v = min(RECURRENT_V, power_of_two(value_dim))
    indices = None if columns is None else columns.state_indices
    accepted = None if columns is None else columns.num_accepted
    launch(
        _recurrent_kernel, (batch, value_heads, ceil_div(value_dim, block_v)),
        q, k, v, g, beta, states, new_states, out, g if indices is None else indices,
        g if columns is None else columns.has_initial_state, g if accepted is None else accepted,
        num_tokens, key_dim, value_dim, value_heads, value_heads // k.shape[2], key_dim**-0.5,
        q.stride(1), q.stride(0), v.stride(1), v.stride(0), g.stride(1), g.stride(0), beta.stride(1), beta.stride(0),
        states.stride(0), 0 if indices is None else indices.stride(0),
        CACHED=columns is not None, HAS_ACCEPTED=accepted is not None, EPS=L2_EPS, K=power_of_two(key_dim), V=block_v,
        num_warps=4,
    )  # fmt: skip


@triton.jit
def _conv_decode_kernel(
    x, states, weight, bias, out, state_indices, has_initial_state, num_accepted, num_tokens, channels, x_token,
    state_stride, index_row,
    HAS_BIAS: tl.constexpr, HAS_ACCEPTED: tl.constexpr, KERNEL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """All tokens of one request: the inputs before a token are in registers, for a state may be over its own start."""
    request = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = channel < channels
    continues = tl.load(has_initial_state + request) != 0
    first = 0
    if HAS_ACCEPTED:
        first = tl.where(continues, tl.load(num_accepted + request) - 1, 0)
    origin = tl.load(state_indices + request * index_row + first).to(tl.int64)
    before = states + origin * state_stride + channel * (KERNEL - 1)
    dtype = x.dtype.element_ty
    # The last input is `newest`; of a shorter kernel the older ones stay zero and have no weight.
    oldest = tl.zeros([BLOCK], tl.float32)
    middle = tl.zeros([BLOCK], tl.float32)
    newest = tl.zeros([BLOCK], tl.float32)
    weight_at = weight + channel * KERNEL + KERNEL - 1
    own_weight = tl.load(weight_at, mask=mask, other=0.0).to(tl.float32)
    newest_weight = tl.zeros([BLOCK], tl.float32)
    middle_weight = tl.zeros([BLOCK], tl.float32)
    oldest_weight = tl.zeros([BLOCK], tl.float32)
    if KERNEL > 1:
        newest = tl.load(before + KERNEL - 2, mask=mask & continues, other=0.0).to(dtype).to(tl.float32)
        newest_weight = tl.load(weight_at - 1, mask=mask, other=0.0).to(tl.float32)
    if KERNEL > 2:
        middle = tl.load(before + KERNEL - 3, mask=mask & continues, other=0.0).to(dtype).to(tl.float32)
        middle_weight = tl.load(weight_at - 2, mask=mask, other=0.0).to(tl.float32)
    if KERNEL > 3:
        oldest = tl.load(before + KERNEL - 4, mask=mask & continues, other=0.0).to(dtype).to(tl.float32)
        oldest_weight = tl.load(weight_at - 3, mask=mask, other=0.0).to(tl.float32)
    offset = tl.zeros([BLOCK], tl.float32)
    if HAS_BIAS:
        offset = tl.load(bias + channel, mask=mask, other=0.0).to(tl.float32)
    for token in range(num_tokens):
        row = request * num_tokens + token
        own = tl.load(x + row * x_token + channel, mask=mask, other=0.0).to(tl.float32)
        total = oldest * oldest_weight + middle * middle_weight + newest * newest_weight + own * own_weight + offset
        tl.store(out + row * channels + channel, silu(total).to(dtype), mask=mask)
        oldest = middle
        middle = newest
        newest = own
        target = tl.load(state_indices + request * index_row + token).to(tl.int64)
        kept = states + target * state_stride + channel * (KERNEL - 1)
        is_kept = mask & (target > 0)
        kept_dtype = states.dtype.element_ty
        if KERNEL > 1:
            tl.store(kept + KERNEL - 2, newest.to(kept_dtype), mask=is_kept)
        if KERNEL > 2:
            tl.store(kept + KERNEL - 3, middle.to(kept_dtype), mask=is_kept)
        if KERNEL > 3:
            tl.store(kept + KERNEL - 4, oldest.to(kept_dtype), mask=is_kept)


def recurrent_decode(
    mixed_qkv: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    conv_weight: torch.Tensor,
    conv_bias: torch.Tensor | None,
    conv_state: torch.Tensor,
    ssm_state: torch.Tensor,
    columns: StateColumns,
    *,
    num_k_heads: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """One step of B uniform decodes on cached states, in place: what `RecurrentGroup.run` does in a full graph.

    mixed_qkv [T, conv_dim] with T a multiple of B, g and beta [T, Hv], conv_weight [conv_dim, kernel], conv_bias
    [conv_dim], conv_state [num_states, conv_dim, kernel - 1], ssm_state [num_states, Hv, Dk, Dv] -> [T, Hv, Dv]. Token
    i of a request leaves its state in column i of `state_indices`; requests of state 0 (padding) leave none, and start
    from zeros, as their `has_initial_state` of 0 says.

    Raises:
        ValueError: shapes or layouts that the kernels cannot take.
    """
    num_reqs = columns.state_indices.shape[0]
    (num_tokens, channels), kernel = mixed_qkv.shape, conv_weight.shape[1]
    _, value_heads, key_dim, value_dim = ssm_state.shape
    length = num_tokens // num_reqs if num_reqs else 0
    reason = None
    if num_reqs and (num_tokens % num_reqs or length > columns.state_indices.shape[1]):
        reason = f"{num_tokens} tokens of {num_reqs} requests with {columns.state_indices.shape[1]} states each"
    elif kernel > MAX_KERNEL or key_dim > MAX_KEY_DIM:
        reason = f"{kernel} taps or {key_dim} key features; at most {MAX_KERNEL} and {MAX_KEY_DIM}"
    elif mixed_qkv.stride(1) != 1 or not (conv_state.is_contiguous() and ssm_state[0].is_contiguous()):
        reason = "strided inputs or states"
    if reason is not None:
        raise ValueError(f"a recurrent decode cannot take {reason}")
    out = (
        torch.empty((num_tokens, value_heads, value_dim), dtype=mixed_qkv.dtype, device=g.device)
        if out is None
        else out
    )
    if num_tokens == 0:
        return out
    mixed = torch.empty((num_tokens, channels), dtype=mixed_qkv.dtype, device=g.device)
    block = min(256, power_of_two(channels))
    accepted = columns.num_accepted
    launch(
        _conv_decode_kernel, (num_reqs, ceil_div(channels, block)),
        mixed_qkv, conv_state, conv_weight, conv_weight if conv_bias is None else conv_bias, mixed,
        columns.state_indices, columns.has_initial_state, columns.has_initial_state if accepted is None else accepted,
        length, channels, mixed_qkv.stride(0), conv_state.stride(0), columns.state_indices.stride(0),
        HAS_BIAS=conv_bias is not None,
        HAS_ACCEPTED=accepted is not None, KERNEL=kernel, BLOCK=block,
    )  # fmt: skip
    keys = num_k_heads * key_dim
    q, k, v = mixed.unflatten(0, (num_reqs, length)).split((keys, keys, value_heads * value_dim), dim=-1)
    heads = (x.unflatten(-1, (-1, dim)) for x, dim in ((q, key_dim), (k, key_dim), (v, value_dim)))
    rates = (x.unflatten(0, (num_reqs, length)) for x in (g, beta))
    _recurrent(*heads, *rates, ssm_state, ssm_state, out, columns)
    return out


def kernels() -> dict[str, Any]:
    """Operators by name."""
    return {"causal_conv1d_silu": causal_conv1d_silu, "gated_delta_rule": gated_delta_rule}
