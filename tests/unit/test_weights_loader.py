"""The account of a load: every parameter filled once, from the right place; every tensor used or ignored by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from trunnion.config import BuildContext
from trunnion.errors import TrunnionError, UnsupportedError, WeightsError
from trunnion.interfaces.collectives import ParallelGroup
from trunnion.interfaces.weights import Placement, set_placements
from trunnion.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from trunnion.layers.vocab_embedding import ParallelLMHead, VocabParallelEmbedding
from trunnion.reference.hardware import ReferenceHardware
from trunnion.weights.loader import load_weights
from trunnion.weights.name_map import COMMON_IGNORE, ExpertRule, WeightMap
from trunnion.weights.report import WeightReport
from trunnion.weights.safetensors_source import SafetensorsSource

Tensors = dict[str, torch.Tensor]

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCAB = 16, 4, 2, 8, 12, 131
"""HEAD_DIM is not HIDDEN / HEADS, and VOCAB is not a multiple of anything."""

WEIGHT_MAP = WeightMap(
    fuse={
        "qkv_proj": {"q": "q_proj", "k": "k_proj", "v": "v_proj"},
        "gate_up_proj": {"gate": "gate_proj", "up": "up_proj"},
    },
    ignore=(*COMMON_IGNORE, (r"^vision_tower", "images are not run")),
)
CPU = torch.device("cpu")


class Layer(nn.Module):
    def __init__(self, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        self.qkv_proj = QKVParallelLinear(
            HIDDEN, HEAD_DIM, HEADS, KV_HEADS, bias=True, ctx=ctx, prefix=f"{prefix}.qkv_proj"
        )
        self.o_proj = RowParallelLinear(HEADS * HEAD_DIM, HIDDEN, ctx=ctx, prefix=f"{prefix}.o_proj")
        self.gate_up_proj = MergedColumnParallelLinear(
            HIDDEN, [INTERMEDIATE] * 2, ctx=ctx, prefix=f"{prefix}.gate_up_proj"
        )


class Decoder(nn.Module):
    def __init__(self, ctx: BuildContext) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(VOCAB, HIDDEN, ctx=ctx, prefix="model.embed_tokens")
        self.layers = nn.ModuleList([Layer(ctx, f"model.layers.{index}") for index in range(2)])


class TinyForCausalLM(nn.Module):
    def __init__(self, ctx: BuildContext, tied: bool) -> None:
        super().__init__()
        self.model = Decoder(ctx)
        self.lm_head = ParallelLMHead(VOCAB, HIDDEN, ctx=ctx, prefix="lm_head")
        if tied:
            self.lm_head.tie_to(self.model.embed_tokens)


def build(*, tied: bool = False, dtype: torch.dtype = torch.float32, rank: int = 0, size: int = 1) -> TinyForCausalLM:
    ctx = BuildContext(hardware=ReferenceHardware(), dtype=dtype, parallel=ParallelGroup(rank=rank, size=size))
    with torch.device("meta"):
        return TinyForCausalLM(ctx, tied)


def checkpoint() -> Tensors:
    """Every element of the checkpoint is a number of its own."""
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}
    for index in range(2):
        layer = f"model.layers.{index}"
        for name, rows in (("q", HEADS * HEAD_DIM), ("k", KV_HEADS * HEAD_DIM), ("v", KV_HEADS * HEAD_DIM)):
            shapes[f"{layer}.{name}_proj.weight"] = (rows, HIDDEN)
            shapes[f"{layer}.{name}_proj.bias"] = (rows,)
        shapes[f"{layer}.o_proj.weight"] = (HIDDEN, HEADS * HEAD_DIM)
        shapes[f"{layer}.gate_proj.weight"] = (INTERMEDIATE, HIDDEN)
        shapes[f"{layer}.up_proj.weight"] = (INTERMEDIATE, HIDDEN)
    tensors, start = {}, 1
    for name, shape in shapes.items():
        count = torch.Size(shape).numel()
        tensors[name] = torch.arange(start, start + count, dtype=torch.float32).reshape(shape)
        start += count
    return tensors


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Callable[..., WeightReport]]:
    def run(model: nn.Module, tensors: Tensors, weight_map: WeightMap = WEIGHT_MAP, **kwargs: Any) -> WeightReport:
        save_file(
            {name: tensor.clone().contiguous() for name, tensor in tensors.items()}, tmp_path / "model.safetensors"
        )
        dtype = next(model.parameters()).dtype
        return load_weights(model, SafetensorsSource(tmp_path), weight_map, dtype=dtype, device=CPU, **kwargs)

    yield run


Load = Callable[..., WeightReport]


def test_every_part_lies_where_it_belongs(load: Load) -> None:
    tensors, model = checkpoint(), build()
    report = load(model, tensors)
    layer = model.model.layers[1]
    for leaf in ("weight", "bias"):
        expected = torch.cat([tensors[f"model.layers.1.{part}_proj.{leaf}"] for part in "qkv"])
        assert torch.equal(getattr(layer.qkv_proj, leaf), expected)
    gate_up = torch.cat([tensors[f"model.layers.1.{part}_proj.weight"] for part in ("gate", "up")])
    assert torch.equal(layer.gate_up_proj.weight, gate_up)
    assert torch.equal(layer.o_proj.weight, tensors["model.layers.1.o_proj.weight"])
    assert report.num_used == len(tensors)
    assert not report.ignored
    assert report.bytes_loaded == sum(parameter.nbytes for parameter in model.parameters())


def test_rows_beyond_the_vocabulary_are_zero(load: Load) -> None:
    tensors, model = checkpoint(), build()
    load(model, tensors)
    for weight, name in ((model.lm_head.weight, "lm_head"), (model.model.embed_tokens.weight, "model.embed_tokens")):
        assert torch.equal(weight[:VOCAB], tensors[f"{name}.weight"])
        assert weight.shape[0] > VOCAB
        assert not weight[VOCAB:].any()


def test_each_rank_loads_its_own_shard(load: Load) -> None:
    tensors = checkpoint()
    ranks = [build(rank=rank, size=2) for rank in range(2)]
    for model in ranks:
        load(model, tensors)
    for rank, model in enumerate(ranks):
        layer = model.model.layers[0]
        parts = layer.qkv_proj.weight.split([layer.qkv_proj.q_size, layer.qkv_proj.kv_size, layer.qkv_proj.kv_size])
        for part, got in zip("qkv", parts, strict=True):
            assert torch.equal(got, tensors[f"model.layers.0.{part}_proj.weight"].chunk(2)[rank]), (rank, part)
        assert torch.equal(layer.o_proj.weight, tensors["model.layers.0.o_proj.weight"].chunk(2, dim=1)[rank])
        up = layer.gate_up_proj.weight[INTERMEDIATE // 2 :]
        assert torch.equal(up, tensors["model.layers.0.up_proj.weight"].chunk(2)[rank])
    rows = torch.cat([model.model.embed_tokens.weight for model in ranks])
    assert torch.equal(rows[:VOCAB], tensors["model.embed_tokens.weight"])


@pytest.mark.parametrize("lost", ["model.layers.1.k_proj.weight", "model.layers.0.q_proj.bias", "lm_head.weight"])
def test_a_missing_tensor_is_named(load: Load, lost: str) -> None:
    tensors, model = checkpoint(), build()
    del tensors[lost]
    with pytest.raises(WeightsError, match=f"1 missing: {lost}$"):
        load(model, tensors)
    assert all(parameter.is_meta for parameter in model.parameters()), (
        "nothing is allocated before the account is right"
    )


def test_a_renamed_tensor_is_both_missing_and_unexpected(load: Load) -> None:
    tensors = checkpoint()
    tensors["model.layers.0.out_proj.weight"] = tensors.pop("model.layers.0.o_proj.weight")
    with pytest.raises(WeightsError) as caught:
        load(build(), tensors)
    assert "1 unexpected: model.layers.0.out_proj.weight" in str(caught.value)
    assert "1 missing: model.layers.0.o_proj.weight" in str(caught.value)


def test_a_bias_that_the_model_does_not_have_is_unexpected(load: Load) -> None:
    tensors = checkpoint()
    tensors["model.layers.0.o_proj.bias"] = torch.zeros(HIDDEN)
    with pytest.raises(WeightsError, match=r"1 unexpected: model\.layers\.0\.o_proj\.bias"):
        load(build(), tensors)


def test_layers_beyond_the_models_are_unexpected(load: Load) -> None:
    tensors = checkpoint()
    tensors |= {name.replace("layers.1", "layers.2"): tensor for name, tensor in tensors.items() if "layers.1" in name}
    with pytest.raises(WeightsError, match=r"9 unexpected: model\.layers\.2"):
        load(build(), tensors)


def test_long_lists_are_cut_and_counted(load: Load) -> None:
    with pytest.raises(WeightsError, match=r"20 missing: .* and 10 more$") as caught:
        load(build(), {})
    assert "\n" not in str(caught.value)


def test_two_tensors_for_one_place_are_named(load: Load) -> None:
    tensors = checkpoint()
    tensors["model.language_model.layers.0.o_proj.weight"] = tensors["model.layers.0.o_proj.weight"]
    with pytest.raises(WeightsError) as caught:
        load(build(), tensors)
    assert "1 duplicated: model.layers.0.o_proj.weight" in str(caught.value)
    assert "fills the same place as model.language_model.layers.0.o_proj.weight" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        # What a loader that takes head_dim = hidden / heads would accept.
        ("model.layers.0.q_proj.weight", (HIDDEN, HIDDEN)),
        ("model.layers.0.o_proj.weight", (HEADS * HEAD_DIM, HIDDEN)),
        ("model.layers.1.k_proj.bias", (1,)),
        ("model.embed_tokens.weight", (VOCAB - 1, HIDDEN)),
        ("lm_head.weight", (VOCAB + 1, HIDDEN)),
        ("model.layers.0.up_proj.weight", ()),
    ],
)
def test_a_wrong_shape_is_named_with_both_shapes(load: Load, name: str, shape: tuple[int, ...]) -> None:
    tensors = checkpoint()
    wanted = list(tensors[name].shape)
    tensors[name] = torch.zeros(shape)
    with pytest.raises(WeightsError) as caught:
        load(build(), tensors)
    assert f"{name} {list(shape)} (the model wants {wanted})" in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn, torch.int32])
def test_a_quantised_tensor_under_a_plain_name_is_named(load: Load, dtype: torch.dtype) -> None:
    tensors = checkpoint()
    tensors["model.layers.0.up_proj.weight"] = torch.zeros(INTERMEDIATE, HIDDEN, dtype=dtype)
    with pytest.raises(WeightsError, match=r"model\.layers\.0\.up_proj\.weight \(.*quantised"):
        load(build(), tensors)


def test_what_is_ignored_is_reported_with_its_reason(load: Load) -> None:
    tensors = checkpoint()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4, dtype=torch.bfloat16)
    tensors["vision_tower.patch_embed.weight"] = torch.ones(4)
    report = load(build(), tensors)
    assert report.ignored == {
        "computed from the config's rope": ("model.layers.0.self_attn.rotary_emb.inv_freq",),
        "images are not run": ("vision_tower.patch_embed.weight",),
    }
    assert any("images are not run" in line for line in report.lines())


def test_adapter_leftovers_are_refused(load: Load) -> None:
    tensors = checkpoint() | {"model.layers.0.q_proj.lora_A.weight": torch.zeros(2, HIDDEN)}
    with pytest.raises(UnsupportedError, match=r"model\.layers\.0\.q_proj\.lora_A\.weight.*merge"):
        load(build(), tensors)


def test_a_tied_head_needs_no_tensor_and_shares_the_embedding(load: Load) -> None:
    tensors, model = checkpoint(), build(tied=True)
    del tensors["lm_head.weight"]
    report = load(model, tensors)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(model.lm_head.weight[:VOCAB], tensors["model.embed_tokens.weight"])
    assert not report.tied


@pytest.mark.parametrize("rank", [0, 1])
def test_a_tied_head_may_repeat_the_embedding(load: Load, rank: int) -> None:
    tensors = checkpoint()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    report = load(build(tied=True, rank=rank, size=2), tensors)
    assert report.tied == ("lm_head.weight",)


@pytest.mark.parametrize("change", [1.0, float("nan")])
def test_a_tied_head_that_differs_is_named_with_the_embedding(load: Load, change: float) -> None:
    tensors = checkpoint()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["lm_head.weight"][VOCAB - 1, HIDDEN - 1] += change
    with pytest.raises(WeightsError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        load(build(tied=True), tensors)


def test_tensors_are_converted_and_the_conversion_is_reported(load: Load) -> None:
    tensors, model = checkpoint(), build(dtype=torch.bfloat16)
    tensors["model.layers.0.o_proj.weight"] = tensors["model.layers.0.o_proj.weight"].bfloat16()
    report = load(model, tensors)
    assert report.conversions == {("F32", "bfloat16"): len(tensors) - 1, ("BF16", "bfloat16"): 1}
    assert any("stored as F32, loaded as bfloat16" in line for line in report.lines())
    expected = tensors["model.layers.1.o_proj.weight"].bfloat16()
    assert torch.equal(model.model.layers[1].o_proj.weight, expected)


def test_values_beyond_float16_are_named(load: Load) -> None:
    tensors = checkpoint()
    tensors["model.layers.0.o_proj.weight"][0, 0] = 1e6
    with pytest.raises(WeightsError, match=r"model\.layers\.0\.o_proj\.weight.*float16"):
        load(build(dtype=torch.float16), tensors)


def test_layers_are_finalized_once_all_parameters_are_there(load: Load) -> None:
    model = build()
    seen: list[bool] = []
    layer: Any = model.model.layers[0]
    layer.finalize = lambda: seen.append(any(parameter.is_meta for parameter in model.parameters()))
    load(model, checkpoint())
    assert seen == [False]


def test_a_buffer_that_was_never_computed_is_a_fault(load: Load) -> None:
    model = build()
    model.register_buffer("table", torch.empty(3, device="meta"))
    with pytest.raises(AssertionError, match="buffer table of TinyForCausalLM"):
        load(model, checkpoint())


def test_a_progress_bar_goes_to_stderr(load: Load, capsys: pytest.CaptureFixture[str]) -> None:
    load(build(), checkpoint(), progress=True)
    shown = capsys.readouterr()
    assert "weights" in shown.err
    assert not shown.out
    load(build(), checkpoint())
    assert not capsys.readouterr().err


CUT_MAP = WeightMap(cut={"qkv_proj": ("q", "k", "v"), "gate_up_proj": ("gate", "up")})


def fused_checkpoint() -> Tensors:
    """The same, with q, k and v, and gate and up, stored as one."""
    tensors = checkpoint()
    for index in range(2):
        layer = f"model.layers.{index}"
        for fused, parts, leaves in (
            ("qkv_proj", ("q_proj", "k_proj", "v_proj"), ("weight", "bias")),
            ("gate_up_proj", ("gate_proj", "up_proj"), ("weight",)),
        ):
            for leaf in leaves:
                tensors[f"{layer}.{fused}.{leaf}"] = torch.cat(
                    [tensors.pop(f"{layer}.{part}.{leaf}") for part in parts]
                )
    return tensors


@pytest.mark.parametrize("size", [1, 2, 4])
def test_each_rank_takes_its_share_of_each_part_of_a_fused_tensor(load: Load, size: int) -> None:
    for rank in range(size):
        separate, fused = build(rank=rank, size=size), build(rank=rank, size=size)
        load(separate, checkpoint())
        report = load(fused, fused_checkpoint(), CUT_MAP)
        for (name, expected), got in zip(separate.named_parameters(), fused.parameters(), strict=True):
            assert torch.equal(got, expected), (rank, name)
        assert report.num_used == len(fused_checkpoint())


def test_a_missing_fused_tensor_is_named_once(load: Load) -> None:
    tensors = fused_checkpoint()
    del tensors["model.layers.1.qkv_proj.weight"]
    with pytest.raises(WeightsError, match=r"1 missing: model\.layers\.1\.qkv_proj\.weight$"):
        load(build(), tensors, CUT_MAP)


def test_a_fused_tensor_of_a_wrong_shape_is_named_with_both(load: Load) -> None:
    tensors = fused_checkpoint()
    # As many rows as query heads alone would have.
    tensors["model.layers.0.qkv_proj.weight"] = torch.zeros(3 * HEADS * HEAD_DIM, HIDDEN)
    with pytest.raises(WeightsError, match=r"qkv_proj\.weight \[96, 16\] \(the model wants \[64, 16\]\)"):
        load(build(), tensors, CUT_MAP)


def test_parts_beside_the_fused_tensor_are_unexpected(load: Load) -> None:
    tensors = fused_checkpoint() | {"model.layers.0.q_proj.weight": torch.zeros(HEADS * HEAD_DIM, HIDDEN)}
    with pytest.raises(WeightsError, match=r"1 unexpected: model\.layers\.0\.q_proj\.weight$"):
        load(build(), tensors, CUT_MAP)


EXPERTS, ROWS, COLUMNS = 3, 4, 6
EXPERT_MAP = WeightMap(experts=(ExpertRule(),))


class Experts(nn.Module):
    def __init__(self, rows: int = ROWS, columns: int = COLUMNS) -> None:
        super().__init__()
        self.w13 = nn.Parameter(torch.empty(EXPERTS, 2 * rows, columns), requires_grad=False)
        self.w2 = nn.Parameter(torch.empty(EXPERTS, columns, rows), requires_grad=False)
        halves = {"gate": slice(0, rows), "up": slice(rows, 2 * rows)}
        w13 = {
            f"{expert}.{part}": Placement(shape=(rows, columns), target=(expert, half))
            for expert in range(EXPERTS)
            for part, half in halves.items()
        }
        set_placements(self.w13, w13)
        w2 = {f"{expert}.down": Placement(shape=(columns, rows), target=(expert,)) for expert in range(EXPERTS)}
        set_placements(self.w2, w2)


class Sparse(nn.Module):
    def __init__(self, rows: int = ROWS, columns: int = COLUMNS) -> None:
        super().__init__()
        self.mlp = nn.Module()
        self.mlp.experts = Experts(rows, columns)


def sparse(rows: int = ROWS, columns: int = COLUMNS) -> Sparse:
    with torch.device("meta"):
        return Sparse(rows, columns)


def stacks(rows: int = ROWS, columns: int = COLUMNS) -> tuple[torch.Tensor, torch.Tensor]:
    w13 = torch.arange(EXPERTS * 2 * rows * columns, dtype=torch.float32).reshape(EXPERTS, 2 * rows, columns)
    w2 = -torch.arange(EXPERTS * rows * columns, dtype=torch.float32).reshape(EXPERTS, columns, rows)
    return w13, w2


def per_expert() -> Tensors:
    w13, w2 = stacks()
    tensors: Tensors = {}
    for expert in range(EXPERTS):
        name = f"mlp.experts.{expert}"
        tensors[f"{name}.gate_proj.weight"], tensors[f"{name}.up_proj.weight"] = w13[expert].chunk(2)
        tensors[f"{name}.down_proj.weight"] = w2[expert]
    return tensors


def stacked(transposed: bool) -> Tensors:
    w13, w2 = stacks()
    tensors = {"mlp.experts.gate_up_proj": w13, "mlp.experts.down_proj": w2}
    return {name: tensor.transpose(1, 2) if transposed else tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("tensors", [per_expert(), stacked(False), stacked(True)], ids=["each", "stack", "transposed"])
def test_experts_load_from_every_layout(load: Load, tensors: Tensors) -> None:
    model = sparse()
    load(model, tensors, EXPERT_MAP)
    w13, w2 = stacks()
    assert torch.equal(model.mlp.experts.w13, w13)
    assert torch.equal(model.mlp.experts.w2, w2)


def test_a_missing_expert_is_named(load: Load) -> None:
    tensors = per_expert()
    del tensors["mlp.experts.1.up_proj.weight"]
    with pytest.raises(WeightsError, match=r"1 missing: mlp\.experts\.1\.up_proj\.weight$"):
        load(sparse(), tensors, EXPERT_MAP)


def test_a_stack_that_may_be_transposed_is_refused(load: Load) -> None:
    w13, w2 = stacks(5, 5)
    with pytest.raises(WeightsError, match=r"ambiguous layout: mlp\.experts\.down_proj"):
        load(sparse(5, 5), {"mlp.experts.gate_up_proj": w13, "mlp.experts.down_proj": w2}, EXPERT_MAP)


def test_a_stack_of_too_few_experts_is_named(load: Load) -> None:
    tensors = stacked(False)
    tensors["mlp.experts.gate_up_proj"] = tensors["mlp.experts.gate_up_proj"][:2]
    with pytest.raises(WeightsError, match=r"mlp\.experts\.gate_up_proj \[2, 8, 6\] \(the model wants \[3, 8, 6\]"):
        load(sparse(), tensors, EXPERT_MAP)


def test_stacks_beside_single_experts_are_duplicates(load: Load) -> None:
    with pytest.raises(TrunnionError, match="duplicated"):
        load(sparse(), per_expert() | stacked(False), EXPERT_MAP)


SHARED_MODULES = ("model.embed_tokens", "lm_head")


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("stored", [True, False], ids=["stored again", "not stored"])
def test_modules_of_another_model_are_left_alone(load: Load, tied: bool, stored: bool) -> None:
    """A draft loads what is its own; what is its target's keeps its memory, whatever the draft's files say of it."""
    tensors, target, draft = checkpoint(), build(tied=tied), build(tied=tied)
    if tied:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    load(target, tensors)
    before = {name: parameter.clone() for name, parameter in target.named_parameters()}
    draft.model.embed_tokens, draft.lm_head = target.model.embed_tokens, target.lm_head
    own = {name: tensor + 1 for name, tensor in tensors.items() if stored or "layers" in name}
    report = load(draft, own, shared_modules=SHARED_MODULES)
    for name, parameter in target.named_parameters():
        assert torch.equal(parameter, before[name])
    assert draft.lm_head.weight is target.lm_head.weight
    assert torch.equal(draft.model.layers[1].o_proj.weight, own["model.layers.1.o_proj.weight"])
    names = ("model.embed_tokens.weight",) if tied else ("model.embed_tokens.weight", "lm_head.weight")
    assert report.shared == names
    assert report.num_parameters == len(list(draft.parameters())) - len(names)
    layers = [parameter for name, parameter in draft.named_parameters() if "layers" in name]
    assert report.bytes_loaded == sum(parameter.nbytes for parameter in layers)
    shared = set(own) & {"model.embed_tokens.weight", "lm_head.weight"}
    assert set(report.ignored.get("shared with the target", ())) == shared
