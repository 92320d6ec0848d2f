"""The gated delta net against Qwen3-Next's and Qwen3.5's in transformers: operators, layers, states that live on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import nn
from transformers import Qwen3_5TextConfig, Qwen3NextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet
from transformers.models.qwen3_next.modeling_qwen3_next import (
    Qwen3NextGatedDeltaNet,
    causal_conv1d_fn,
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

from trunnion.config import BuildContext
from trunnion.contract import BatchCounts, BatchTensors, GroupTensors
from trunnion.interfaces.attention import StepInputs
from trunnion.interfaces.collectives import ParallelGroup
from trunnion.interfaces.weights import placements_of
from trunnion.layers.gated_delta_net import GatedDeltaNet
from trunnion.reference import ReferenceHardware
from trunnion.reference.recurrent import ReferenceRecurrentGroup

HIDDEN, K_HEADS, V_HEADS, K_DIM, V_DIM, KERNEL = 12, 2, 4, 6, 5, 4
NUM_STATES = 9
PAD_TOKENS = 3


def rule_inputs(num_tokens: int, batch: int = 2) -> dict[str, torch.Tensor]:
    return {
        "q": torch.randn(batch, num_tokens, K_HEADS, K_DIM),
        "k": torch.randn(batch, num_tokens, K_HEADS, K_DIM),
        "v": torch.randn(batch, num_tokens, V_HEADS, V_DIM),
        "g": -torch.rand(batch, num_tokens, V_HEADS) * 3,
        "beta": torch.rand(batch, num_tokens, V_HEADS),
        "state": torch.randn(batch, V_HEADS, K_DIM, V_DIM),
    }


@pytest.mark.parametrize("num_tokens", [1, 2, 7, 63, 64, 65, 200])
@pytest.mark.parametrize("truth", [torch_recurrent_gated_delta_rule, torch_chunk_gated_delta_rule])
def test_rule_equals_transformers(truth: object, num_tokens: int) -> None:
    torch.manual_seed(0)
    x = rule_inputs(num_tokens)
    expected, state = truth(
        *(x[name] for name in ("q", "k", "v", "g", "beta")),
        initial_state=x["state"],
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    out, new_state = torch.ops.trunnion.gated_delta_rule(*x.values())
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(new_state, state, rtol=1e-4, atol=1e-5)


def test_rule_survives_a_decay_that_forgets_everything() -> None:
    x = rule_inputs(70)
    x["g"] = torch.full_like(x["g"], -300.0)
    out, state = torch.ops.trunnion.gated_delta_rule(*x.values())
    assert out.isfinite().all() and state.isfinite().all()


def test_rule_without_tokens_keeps_the_state() -> None:
    x = rule_inputs(0)
    out, state = torch.ops.trunnion.gated_delta_rule(*x.values())
    assert out.shape == (2, 0, V_HEADS, V_DIM) and torch.equal(state, x["state"])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kernel", [1, 2, 4])
@pytest.mark.parametrize("cut", [0, 1, 3, 7])
def test_convolution_equals_transformers_wherever_it_is_cut(cut: int, kernel: int, bias: bool) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 7, 5), torch.randn(5, kernel)
    offset = torch.randn(5) if bias else None
    expected = causal_conv1d_fn(x.transpose(1, 2), weight, offset, activation="silu").transpose(1, 2)
    state = torch.zeros(2, 5, kernel - 1)
    first, state = torch.ops.trunnion.causal_conv1d_silu(x[:, :cut], state, weight, offset)
    second, state = torch.ops.trunnion.causal_conv1d_silu(x[:, cut:], state, weight, offset)
    torch.testing.assert_close(torch.cat((first, second), dim=1), expected)
    assert torch.equal(state, x.transpose(1, 2)[..., 7 - (kernel - 1) :])


def parts_of(hf: nn.Module) -> dict[tuple[str, str], torch.Tensor]:
    """The layer's tensors by our parameter and its part."""
    stored = {name: parameter.data for name, parameter in hf.named_parameters()}
    fused: dict[tuple[str, str], torch.Tensor] = {}
    if isinstance(hf, Qwen3_5GatedDeltaNet):
        qkv = stored.pop("in_proj_qkv.weight").split((hf.key_dim, hf.key_dim, hf.value_dim))
        fused |= {("in_proj_qkvz.weight", part): rows for part, rows in zip("qkv", qkv, strict=True)}
        fused["in_proj_qkvz.weight", "z"] = stored.pop("in_proj_z.weight")
        fused |= {("in_proj_ba.weight", part): stored.pop(f"in_proj_{part}.weight") for part in "ba"}
    return fused | {(name, ""): tensor for name, tensor in stored.items()}


class Served:
    """A layer bound to a group whose states hold NaN until they are written."""

    def __init__(self, hf: nn.Module, rank: int = 0, size: int = 1) -> None:
        ctx = BuildContext(
            hardware=ReferenceHardware(), dtype=torch.float32, parallel=ParallelGroup(rank=rank, size=size)
        )
        self.layer = GatedDeltaNet(
            HIDDEN,
            K_HEADS,
            V_HEADS,
            K_DIM,
            V_DIM,
            KERNEL,
            1e-6,
            separate_projections=isinstance(hf, Qwen3_5GatedDeltaNet),
            ctx=ctx,
            prefix="linear_attn",
        )
        stored = parts_of(hf)
        placed = {
            (name, part): (parameter, placement)
            for name, parameter in self.layer.named_parameters()
            for part, placement in placements_of(parameter).items()
        }
        assert stored.keys() == placed.keys()
        for key, (parameter, placement) in placed.items():
            assert tuple(stored[key].shape) == placement.shape
            parameter.data[placement.target] = stored[key][placement.source]
        self.group = ReferenceRecurrentGroup(self.layer.spec, 1, torch.device("cpu"))
        tensors = ReferenceRecurrentGroup.cache_tensors(self.layer.spec, 16)
        self.caches = {t.name: torch.full((NUM_STATES, *t.shape), float("nan"), dtype=t.dtype) for t in tensors}
        self.group.bind_kv_cache(0, [self.caches])
        self.layer.bind(self.group, 0)

    def step(self, parts: Sequence[tuple[int, torch.Tensor, bool]], num_decodes: int = 0) -> list[torch.Tensor]:
        """Run (state, hidden rows, continues) per request -> the rows of each."""
        lens = [len(hidden) for _, hidden, _ in parts]
        total, num_reqs = sum(lens), len(parts)
        # Padding points at live states on purpose: rows beyond the counts must not be looked at.
        tensors = BatchTensors(
            input_ids=_ints([0] * (total + PAD_TOKENS)),
            positions=_ints([0] * (total + PAD_TOKENS)),
            query_start_loc=_ints([*itertools.accumulate(lens, initial=0), total + PAD_TOKENS]),
            seq_lens=_ints([*lens, PAD_TOKENS]),
            logits_indices=_ints([]),
            groups=(
                GroupTensors(
                    state_indices=_ints([state for state, _, _ in parts] + [1]).unsqueeze(1),
                    has_initial_state=_ints([int(continues) for _, _, continues in parts] + [0]),
                ),
            ),
        )
        counts = BatchCounts(num_tokens=total, num_reqs=num_reqs, num_decodes=num_decodes)
        self.group.plan(StepInputs(counts, tensors, tensors))
        out = self.layer(torch.cat([hidden for _, hidden, _ in parts] or [torch.empty(0, HIDDEN)]))
        return list(out.split(lens))


def _ints(values: Sequence[int]) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


KINDS = {
    "qwen3_next": (Qwen3NextConfig, Qwen3NextGatedDeltaNet),
    "qwen3_5": (Qwen3_5TextConfig, Qwen3_5GatedDeltaNet),
}


@pytest.fixture(scope="module", params=KINDS)
def hf(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    make_config, make_layer = KINDS[request.param]
    config = make_config(
        hidden_size=HIDDEN,
        linear_num_key_heads=K_HEADS,
        linear_num_value_heads=V_HEADS,
        linear_key_head_dim=K_DIM,
        linear_value_head_dim=V_DIM,
        linear_conv_kernel_dim=KERNEL,
        num_hidden_layers=4,
        rms_norm_eps=1e-6,
    )
    module = make_layer(config, 0)
    for name, parameter in module.named_parameters():
        if name != "A_log":
            torch.nn.init.normal_(parameter)
    return module.requires_grad_(False)


def rows(num_tokens: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(num_tokens, HIDDEN, generator=torch.Generator().manual_seed(seed))


def assert_rows(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("num_tokens", [1, 3, 7, 63, 100])
def test_layer_equals_transformers(hf: nn.Module, num_tokens: int) -> None:
    x = rows(num_tokens)
    (out,) = Served(hf).step([(1, x, False)])
    assert_rows(out, hf(x[None])[0])


@pytest.mark.parametrize("cut", range(1, 11))
def test_prefill_may_be_cut_anywhere(hf: nn.Module, cut: int) -> None:
    x, served = rows(11), Served(hf)
    (first,) = served.step([(3, x[:cut], False)])
    (second,) = served.step([(3, x[cut:], True)])
    assert_rows(torch.cat((first, second)), hf(x[None])[0])


def test_decodes_prefills_and_a_continued_prefill_in_one_step(hf: nn.Module) -> None:
    a, b, c, d = rows(9, 1), rows(6, 2), rows(70, 3), rows(5, 4)
    served = Served(hf)
    served.step([(1, a[:8], False), (2, b[:5], False), (5, c[:30], False)])
    out = served.step([(2, b[5:], True), (1, a[8:], True), (5, c[30:], True), (7, d, False)], num_decodes=2)
    for found, whole in zip(out, (b, a, c, d), strict=True):
        assert_rows(found, hf(whole[None])[0][-len(found) :])


def test_a_prompt_of_one_token_among_the_decodes_starts_from_zero(hf: nn.Module) -> None:
    a, b, served = rows(4, 1), rows(1, 2), Served(hf)
    served.step([(1, a[:3], False), (2, rows(5, 9), False)])
    out = served.step([(1, a[3:], True), (2, b, False)], num_decodes=2)
    assert_rows(out[0], hf(a[None])[0][-1:])
    assert_rows(out[1], hf(b[None])[0])


def test_only_the_states_of_the_step_are_written(hf: nn.Module) -> None:
    served = Served(hf)
    served.step([(1, rows(4), False), (2, rows(2), False)])
    before = {name: cache.clone() for name, cache in served.caches.items()}
    served.step([(2, rows(1), True)], num_decodes=1)
    for name, cache in served.caches.items():
        others = [state for state in range(NUM_STATES) if state != 2]
        assert torch.equal(cache[others].nan_to_num(7.0), before[name][others].nan_to_num(7.0)), name
        assert not torch.equal(cache[2], before[name][2])


def test_a_step_without_tokens(hf: nn.Module) -> None:
    assert Served(hf).step([]) == []


def test_ranks_that_share_the_heads_sum_to_the_whole(hf: nn.Module) -> None:
    x = rows(7)
    parts = [Served(hf, rank, 2).step([(1, x, False)])[0] for rank in (0, 1)]
    assert_rows(parts[0] + parts[1], hf(x[None])[0])


def test_heads_that_do_not_divide_are_named() -> None:
    ctx = BuildContext(hardware=ReferenceHardware(), dtype=torch.float32)
    with pytest.raises(ValueError, match="3 v-heads cannot share 2 k-heads"):
        GatedDeltaNet(HIDDEN, 2, 3, K_DIM, V_DIM, KERNEL, 1e-6, ctx=ctx, prefix="linear_attn")
