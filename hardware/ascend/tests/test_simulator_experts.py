"""torch_npu's routing and products of experts on the simulated NPU, against plain loops."""

from __future__ import annotations

import hardware.ascend.tests.simulated  # noqa: F401  (skips this module where there is a real device)
import pytest
import torch
from hardware.ascend.tests.near import assert_near
from torch.nn import functional

torch_npu = pytest.importorskip("torch_npu")

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("dtype", "bias"), [(BF16, torch.float32), (torch.float16, torch.float16), (torch.float32, torch.float32)], ids=str
)
def test_a_bias_of_groups_has_the_dtype_of_the_table(dtype: torch.dtype, bias: torch.dtype) -> None:
    x, weight, added = torch.randn(5, 16).to(dtype), torch.randn(2, 16, 8).to(dtype), torch.randn(2, 8)
    options = {"split_item": 2, "group_type": 0, "group_list_type": 1, "group_list": torch.tensor([2, 3]).npu()}

    def run(own: torch.dtype) -> torch.Tensor:
        (out,) = torch_npu.npu_grouped_matmul([x.npu()], [weight.npu()], bias=[added.to(own).npu()], **options)
        return out

    rows = [x[row].float() @ weight[group].float() + added.to(bias)[group] for row, group in enumerate([0, 0, 1, 1, 1])]
    assert_near(run(bias), torch.stack(rows).to(dtype), 1e-2)
    wrong = torch.float32 if bias == torch.float16 else torch.float16
    with pytest.raises(RuntimeError, match=f"a bias of {wrong} for rows of {dtype}, expected {bias}"):
        run(wrong)
        torch.npu.synchronize()


def test_experts_of_tokens_and_back() -> None:
    """Gating, routing, experts and their sum, against a loop over tokens."""
    tokens, experts, k, hidden, inner = 7, 5, 2, 32, 24
    x, gate = torch.randn(tokens, hidden), torch.randn(tokens, experts)
    w1, w2 = torch.randn(experts, hidden, 2 * inner) * 0.1, torch.randn(experts, inner, hidden) * 0.1
    weights, chosen, rows = torch_npu.npu_moe_gating_top_k_softmax(gate.npu(), None, k)
    expected_weights, expected_experts = gate.softmax(-1).topk(k)
    assert_near(weights, expected_weights, 1e-6)
    assert torch.equal(chosen.cpu().long(), expected_experts)
    expanded, places, sorted_experts = torch_npu.npu_moe_init_routing(x.npu(), rows, chosen, tokens)
    ends = torch_npu.npu_moe_compute_expert_tokens(sorted_experts, experts).long()
    options = {"split_item": 2, "group_type": 0, "group_list": ends, "group_list_type": 0}
    (up,) = torch_npu.npu_grouped_matmul([expanded], [w1.npu()], **options)
    (down,) = torch_npu.npu_grouped_matmul([torch_npu.npu_swiglu(up)], [w2.npu()], **options)
    found = torch_npu.npu_moe_finalize_routing(down, None, None, None, weights, places, chosen)
    expected = torch.zeros_like(x)
    for token in range(tokens):
        for weight, expert in zip(expected_weights[token], expected_experts[token], strict=True):
            left, right = (x[token] @ w1[expert]).chunk(2)
            expected[token] += weight * ((functional.silu(left) * right) @ w2[expert])
    assert_near(found, expected, 1e-5)


def test_routing_for_a_range_of_experts_counts_their_tokens() -> None:
    x = torch.arange(4.0)[:, None].expand(4, 8).contiguous()
    chosen = torch.tensor([[1, 2], [0, 1], [3, 2], [2, 0]], dtype=torch.int32)
    expanded, places, counts, _ = torch_npu.npu_moe_init_routing_v2(
        x.npu(),
        chosen.npu(),
        active_num=8,
        expert_num=4,
        expert_tokens_num_type=1,
        expert_tokens_num_flag=True,
        active_expert_range=[1, 3],
        quant_mode=-1,
        row_idx_type=0,
    )
    # Expert 1 has tokens 0 and 1, expert 2 tokens 0, 2 and 3.
    assert counts.tolist() == [2, 3]
    assert places.tolist() == [0, 2, -1, 1, -1, 3, 4, -1]
    assert expanded[:5, 0].tolist() == [0, 1, 0, 2, 3]


def test_gating_by_groups_as_deepseek_does() -> None:
    """The bias chooses and does not weigh; the best two of a group choose groups."""
    logits, bias = torch.randn(6, 16), torch.randn(16)
    scores = logits.sigmoid()
    choice = (scores + bias).unflatten(-1, (4, 4))
    groups = choice.topk(2, -1).values.sum(-1).topk(2, -1).indices
    allowed = torch.zeros(6, 4, dtype=torch.bool).scatter(1, groups, True)[..., None].expand(6, 4, 4).flatten(1)
    experts = choice.flatten(1).masked_fill(~allowed, -torch.inf).topk(3, -1).indices
    weights = scores.gather(1, experts)
    found, chosen, _ = torch_npu.npu_moe_gating_top_k(
        logits.npu(),
        3,
        bias=bias.npu(),
        k_group=2,
        group_count=4,
        group_select_mode=1,
        norm_type=1,
        routed_scaling_factor=2.5,
    )
    assert torch.equal(chosen.cpu().long(), experts)
    assert_near(found, weights / weights.sum(-1, keepdim=True) * 2.5, 1e-5)


@pytest.mark.parametrize("kind", [0, 1], ids=["sums", "counts"])
def test_groups_are_told_by_sums_or_by_counts(kind: int) -> None:
    x, weight, counts = torch.randn(6, 8), torch.randn(3, 8, 4), torch.tensor([2, 0, 4])
    groups = counts.cumsum(0) if kind == 0 else counts
    (found,) = torch_npu.npu_grouped_matmul(
        [x.npu()], [weight.npu()], group_list=groups.npu(), group_list_type=kind, split_item=2, group_type=0
    )
    assert_near(found, torch.cat((x[:2] @ weight[0], x[2:] @ weight[2])), 1e-5)
