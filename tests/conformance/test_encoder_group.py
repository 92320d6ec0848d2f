"""Attention of encoders on the package under test: a request's tokens see all of it, and nothing else."""

from __future__ import annotations

import pytest
import torch

from trunnion.contract import BatchCounts, BatchTensors
from trunnion.interfaces.attention import EncoderSpec, StepInputs
from trunnion.interfaces.hardware import Hardware

SPECS = {
    "one-head": EncoderSpec(num_heads=1, head_dim=16, scale=0.25, dtype=torch.float32),
    "odd-bf16": EncoderSpec(num_heads=3, head_dim=20, scale=0.3, dtype=torch.bfloat16),
    "wide-bf16": EncoderSpec(num_heads=4, head_dim=64, scale=0.125, dtype=torch.bfloat16),
}
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
BATCHES = ([1], [7], [1, 1, 1], [5, 1, 33, 8], [130, 2], [])


def _step(lengths: list[int], padding: int, device: torch.device) -> StepInputs:
    bounds = torch.tensor([0, *lengths]).cumsum(0).int()
    total = sum(lengths)
    counts = BatchCounts(num_tokens=total, num_reqs=len(lengths), max_query_len=max(lengths, default=0))
    host = BatchTensors(
        input_ids=torch.zeros(total, dtype=torch.int32),
        positions=torch.zeros(total, dtype=torch.int32),
        query_start_loc=bounds,
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        logits_indices=torch.zeros(0, dtype=torch.int32),
        groups=[],
    )
    rows = torch.zeros(total + padding, dtype=torch.int32, device=device)
    device_side = BatchTensors(
        input_ids=rows,
        positions=rows,
        query_start_loc=bounds.to(device),
        seq_lens=host.seq_lens.to(device),
        logits_indices=host.logits_indices.to(device),
        groups=[],
    )
    return StepInputs(counts=counts, host=host, device=device_side)


def _truth(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int], scale: float) -> torch.Tensor:
    """In float64, request by request."""
    parts = []
    for rows in zip(*(x.double().split(lengths) for x in (q, k, v)), strict=True):
        scores = torch.einsum("nhd,shd->hns", rows[0], rows[1]) * scale
        parts.append(torch.einsum("hns,shd->nhd", scores.softmax(-1), rows[2]))
    return torch.cat(parts) if parts else q[:0].double()


@pytest.mark.parametrize("with_out", [False, True], ids=["fresh", "out"])
@pytest.mark.parametrize("padding", [0, 6], ids=["exact", "padded"])
@pytest.mark.parametrize("name", SPECS)
def test_requests_attend_to_themselves(hardware: Hardware, name: str, padding: int, with_out: bool) -> None:
    spec = SPECS[name]
    device = hardware.initialize(0)
    group_class, _ = hardware.group_class(spec)
    group = group_class(spec, 2, device)
    assert group_class.cache_tensors(spec, 16) == ()
    generator = torch.Generator().manual_seed(3)
    for lengths in BATCHES:
        shape = (sum(lengths) + padding, spec.num_heads, spec.head_dim)
        q, k, v = (torch.randn(shape, generator=generator).to(spec.dtype) for _ in range(3))
        for x in (q, k, v):
            # What lies behind the step's rows must reach nothing.
            x[sum(lengths) :] = torch.nan
        group.plan(_step(lengths, padding, device))
        for layer in range(2):
            moved = [x.to(device) for x in (q, k, v)]
            out = torch.full(shape, torch.nan, dtype=spec.dtype, device=device) if with_out else None
            found = group.run(layer, *moved, out=out)  # type: ignore[attr-defined]
            assert out is None or found.data_ptr() == out.data_ptr()
            assert not found[sum(lengths) :].cpu().any(), "rows that are nobody's are zero"
            expected = _truth(*(x[: sum(lengths)] for x in (q, k, v)), lengths, spec.scale)
            torch.testing.assert_close(
                found[: sum(lengths)].cpu().double(),
                expected,
                atol=TOLERANCE[spec.dtype],
                rtol=TOLERANCE[spec.dtype],
            )
