"""Adapted models cut over ranks, by transformers' plan or by the names of projections: real ranks, the same logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.matrix.adapted_cards import ADAPTED, ONE_RANK
from tests.matrix.test_tensor_parallel import problems_of_ranks
from torch import nn
from transformers import AutoModelForCausalLM

from trunnion.adapter.parallel import COLUMNS, EXPERTS, OWN, ROWS, Cut, cut_over_ranks, find_cuts, without_weights
from trunnion.config import BuildContext
from trunnion.errors import UnsupportedError
from trunnion.interfaces.collectives import ParallelGroup
from trunnion.reference import ReferenceHardware

from .tiny_configs import tiny_config

CARDS = [card for card in ADAPTED if card.name not in ONE_RANK]


# 4 ranks: more than the KV heads.
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_every_rank_returns_the_logits_of_transformers(size: int, tmp_path: Path) -> None:
    problems = problems_of_ranks(CARDS, size, tmp_path, "cpu")
    assert not problems, "\n".join(problems)


def empty_model(model_type: str) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(tiny_config(model_type))


def test_the_plan_of_transformers_comes_first() -> None:
    cuts = find_cuts(empty_model("seed_oss"), 2)
    assert Cut("model.layers.0.self_attn.q_proj", COLUMNS) in cuts and Cut("model.layers.0.mlp.down_proj", ROWS) in cuts
    assert len(cuts) == 4 * 7


def test_experts_are_cut_where_projections_are_not() -> None:
    assert [cut.style for cut in find_cuts(empty_model("olmoe"), 2)] == [EXPERTS] * 4


def test_without_a_plan_names_tell() -> None:
    cuts = find_cuts(empty_model("opt"), 2)
    assert Cut("model.decoder.layers.1.fc1", COLUMNS) in cuts and Cut("model.decoder.layers.1.fc2", ROWS) in cuts
    assert len(cuts) == 4 * 6


def test_sinks_follow_their_heads() -> None:
    assert Cut("model.layers.0.self_attn", OWN) in find_cuts(empty_model("granite_swa"), 2)


@pytest.mark.parametrize(
    ("model_type", "size", "reason"),
    [
        ("gpt2", 2, "no tensor-parallel plan for GPT2LMHeadModel"),
        ("seed_oss", 3, "4 query heads cannot be divided over 3 ranks"),
    ],
)
def test_what_cannot_be_cut_is_refused(model_type: str, size: int, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        find_cuts(empty_model(model_type), size)


def context(rank: int, size: int) -> BuildContext:
    return BuildContext(hardware=ReferenceHardware(), dtype=torch.float32, parallel=ParallelGroup(rank=rank, size=size))


def test_ranks_share_the_head_that_their_queries_read() -> None:
    model = AutoModelForCausalLM.from_config(tiny_config("seed_oss"))
    name = "model.layers.0.self_attn"
    whole = model.get_submodule(name)
    found: list[nn.Module] = []
    for rank in range(4):
        part = without_weights(model)
        cut_over_ranks(part, find_cuts(model, 4), context(rank, 4), torch.device("cpu"))
        found.append(part.get_submodule(name))
    keys = whole.k_proj.weight.split(16)
    assert [torch.equal(each.k_proj.weight, keys[rank // 2]) for rank, each in enumerate(found)] == [True] * 4
    assert torch.equal(torch.cat([each.q_proj.weight for each in found]), whole.q_proj.weight)
    assert torch.equal(torch.cat([each.o_proj.weight for each in found], dim=1), whole.o_proj.weight)
    assert type(whole.k_proj) is nn.Linear, "the whole model is as it was"


def test_a_size_that_does_not_divide_is_named() -> None:
    config = type(tiny_config("seed_oss"))(**{**tiny_config("seed_oss").to_dict(), "intermediate_size": 95})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(UnsupportedError, match=r"mlp.*: .*95 cannot be divided over 2 ranks"):
        cut_over_ranks(model, find_cuts(model, 2), context(0, 2), torch.device("meta"))
