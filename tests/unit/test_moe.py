"""Routing and experts against the modules of several families in transformers, on the same random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import DeepseekV2Config, DeepseekV3Config, GptOssConfig, GraniteMoeConfig, Qwen3NextConfig
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Experts, DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts, GptOssTopKRouter
from transformers.models.granitemoe.modeling_granitemoe import GraniteMoeTopKRouter
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextTopKRouter

from trunnion.config import BuildContext
from trunnion.errors import UnsupportedError
from trunnion.interfaces.collectives import ParallelGroup
from trunnion.interfaces.methods import ClampedSwiGLU
from trunnion.interfaces.quantization import W8A8, BlockFP8, GroupedInt, IntLayout, Scheme
from trunnion.interfaces.weights import placements_of
from trunnion.layers.fused_moe import FusedMoE, Router
from trunnion.ops.moe import experts_by_token
from trunnion.reference import ReferenceHardware
from trunnion.weights.loader import load_weights
from trunnion.weights.name_map import ExpertRule, WeightMap
from trunnion.weights.safetensors_source import SafetensorsSource

EXPERTS, TOP_K, HIDDEN, INTERMEDIATE = 8, 3, 10, 6
SIZES = [0, 1, 7, 63]
EXPERT_OPS = {"reference": lambda *args: torch.ops.trunnion.fused_experts(*args), "by-token": experts_by_token}


def context(rank: int = 0, size: int = 1, dtype: torch.dtype = torch.float32) -> BuildContext:
    return BuildContext(hardware=ReferenceHardware(), dtype=dtype, parallel=ParallelGroup(rank=rank, size=size))


def hf_config(**overrides: object) -> DeepseekV2Config:
    return DeepseekV2Config(
        hidden_size=HIDDEN,
        moe_intermediate_size=INTERMEDIATE,
        n_routed_experts=EXPERTS,
        num_experts_per_tok=TOP_K,
        num_attention_heads=2,
        experts_implementation="eager",
        **overrides,
    )


def random_(module: torch.nn.Module) -> torch.nn.Module:
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module


def block(ctx: BuildContext | None = None, **overrides: object) -> FusedMoE:
    settings = {"renormalize": False, "ctx": ctx or context(), "prefix": "experts", **overrides}
    return FusedMoE(EXPERTS, TOP_K, HIDDEN, INTERMEDIATE, **settings)


def fill(layer: FusedMoE, hf: DeepseekV2Experts | GptOssExperts) -> None:
    """Load one tensor per expert through the declared placements."""
    stored = gpt_oss_parts(hf) if isinstance(hf, GptOssExperts) else plain_parts(hf)
    for param, parameter in layer.named_parameters():
        parameter.data.fill_(float("nan"))
        for part, placement in placements_of(parameter).items():
            expert, name = part.split(".")
            tensor = stored[f"{name}_bias" if param.endswith("_bias") else name][int(expert)]
            assert tuple(tensor.shape) == placement.shape
            parameter.data[placement.target] = tensor[placement.source]


def plain_parts(hf: DeepseekV2Experts) -> dict[str, torch.Tensor]:
    gate, up = hf.gate_up_proj.data.chunk(2, dim=1)
    return {"gate": gate, "up": up, "down": hf.down_proj.data}


def gpt_oss_parts(hf: GptOssExperts) -> dict[str, torch.Tensor]:
    """Stacks lie transposed there, and gate and up take turns."""
    gate_up, bias = hf.gate_up_proj.data.mT, hf.gate_up_proj_bias.data
    return {
        "gate": gate_up[:, 0::2],
        "up": gate_up[:, 1::2],
        "down": hf.down_proj.data.mT,
        "gate_bias": bias[:, 0::2],
        "up_bias": bias[:, 1::2],
        "down_bias": hf.down_proj_bias.data,
    }


def by_id(weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """[T, E] dense weights, whatever order the experts were chosen in."""
    return torch.zeros(len(ids), EXPERTS).scatter(1, ids, weights.float())


@pytest.mark.parametrize("num_tokens", SIZES)
@pytest.mark.parametrize("scaling", [1.0, 2.5])
@pytest.mark.parametrize("method", ["greedy", "group_limited_greedy"])
def test_routing_equals_deepseek(method: str, scaling: float, num_tokens: int) -> None:
    torch.manual_seed(0)
    grouped = method == "group_limited_greedy"
    hf = random_(
        DeepseekV2TopkRouter(hf_config(topk_method=method, n_group=4, topk_group=2, routed_scaling_factor=scaling))
    )
    groups = {"num_expert_group": 4, "topk_group": 2} if grouped else {}
    layer = block(routed_scaling_factor=scaling, **groups)
    router = Router(HIDDEN, EXPERTS, ctx=context(), prefix="gate")
    router.weight.data.copy_(hf.weight)
    x = torch.randn(num_tokens, HIDDEN)
    weights, ids = layer.route(router(x))
    assert weights.dtype == torch.float32 and ids.dtype == torch.int64
    _, hf_weights, hf_ids = hf(x)
    torch.testing.assert_close(by_id(weights, ids), by_id(hf_weights.detach(), hf_ids))


@pytest.mark.parametrize("num_tokens", SIZES)
@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("groups", [(4, 2), (1, 1)], ids=["groups", "one-group"])
def test_routing_equals_deepseek_v3(groups: tuple[int, int], renormalize: bool, num_tokens: int) -> None:
    torch.manual_seed(0)
    config = DeepseekV3Config(
        hidden_size=HIDDEN,
        n_routed_experts=EXPERTS,
        num_experts_per_tok=TOP_K,
        n_group=groups[0],
        topk_group=groups[1],
        norm_topk_prob=renormalize,
        routed_scaling_factor=2.5,
    )
    hf = random_(DeepseekV3TopkRouter(config))
    # Sums of score and bias lie on both sides of 0.
    hf.e_score_correction_bias.copy_(torch.randn(EXPERTS))
    router = Router(HIDDEN, EXPERTS, correction_bias=True, ctx=context(dtype=torch.bfloat16), prefix="gate")
    router.load_state_dict(hf.state_dict())
    hf.weight.data.copy_(router.weight)
    layer = block(renormalize=renormalize, num_expert_group=groups[0], topk_group=groups[1], routed_scaling_factor=2.5)
    x = torch.randn(num_tokens, HIDDEN)
    weights, ids = layer.route(router(x), router.e_score_correction_bias)
    assert weights.dtype == torch.float32 and ids.dtype == torch.int64
    _, hf_weights, hf_ids = hf(x)
    torch.testing.assert_close(by_id(weights, ids), by_id(hf_weights.detach(), hf_ids))


def test_the_bias_for_the_choice_stays_in_float32() -> None:
    router = Router(HIDDEN, EXPERTS, correction_bias=True, ctx=context(dtype=torch.bfloat16), prefix="gate")
    assert router.e_score_correction_bias.dtype == torch.float32 and router.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("renormalize", [True, False])
def test_routing_equals_qwen3_next(renormalize: bool) -> None:
    torch.manual_seed(0)
    config = Qwen3NextConfig(
        hidden_size=HIDDEN, num_experts=EXPERTS, num_experts_per_tok=TOP_K, norm_topk_prob=renormalize
    )
    hf = random_(Qwen3NextTopKRouter(config))
    x = torch.randn(7, HIDDEN)
    _, hf_weights, hf_ids = hf(x)
    weights, ids = block(renormalize=renormalize).route(x @ hf.weight.T)
    torch.testing.assert_close(by_id(weights, ids), by_id(hf_weights.detach(), hf_ids))


ROUTERS_BY_CHOSEN_LOGITS = {
    "granitemoe": (GraniteMoeConfig, GraniteMoeTopKRouter, False),
    "gpt_oss": (GptOssConfig, GptOssTopKRouter, True),
}


@pytest.mark.parametrize(("config", "router", "bias"), ROUTERS_BY_CHOSEN_LOGITS.values(), ids=ROUTERS_BY_CHOSEN_LOGITS)
def test_a_softmax_over_chosen_logits_is_one_over_all_renormalised(
    config: type, router: Callable[..., torch.nn.Module], bias: bool
) -> None:
    torch.manual_seed(0)
    hf = random_(router(config(hidden_size=HIDDEN, num_local_experts=EXPERTS, num_experts_per_tok=TOP_K)))
    own = Router(HIDDEN, EXPERTS, bias=bias, ctx=context(), prefix="router")
    own.load_state_dict(hf.state_dict())
    x = torch.randn(7, HIDDEN)
    _, hf_weights, hf_ids = hf(x)
    weights, ids = block(renormalize=True).route(own(x))
    torch.testing.assert_close(by_id(weights, ids), by_id(hf_weights.detach(), hf_ids))


@pytest.mark.parametrize("num_tokens", SIZES)
@pytest.mark.parametrize("op", EXPERT_OPS.values(), ids=EXPERT_OPS)
def test_experts_equal_transformers(op: Callable[..., torch.Tensor], num_tokens: int) -> None:
    torch.manual_seed(0)
    hf = random_(DeepseekV2Experts(hf_config()))
    layer = block()
    fill(layer, hf)
    x = torch.randn(num_tokens, HIDDEN)
    # Experts 0 and 5 get no token.
    scores = torch.rand(num_tokens, EXPERTS)
    scores[:, [0, 5]] = -1
    ids = scores.topk(TOP_K).indices
    weights = torch.rand(num_tokens, TOP_K)
    out = op(x, layer.w13, layer.w2, weights, ids)
    with torch.no_grad():
        torch.testing.assert_close(out, hf(x, ids, weights), rtol=1e-5, atol=1e-4)


GPT_OSS = ClampedSwiGLU(alpha=1.3, limit=2.0)


def gpt_oss_experts() -> GptOssExperts:
    config = GptOssConfig(
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_local_experts=EXPERTS,
        num_experts_per_tok=TOP_K,
        swiglu_alpha=GPT_OSS.alpha,
        swiglu_limit=GPT_OSS.limit,
        experts_implementation="eager",
    )
    return random_(GptOssExperts(config))


@pytest.mark.parametrize("num_tokens", SIZES)
@pytest.mark.parametrize("op", EXPERT_OPS.values(), ids=EXPERT_OPS)
def test_experts_with_biases_and_clamps_equal_transformers(op: Callable[..., torch.Tensor], num_tokens: int) -> None:
    """Gates and ups lie on both sides of their limits: random ones have a deviation of 3."""
    torch.manual_seed(0)
    hf, layer = gpt_oss_experts(), block(bias=True, swiglu=GPT_OSS)
    fill(layer, hf)
    x = torch.randn(num_tokens, HIDDEN)
    ids = torch.rand(num_tokens, EXPERTS).topk(TOP_K).indices
    weights = torch.rand(num_tokens, TOP_K)
    out = op(x, layer.w13, layer.w2, weights, ids, layer.w13_bias, layer.w2_bias, GPT_OSS.alpha, GPT_OSS.limit)
    with torch.no_grad():
        torch.testing.assert_close(out, hf(x, ids, weights), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("op", EXPERT_OPS.values(), ids=EXPERT_OPS)
@pytest.mark.parametrize("changed", ["w13_bias", "w2_bias", "swiglu"])
def test_biases_and_clamps_are_each_of_their_own(changed: str, op: Callable[..., torch.Tensor]) -> None:
    """Any of them may come without the others."""
    torch.manual_seed(0)
    w13, w2, x = torch.randn(2, 4, 3), torch.randn(2, 3, 2), torch.randn(5, 3)
    ids, weights = torch.tensor([[0], [1], [0], [1], [1]]), torch.rand(5, 1)
    w13_bias, w2_bias = torch.randn(2, 4), torch.randn(2, 3)
    more = {
        "w13_bias": (w13_bias, None),
        "w2_bias": (None, w2_bias),
        "swiglu": (None, None, GPT_OSS.alpha, GPT_OSS.limit),
    }
    rows = []
    for row, (expert,) in zip(x, ids.tolist(), strict=True):
        gate_up = w13[expert] @ row + (w13_bias[expert] if changed == "w13_bias" else 0)
        gate, up = gate_up.chunk(2)
        inner = torch.nn.functional.silu(gate) * up
        if changed == "swiglu":
            gate, up = gate.clamp(max=GPT_OSS.limit), up.clamp(-GPT_OSS.limit, GPT_OSS.limit)
            inner = (up + 1) * gate * torch.sigmoid(GPT_OSS.alpha * gate)
        rows.append(w2[expert] @ inner + (w2_bias[expert] if changed == "w2_bias" else 0))
    out = op(x, w13, w2, weights, ids, *more[changed])
    torch.testing.assert_close(out, torch.stack(rows) * weights, rtol=1e-5, atol=1e-5)


def test_ranks_that_share_experts_with_biases_sum_to_the_whole() -> None:
    """The bias behind the last product is added once."""
    torch.manual_seed(0)
    hf, x, logits = gpt_oss_experts(), torch.randn(5, HIDDEN), torch.randn(5, EXPERTS)

    def run(rank: int, size: int) -> torch.Tensor:
        layer = block(context(rank, size), bias=True, swiglu=GPT_OSS)
        fill(layer, hf)
        return layer(x, logits)

    torch.testing.assert_close(run(0, 2) + run(1, 2), run(0, 1), rtol=1e-5, atol=1e-4)


QUANTISED: dict[str, Scheme] = {
    "fp8-blocks": BlockFP8(),
    "int8": W8A8(dtype=torch.int8),
    "gptq": GroupedInt(bits=4, group_size=None, has_zero_points=True, layout=IntLayout.GPTQ),
}


@pytest.mark.parametrize("scheme", QUANTISED.values(), ids=QUANTISED)
@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"bias": True}, "layer.experts: experts with biases and"),
        ({"swiglu": GPT_OSS}, r"experts: ClampedSwiGLU"),
    ],
    ids=["biases", "activation"],
)
def test_quantised_experts_refuse_what_they_would_leave_out(
    settings: dict[str, object], text: str, scheme: Scheme
) -> None:
    class Quantised:
        def scheme(self, prefix: str) -> Scheme:
            return scheme

        def embedding_scheme(self, prefix: str) -> None:
            return None

    ctx = BuildContext(hardware=ReferenceHardware(), dtype=torch.float32, quantization=Quantised())
    with pytest.raises(UnsupportedError, match=text):
        FusedMoE(4, 2, 64, 64, renormalize=True, ctx=ctx, prefix="layer.experts", **settings)


@pytest.mark.parametrize("op", EXPERT_OPS.values(), ids=EXPERT_OPS)
def test_an_expert_that_overflows_reaches_only_its_own_tokens(op: Callable[..., torch.Tensor]) -> None:
    w13, w2 = torch.ones(2, 4, 3), torch.ones(2, 3, 2)
    w13[1] = float("inf")
    x = torch.ones(2, 3)
    out = op(x, w13, w2, torch.ones(2, 1), torch.tensor([[0], [1]]))
    assert out[0].isfinite().all() and not out[1].isfinite().any()


@pytest.mark.parametrize("op", EXPERT_OPS.values(), ids=EXPERT_OPS)
def test_a_padding_row_of_nan_reaches_no_other_row(op: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(0)
    w13, w2 = torch.randn(4, 6, 5), torch.randn(4, 5, 3)
    x, ids, weights = torch.randn(3, 5), torch.tensor([[0, 1], [1, 2], [1, 0]]), torch.rand(3, 2)
    alone = op(x[:2], w13, w2, weights[:2], ids[:2])
    x[2] = float("nan")
    torch.testing.assert_close(op(x, w13, w2, weights, ids)[:2], alone)


def test_ranks_that_share_the_experts_sum_to_the_whole() -> None:
    torch.manual_seed(0)
    hf = random_(DeepseekV2Experts(hf_config()))
    x, logits = torch.randn(5, HIDDEN), torch.randn(5, EXPERTS)

    def run(rank: int, size: int) -> torch.Tensor:
        layer = block(context(rank, size))
        fill(layer, hf)
        return layer(x, logits)

    torch.testing.assert_close(run(0, 2) + run(1, 2), run(0, 1), rtol=1e-5, atol=1e-4)


def stored_experts(hf: DeepseekV2Experts, layout: str) -> dict[str, torch.Tensor]:
    gate_up, down = hf.gate_up_proj.data, hf.down_proj.data
    if layout == "stacked":
        return {"mlp.experts.gate_up_proj": gate_up, "mlp.experts.down_proj": down}
    if layout == "stacked-transposed":
        return {"mlp.experts.gate_up_proj": gate_up.mT, "mlp.experts.down_proj": down.mT}
    gate, up = gate_up.chunk(2, dim=1)
    parts = {"gate_proj": gate, "up_proj": up, "down_proj": down}
    return {f"mlp.experts.{e}.{name}.weight": parts[name][e] for name in parts for e in range(EXPERTS)}


@pytest.mark.parametrize(("rank", "size"), [(0, 1), (0, 2), (1, 2)])
@pytest.mark.parametrize("layout", ["per-expert", "stacked", "stacked-transposed"])
def test_every_stored_layout_fills_a_rank_alike(layout: str, rank: int, size: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    hf = random_(DeepseekV2Experts(hf_config()))
    tensors = {name: tensor.contiguous() for name, tensor in stored_experts(hf, layout).items()}
    save_file(tensors, tmp_path / "model.safetensors")
    with torch.device("meta"):
        model = torch.nn.ModuleDict({"mlp": torch.nn.ModuleDict({"experts": block(context(rank, size))})})
    weight_map = WeightMap(prefixes=(), tied={}, experts=(ExpertRule(block="mlp.experts"),))
    device = torch.device("cpu")
    load_weights(model, SafetensorsSource(tmp_path), weight_map, dtype=torch.float32, device=device)
    expected = block(context(rank, size))
    fill(expected, hf)
    for name, parameter in expected.named_parameters():
        assert torch.equal(model["mlp"]["experts"].get_parameter(name), parameter), name


def test_bfloat16_stays_within_its_rounding() -> None:
    torch.manual_seed(0)
    hf = random_(DeepseekV2Experts(hf_config()))
    exact, rounded = block(), block(context(dtype=torch.bfloat16))
    fill(exact, hf)
    fill(rounded, hf)
    x, logits = torch.randn(7, HIDDEN), torch.randn(7, EXPERTS)
    out = rounded(x.bfloat16(), logits)
    truth = exact(x, logits)
    assert out.dtype == torch.bfloat16
    assert (out.float() - truth).abs().max() < 0.03 * truth.abs().max()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"num_expert_group": 3, "topk_group": 1}, "8 experts cannot be divided into 3 groups"),
        ({"num_expert_group": 4}, "belong together"),
        ({"num_expert_group": 8, "topk_group": 2}, "top_k 3 needs more than 2 of 8 groups"),
        ({"ctx": context(0, 4)}, "intermediate_size 6 cannot be divided over 4 ranks"),
    ],
    ids=["groups", "one-of-two", "too-few-groups", "ranks"],
)
def test_impossible_settings_are_named(settings: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        block(**settings)


def test_shapes_are_known_without_data() -> None:
    with torch.device("meta"):
        layer = block()
        x, logits = torch.empty(4, HIDDEN), torch.empty(4, EXPERTS)
    out = layer(x, logits)
    assert out.is_meta and out.shape == (4, HIDDEN)
