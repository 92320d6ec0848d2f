"""Latent attention, absorbed and paged, against DeepSeek-V2's expanded attention in transformers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from transformers import DeepseekV2Config
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Attention, DeepseekV2RotaryEmbedding

import trunnion.reference.mla as reference_mla
from trunnion.config import BuildContext
from trunnion.contract import BatchCounts, BatchTensors, GroupTensors
from trunnion.interfaces.attention import StepInputs
from trunnion.interfaces.collectives import ParallelGroup
from trunnion.interfaces.weights import placements_of
from trunnion.layers.linear import ColumnParallelLinear
from trunnion.layers.mla import MLAAttention
from trunnion.reference import ReferenceHardware
from trunnion.reference.mla import ReferenceMLAGroup
from trunnion.rope import cos_sin_table, read_rope, yarn_softmax_scale_multiplier

HIDDEN, HEADS, NOPE, ROPE, V_DIM, RANK = 24, 4, 6, 8, 5, 10
BLOCK_SIZE, NUM_BLOCKS, PAD_TOKENS = 4, 32, 3
RAW = {
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "kv_lora_rank": RANK,
    "q_lora_rank": None,
    "qk_nope_head_dim": NOPE,
    "qk_rope_head_dim": ROPE,
    "v_head_dim": V_DIM,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 0.7, "mscale_all_dim": 0.7}


def build_hf(**overrides: object) -> DeepseekV2Attention:
    torch.manual_seed(0)
    module = DeepseekV2Attention(DeepseekV2Config(**{**RAW, **overrides}, attn_implementation="eager"), 0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return module.requires_grad_(False)


def whole(hf: DeepseekV2Attention, x: torch.Tensor) -> torch.Tensor:
    """What transformers gives for all rows of one request, before the output projection."""
    positions = torch.arange(len(x))[None]
    rotary = DeepseekV2RotaryEmbedding(hf.config)(x, positions)
    mask = torch.full((len(x), len(x)), float("-inf")).triu(1)[None, None]
    o_proj, hf.o_proj = hf.o_proj, torch.nn.Identity()
    try:
        return hf(x[None], attention_mask=mask, position_embeddings=rotary)[0][0]
    finally:
        hf.o_proj = o_proj


class Served:
    """The absorbed layer on `hf`'s weights over a paged cache that holds NaN until it is written."""

    def __init__(self, hf: DeepseekV2Attention, raw: dict[str, object], rank: int = 0, size: int = 1) -> None:
        ctx = BuildContext(
            hardware=ReferenceHardware(), dtype=torch.float32, parallel=ParallelGroup(rank=rank, size=size)
        )
        self.hf, self.rank, self.heads = hf, rank, HEADS // size
        self.rope = read_rope(raw)
        self.table = cos_sin_table(self.rope, ROPE)
        kv_b_proj = ColumnParallelLinear(RANK, HEADS * (NOPE + V_DIM), ctx=ctx, prefix="kv_b_proj")
        (placement,) = placements_of(kv_b_proj.weight).values()
        kv_b_proj.weight.data[placement.target] = hf.kv_b_proj.weight.data[placement.source]
        scale = (NOPE + ROPE) ** -0.5 * yarn_softmax_scale_multiplier(self.rope)
        self.layer = MLAAttention(HEADS, NOPE, ROPE, V_DIM, RANK, scale, kv_b_proj=kv_b_proj, ctx=ctx, prefix="attn")
        self.group = ReferenceMLAGroup(self.layer.spec, 1, torch.device("cpu"))
        (tensor,) = ReferenceMLAGroup.cache_tensors(self.layer.spec, BLOCK_SIZE)
        self.cache = torch.full((NUM_BLOCKS, *tensor.shape), float("nan"))
        self.group.bind_kv_cache(0, [{tensor.name: self.cache}])
        self.layer.bind(self.group, 0)
        self.blocks: dict[int, list[int]] = {}
        self.free = [*range(1, NUM_BLOCKS)][::-1]

    def inputs(self, x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        own = slice(self.rank * self.heads, (self.rank + 1) * self.heads)
        q = self.hf.q_proj(x).unflatten(-1, (HEADS, -1))[:, own]
        latent, k_rope = self.hf.kv_a_proj_with_mqa(x).split((RANK, ROPE), dim=-1)
        q_rope, k_rope = torch.ops.trunnion.rotary_embedding(
            q[..., NOPE:], k_rope.unsqueeze(1), positions, self.table, True
        )
        return q[..., :NOPE], q_rope, self.hf.kv_a_layernorm(latent), k_rope.squeeze(1)

    def step(self, parts: Sequence[tuple[int, int, torch.Tensor]], unwritten: Sequence[int] = ()) -> list[torch.Tensor]:
        """Run (request, first position, hidden rows) -> the rows of each; rows in `unwritten` get slot -1."""
        lens = [len(x) for _, _, x in parts]
        total = sum(lens)
        table = torch.zeros(len(parts) + 1, 12, dtype=torch.int32)
        slots: list[int] = []
        for row, (request, first, x) in enumerate(parts):
            blocks = self.blocks.setdefault(request, [])
            while len(blocks) * BLOCK_SIZE < first + len(x):
                blocks.append(self.free.pop())
            table[row, : len(blocks)] = torch.tensor(blocks)
            slots += [blocks[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE for i in range(first, first + len(x))]
        for row in unwritten:
            slots[row] = -1
        positions = [i for _, first, x in parts for i in range(first, first + len(x))]
        # Padding points at real slots on purpose: rows beyond the counts must not be looked at.
        tensors = BatchTensors(
            input_ids=_ints([0] * (total + PAD_TOKENS)),
            positions=_ints(positions + [0] * PAD_TOKENS),
            query_start_loc=_ints([*itertools.accumulate(lens, initial=0), total]),
            seq_lens=_ints([first + len(x) for _, first, x in parts] + [0]),
            logits_indices=_ints([]),
            groups=(GroupTensors(slot_mapping=_ints(slots + [4] * PAD_TOKENS), block_table=table),),
        )
        counts = BatchCounts(num_tokens=total, num_reqs=len(parts))
        self.group.plan(StepInputs(counts, tensors, tensors))
        x = torch.cat([x for _, _, x in parts] + [torch.full((PAD_TOKENS, HIDDEN), float("nan"))])
        out = self.layer(*self.inputs(x, tensors.positions))
        assert out.shape == (total + PAD_TOKENS, self.heads * V_DIM) and not out[total:].any()
        return list(out[:total].split(lens))


def _ints(values: Sequence[int]) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


def rows(num_tokens: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(num_tokens, HIDDEN, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("num_tokens", [1, 4, 7, 33])
@pytest.mark.parametrize("scaling", [None, YARN, {**YARN, "mscale_all_dim": 1.3}], ids=["plain", "yarn", "yarn-uneven"])
def test_layer_equals_transformers(scaling: dict[str, object] | None, num_tokens: int) -> None:
    hf = build_hf(rope_scaling=scaling and dict(scaling))
    x = rows(num_tokens)
    (out,) = Served(hf, {**RAW, "rope_scaling": scaling}).step([(0, 0, x)])
    torch.testing.assert_close(out, whole(hf, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cut", range(1, 11))
def test_prefill_may_be_cut_anywhere(cut: int) -> None:
    hf, x = build_hf(), rows(11)
    served = Served(hf, RAW)
    (first,) = served.step([(0, 0, x[:cut])])
    (second,) = served.step([(0, cut, x[cut:])])
    torch.testing.assert_close(torch.cat((first, second)), whole(hf, x), rtol=1e-4, atol=1e-5)


def test_decodes_prefills_and_a_continued_prefill_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_mla, "SCORE_BYTES", 4 * HEADS * 17 * 2)
    hf, served = build_hf(), Served(build_hf(), RAW)
    a, b, c, d = rows(9, 1), rows(6, 2), rows(17, 3), rows(5, 4)
    served.step([(0, 0, a[:8]), (1, 0, b[:5]), (2, 0, c[:10])])
    out = served.step([(1, 5, b[5:]), (0, 8, a[8:]), (2, 10, c[10:]), (3, 0, d)])
    for found, expected in zip(out, (b, a, c, d), strict=True):
        torch.testing.assert_close(found, whole(hf, expected)[-len(found) :], rtol=1e-4, atol=1e-5)


def test_a_row_without_a_slot_writes_nothing_and_hides_nothing_before_it() -> None:
    hf, x, served = build_hf(), rows(6), Served(build_hf(), RAW)
    served.step([(0, 0, x[:4])])
    before = served.cache.clone()
    (out,) = served.step([(0, 4, x[4:])], unwritten=[1])
    torch.testing.assert_close(out[:1], whole(hf, x)[4:5], rtol=1e-4, atol=1e-5)
    assert out.isfinite().all()
    changed = (served.cache.nan_to_num(7.0) != before.nan_to_num(7.0)).any(-1)
    assert changed.sum() == 1 and changed[served.blocks[0][1], 0]


def test_a_step_without_tokens() -> None:
    served = Served(build_hf(), RAW)
    assert served.step([]) == [] and served.cache.isnan().all()


def test_ranks_hold_their_own_heads() -> None:
    hf, x = build_hf(), rows(7)
    out = [Served(hf, RAW, rank, 2).step([(0, 0, x)])[0] for rank in (0, 1)]
    torch.testing.assert_close(torch.cat(out, dim=-1), whole(hf, x), rtol=1e-4, atol=1e-5)


def test_a_projection_of_another_size_is_refused_and_is_not_registered_twice() -> None:
    ctx = BuildContext(hardware=ReferenceHardware(), dtype=torch.float32)
    kv_b_proj = ColumnParallelLinear(RANK, HEADS * NOPE, ctx=ctx, prefix="kv_b_proj")
    with pytest.raises(ValueError, match=r"attn: kv_b_proj must be \(44, 10\)"):
        MLAAttention(HEADS, NOPE, ROPE, V_DIM, RANK, 1.0, kv_b_proj=kv_b_proj, ctx=ctx, prefix="attn")
    assert not dict(Served(build_hf(), RAW).layer.named_parameters())
