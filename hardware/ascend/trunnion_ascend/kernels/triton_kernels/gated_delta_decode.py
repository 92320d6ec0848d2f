"""One step of the gated delta rule (arXiv:2412.06464) for requests that decode, on their cached states in place.

The state of a head, Dk x Dv float32, is read once and written once per token: `8 Dk Dv` bytes for about `7 Dk Dv`
FLOPs, on vector cores. A program holds BLOCK_V of its columns, 16 KiB at Dk = 128, in the 192 KiB of a core's buffer.
torch_npu has `npu_recurrent_gated_delta_rule` for states [.., Dv, Dk] in bfloat16; these are [.., Dk, Dv] in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from trunnion_ascend.kernels.triton_kernels.launch import grid, power_of_two

BLOCK_V = 32
L2_EPS = 1e-6


@triton.jit
def gated_delta_decode_kernel(
    x, g, beta, state, state_indices, has_initial_state, num_accepted, out, num_tasks, width,
    LENGTH: tl.constexpr, HAS_ACCEPTED: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr,
    DV: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """A task is BLOCK_V columns of one head of one request, token by token."""
    blocks: tl.constexpr = (DV + BLOCK_V - 1) // BLOCK_V
    row = tl.arange(0, BLOCK_K)
    has_row = row < DK
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        column = task % blocks * BLOCK_V + tl.arange(0, BLOCK_V)
        head = task // blocks % HV
        request = task // (blocks * HV)
        has_column = column < DV
        inside = has_row[:, None] & has_column[None, :]
        within = head * DK * DV + row[:, None] * DV + column[None, :]
        carried = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
        if tl.load(has_initial_state + request) != 0:
            accepted = 0
            if HAS_ACCEPTED:
                accepted = tl.load(num_accepted + request) - 1
            start = tl.load(state_indices + request * width + accepted).to(tl.int64)
            carried = tl.load(state + start * (HV * DK * DV) + within, mask=inside, other=0.0).to(tl.float32)
        for token in range(LENGTH):
            at = request * LENGTH + token
            features = x + tl.cast(at, tl.int64) * (2 * HK * DK + HV * DV)
            query_at = features + head // (HV // HK) * DK + row
            query = tl.load(query_at, mask=has_row, other=0.0).to(tl.float32)
            key = tl.load(query_at + HK * DK, mask=has_row, other=0.0).to(tl.float32)
            value_at = features + 2 * HK * DK + head * DV + column
            value = tl.load(value_at, mask=has_column, other=0.0).to(tl.float32)
            query = query / tl.sqrt(tl.sum(query * query, 0) + EPS) / tl.sqrt(DK * 1.0)
            key = key / tl.sqrt(tl.sum(key * key, 0) + EPS)
            carried = carried * tl.exp(tl.load(g + at * HV + head).to(tl.float32))
            rate = tl.load(beta + at * HV + head).to(tl.float32)
            change = rate * (value - tl.sum(carried * key[:, None], 0))
            carried = carried + key[:, None] * change[None, :]
            result = tl.sum(carried * query[:, None], 0)
            out_at = out + (tl.cast(at, tl.int64) * HV + head) * DV + column
            tl.store(out_at, result.to(out.dtype.element_ty), mask=has_column)
            kept = tl.load(state_indices + request * width + token).to(tl.int64)
            # State 0 is nobody's: padding has it.
            if kept > 0:
                kept_at = state + kept * (HV * DK * DV) + within
                tl.store(kept_at, carried.to(state.dtype.element_ty), mask=inside)


def gated_delta_decode(
    x: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    has_initial_state: torch.Tensor,
    num_accepted: torch.Tensor | None,
    *,
    num_k_heads: int,
    head_k_dim: int,
    out: torch.Tensor,
) -> None:
    """`trunnion::gated_delta_rule` of T = B * S tokens, S of each request, on states where they lie; S states are kept.

    Args:
        x: [T, 2 * Hk * Dk + Hv * Dv], contiguous: queries, keys and values of a token after the convolution.
        g: [T, Hv], log decay.
        beta: [T, Hv], of float32 or x's dtype.
        state: [num_states, Hv, Dk, Dv], contiguous; those that are kept are written.
        state_indices: [B, W] int32, W >= S: where the state after each token goes, 0 for nowhere.
        has_initial_state: [B], 0 for requests that start from zero.
        num_accepted: [B] int32: a request starts from column `num_accepted - 1`; None: from the first.
        out: [T, Hv, Dv], contiguous, of x's dtype; written in full.
    """
    requests, heads, v_dim = state_indices.shape[0], state.shape[1], state.shape[3]
    num_tasks = requests * heads * triton.cdiv(v_dim, BLOCK_V)
    if num_tasks == 0:
        return
    gated_delta_decode_kernel[grid(num_tasks)](
        x, g, beta, state, state_indices, has_initial_state,
        state_indices if num_accepted is None else num_accepted, out, num_tasks, state_indices.shape[1],
        LENGTH=x.shape[0] // requests, HAS_ACCEPTED=num_accepted is not None, HK=num_k_heads, HV=heads, DK=head_k_dim,
        DV=v_dim, BLOCK_K=power_of_two(head_k_dim), BLOCK_V=BLOCK_V, EPS=L2_EPS,
    )  # fmt: skip
