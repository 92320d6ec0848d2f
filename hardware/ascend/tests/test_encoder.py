"""Attention of encoders on the fused operator: as torch's own, request by request; what it would misread is refused."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from trunnion.contract import BatchCounts, BatchTensors
from trunnion.interfaces.attention import EncoderSpec, StepInputs
from trunnion_ascend.capabilities import MAX_RUNS
from trunnion_ascend.encoder import FusedEncoderGroup
from trunnion_ascend.hardware import AscendHardware

DEVICE = torch.device("npu", 0)
SPEC = EncoderSpec(num_heads=3, head_dim=64, scale=0.3, dtype=torch.bfloat16)


@pytest.fixture
def group() -> FusedEncoderGroup:
    AscendHardware().initialize(0)
    return FusedEncoderGroup(SPEC, 1, DEVICE)


def _step(lengths: list[int]) -> StepInputs:
    """A step of the host; this group reads nothing of the device's copy."""
    tokens = torch.zeros(sum(lengths), dtype=torch.int32)
    host = BatchTensors(
        input_ids=tokens,
        positions=tokens,
        query_start_loc=torch.tensor([0, *lengths]).cumsum(0).int(),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        logits_indices=tokens[:0],
        groups=[],
    )
    counts = BatchCounts(num_tokens=sum(lengths), num_reqs=len(lengths), max_query_len=max(lengths))
    return StepInputs(counts=counts, host=host, device=host)


def test_a_request_sees_all_of_itself_and_nothing_else(group: FusedEncoderGroup) -> None:
    lengths = [5, 1, 33]
    q, k, v = (torch.randn(sum(lengths), 3, 64, generator=torch.manual_seed(seed)).bfloat16() for seed in range(3))
    group.plan(_step(lengths))
    found = group.run(0, q.to(DEVICE), k.to(DEVICE), v.to(DEVICE)).cpu().float()
    parts = zip(*(x.float().transpose(0, 1).split(lengths, 1) for x in (q, k, v)), strict=True)
    truth = torch.cat([scaled_dot_product_attention(*rows, scale=SPEC.scale) for rows in parts], 1).transpose(0, 1)
    torch.testing.assert_close(found, truth, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(("name", "shape"), [("q", (2, 3, 32)), ("k", (1, 3, 64)), ("v", (2, 2, 64))])
def test_arguments_that_are_not_the_groups(group: FusedEncoderGroup, name: str, shape: tuple[int, ...]) -> None:
    good = torch.zeros(2, 3, 64, dtype=SPEC.dtype, device=DEVICE)
    arguments = {"q": good, "k": good, "v": good, name: torch.zeros(shape, dtype=SPEC.dtype, device=DEVICE)}
    with pytest.raises(ValueError, match=f"^{name} is .*expected"):
        group.run(0, **arguments)


def test_more_requests_than_the_operator_takes(group: FusedEncoderGroup) -> None:
    with pytest.raises(
        ValueError, match=f"{MAX_RUNS + 1} requests are more than the {MAX_RUNS} of .*: lower max_num_seqs"
    ):
        group.plan(_step([1] * (MAX_RUNS + 1)))
