"""Keys and values cached in fp8: what is stored, what is attended to, where the scales come from, what is refused."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from trunnion import registry
from trunnion.config import BuildContext, ExecutorConfig
from trunnion.contract import BatchCounts, BatchTensors, GroupTensors, Limits
from trunnion.errors import UnsupportedError, WeightsError
from trunnion.interfaces.attention import AttentionSpec, StepInputs
from trunnion.layers.linear import ColumnParallelLinear
from trunnion.layers.mla import MLAAttention
from trunnion.reference import ReferenceHardware
from trunnion.reference.captured import CapturedAttentionGroup
from trunnion.runner.model_executor import ModelExecutor

FP8 = torch.float8_e4m3fn
BLOCK_SIZE, NUM_BLOCKS = 4, 16
K_SCALE, V_SCALE = 0.02, 0.5
SPEC = AttentionSpec(num_qo_heads=4, num_kv_heads=2, head_dim=8, scale=0.3, dtype=torch.float32, cache_dtype=FP8)
LIMITS = Limits(max_num_tokens=16, max_num_seqs=2, max_model_len=32, max_logits_rows=2, block_size=4)
Change = Callable[[dict[str, torch.Tensor]], None]
SPELLINGS = {
    "self_attn": ("self_attn.k_scale", "self_attn.v_scale"),
    "attn": ("self_attn.attn.k_scale", "self_attn.attn.v_scale"),
    "projections": ("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"),
    "compressed-tensors": ("self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale"),
}


def step_of(first: int, last: int, *, full_graph: bool = False) -> StepInputs:
    """One request whose tokens `first` ... `last - 1` come in this step; its blocks are 3, 4, 5, ..."""
    blocks = [3 + index for index in range(6)]
    slots = [blocks[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE for i in range(first, last)]

    def ints(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    group = GroupTensors(slot_mapping=ints(slots), block_table=ints(blocks).view(1, -1), kv_start=ints([0]))
    num_tokens = last - first
    tensors = BatchTensors(
        input_ids=ints([0] * num_tokens),
        positions=ints(list(range(first, last))),
        query_start_loc=ints([0, num_tokens]),
        seq_lens=ints([last]),
        logits_indices=ints([]),
        groups=(group,),
    )
    decodes = 1 if num_tokens == 1 else 0
    counts = BatchCounts(
        num_tokens=num_tokens, num_reqs=1, num_decodes=decodes, max_query_len=num_tokens, max_seq_len=last
    )
    return StepInputs(counts, tensors, tensors, in_full_graph=full_graph)


def truth(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention over keys and values as e4m3 holds them, written without the code under test."""
    k, v = (torch.clamp(x / scale, -448, 448).to(FP8).float() * scale for x, scale in ((k, K_SCALE), (v, V_SCALE)))
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    scores = torch.einsum("nhd,shd->hns", q, k) * SPEC.scale
    scores = scores.masked_fill(torch.ones(len(q), len(k)).triu(1).bool(), -math.inf)
    return torch.einsum("hns,shd->nhd", scores.softmax(-1), v)


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
def test_attention_is_that_over_what_is_stored(in_graph: bool) -> None:
    """Prefill, a chunk, decodes: the same as over the whole history, and values beyond e4m3's range saturate."""
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(13, heads, 8, generator=generator) * 2 for heads in (4, 2, 2))
    k[2, 1, 3], v[5, 0, 1] = 100.0, -400.0
    group = CapturedAttentionGroup(SPEC, 2, torch.device("cpu"))
    tensors = CapturedAttentionGroup.cache_tensors(SPEC, BLOCK_SIZE)
    assert [tensor.bytes_per_block for tensor in tensors] == [BLOCK_SIZE * 2 * 8] * 2
    caches = [{t.name: torch.full((NUM_BLOCKS, *t.shape), math.nan, dtype=FP8) for t in tensors} for _ in range(2)]
    group.bind_kv_cache(0, caches)
    group.set_kv_scales(1, K_SCALE, V_SCALE)
    rows = []
    for first, last in ((0, 5), (5, 11), (11, 12), (12, 13)):
        group.plan(step_of(first, last, full_graph=in_graph and last - first == 1))
        rows.append(group.run(1, q[first:last], k[first:last], v[first:last]))
    torch.testing.assert_close(torch.cat(rows), truth(q, k, v), rtol=1e-5, atol=1e-5)
    assert caches[1]["k_cache"].view(-1, 2, 8)[3 * BLOCK_SIZE + 2, 1, 3].float() == 448
    assert caches[0]["k_cache"].float().isnan().all(), "another layer's cache was written"


@pytest.fixture
def llama(tmp_path: Path) -> Callable[..., Path]:
    """Write a tiny Llama with changed tensors."""
    from transformers import LlamaConfig, LlamaForCausalLM

    def write(change: Change = lambda tensors: None) -> Path:
        torch.manual_seed(5)
        config = LlamaConfig(
            vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=32,
        )  # fmt: skip
        LlamaForCausalLM(config).save_pretrained(tmp_path)
        tensors = load_file(tmp_path / "model.safetensors")
        change(tensors)
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
        return tmp_path

    return write


def scaled(names: tuple[str, str], *, shape: tuple[int, ...] = (), dtype: torch.dtype = torch.float32) -> Change:
    """Add the scales of both layers: 0.25 and 0.5 of keys, 2 and 4 of values."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for layer in range(2):
            for name, scale in zip(names, (0.25, 2.0), strict=True):
                value = torch.full(shape, scale * (1 + layer), dtype=dtype)
                tensors[f"model.layers.{layer}.{name}"] = value

    return change


def create(folder: Path, kv_cache_dtype: str = "fp8_e4m3") -> ModelExecutor:
    config = ExecutorConfig(model=folder, hardware="cpu", limits=LIMITS, kv_cache_dtype=kv_cache_dtype)
    # Not the package of that name: its operators would stay with the process, and other tests ask for the reference's.
    return ModelExecutor.create(config, ReferenceHardware())


@pytest.mark.parametrize("names", SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.parametrize(("shape", "dtype"), [((), torch.float32), ((1,), torch.bfloat16)], ids=["scalar", "one"])
def test_scales_reach_their_layers(
    llama: Callable[..., Path], names: tuple[str, str], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    executor = create(llama(scaled(names, shape=shape, dtype=dtype)))
    (group,) = executor._groups.groups
    assert group.kv_scales == [(0.25, 2.0), (0.5, 4.0)]  # type: ignore[attr-defined]
    assert not executor.weight_report.defaults
    (cache_group,) = executor.kv_cache_spec().groups
    assert {tensor.dtype for tensor in cache_group.tensors} == {FP8}
    assert cache_group.bytes_per_block == 2 * 2 * 4 * 2 * 8


def test_scales_that_are_not_there_are_one_and_said(llama: Callable[..., Path]) -> None:
    executor = create(llama())
    assert executor._groups.groups[0].kv_scales == [(1.0, 1.0)] * 2  # type: ignore[attr-defined]
    (line,) = (line for line in executor.weight_report.lines() if "scalars" in line)
    assert line.startswith("weights: 4 scalars not in the checkpoint, taken as 1.0: model.layers.0.self_attn.attn.k_sc")


def with_cache_scheme(folder: Path) -> Path:
    """As a checkpoint of compressed-tensors whose only quantised part is the cache."""
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
    settings = {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "kv_cache_scheme": scheme,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}, "ignore": ["re:.*"],
    }  # fmt: skip
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    return folder


def test_scales_that_the_config_promises_must_be_there(llama: Callable[..., Path]) -> None:
    executor = create(with_cache_scheme(llama(scaled(SPELLINGS["compressed-tensors"]))))
    assert executor._groups.groups[0].kv_scales == [(0.25, 2.0), (0.5, 4.0)]  # type: ignore[attr-defined]
    create(with_cache_scheme(llama()), "auto")
    with pytest.raises(WeightsError, match=r"kv_cache_scheme.*missing: model\.layers\.0\.self_attn\.attn\.k_scale"):
        create(with_cache_scheme(llama()))


def test_without_an_fp8_cache_scales_are_left_out_and_said(llama: Callable[..., Path]) -> None:
    executor = create(llama(scaled(SPELLINGS["self_attn"])), "auto")
    assert {tensor.dtype for tensor in executor.kv_cache_spec().groups[0].tensors} == {torch.float32}
    (line,) = (line for line in executor.weight_report.lines() if "scales" in line)
    assert line.startswith("weights: 4 tensors ignored (scales of an fp8 cache, and kv_cache_dtype is auto)")


def _drop(tensors: dict[str, torch.Tensor]) -> None:
    scaled(SPELLINGS["self_attn"])(tensors)
    del tensors["model.layers.1.self_attn.v_scale"]


def test_a_scale_that_is_missing_alone_is_named(llama: Callable[..., Path]) -> None:
    executor = create(llama(_drop))
    assert dict(executor.weight_report.defaults) == {"model.layers.1.self_attn.attn.v_scale": 1.0}


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_scale_that_scales_nothing_is_named(llama: Callable[..., Path], value: float) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.1.self_attn.v_scale"] = torch.tensor(value)

    with pytest.raises(WeightsError, match=r"^model\.layers\.1\S*\.v_scale is \S+, expected a positive number$"):
        create(llama(change))


def test_scales_per_head_are_refused(llama: Callable[..., Path]) -> None:
    with pytest.raises(WeightsError, match=r"4 of a wrong shape: .*k_scale \[2\]"):
        create(llama(scaled(SPELLINGS["self_attn"], shape=(2,))))


def test_an_unknown_name_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"^unknown kv_cache_dtype 'fp8_e5m2'; choices: auto, fp8_e4m3$"):
        ExecutorConfig(model=Path("x"), hardware="cpu", limits=LIMITS, kv_cache_dtype="fp8_e5m2")


def test_latents_are_refused_by_name() -> None:
    ctx = BuildContext(hardware=ReferenceHardware(), dtype=torch.float32, kv_cache_dtype=FP8)
    projection = ColumnParallelLinear(16, 2 * 12, bias=False, ctx=ctx, prefix="kv_b_proj")
    with pytest.raises(UnsupportedError, match=r"^attn: latents are cached .* not in float8_e4m3fn; .*choices: auto$"):
        MLAAttention(2, 8, 4, 4, 16, 1.0, kv_b_proj=projection, ctx=ctx, prefix="attn")


def test_specs_of_different_caches_are_different_groups() -> None:
    assert SPEC.stored_dtype is FP8
    assert dataclasses.replace(SPEC, cache_dtype=None).stored_dtype is torch.float32
    assert dataclasses.replace(SPEC, cache_dtype=None) != SPEC


def test_hardware_says_why_it_runs_the_reference() -> None:
    """Every installed package takes the spec, or names what it lacks."""
    for name in registry.hardware_names():
        group_class, reason = registry.hardware(name).group_class(SPEC)
        assert reason is None or reason.strip(), (name, group_class)
