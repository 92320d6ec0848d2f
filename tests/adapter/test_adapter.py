"""The adapter's promises: what it cannot run is refused with the reason, and what it runs is tested at each load."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from trunnion.adapter import adapter_class, experts, model
from trunnion.adapter.attention import ModuleCalls
from trunnion.adapter.experts import is_plain
from trunnion.adapter.masks import Mask
from trunnion.adapter.positions import Positions
from trunnion.config import ExecutorConfig
from trunnion.contract import Limits
from trunnion.errors import UnsupportedError, WeightsError
from trunnion.runner.model_executor import ModelExecutor

from .sweep import PASSED, QUICK, REFUSED, try_type
from .tiny_configs import tiny_config

TOLD_INSIDE = ("bart", "marian")
"""Their decoders take no positions."""
OTHERWISE_MADE = ("modernbert-decoder", "got_ocr2", "gemma4")
"""Their decoder is not where transformers says, or a module around it asks it for more than hidden states."""
OTHER_NAMES = ("exaone", "sarvam_moe")
"""Families that a port runs, in checkpoints that name their tensors otherwise."""
REASONS = {
    "cpmant": "layer 0 keeps 93 rows of key for 61 tokens",
    "minimax": "MiniMax uses cache of its own",
    "recurrent_gemma": "flat: the self-test is off by",
}


def save(model_type: str, folder: Path) -> Path:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(tiny_config(model_type)).save_pretrained(folder)
    return folder


def load(folder: Path, **settings: Any) -> ModelExecutor:
    limits = Limits(max_num_tokens=16, max_num_seqs=2, max_model_len=32, max_logits_rows=16, block_size=4)
    return ModelExecutor.create(
        ExecutorConfig(model=folder, hardware="cpu", limits=limits, dtype="float32", **settings)
    )


@pytest.mark.parametrize("model_type", [*QUICK, *TOLD_INSIDE, *OTHERWISE_MADE])
def test_models_without_a_port_compute_what_transformers_does(model_type: str) -> None:
    outcome = try_type(model_type)
    assert outcome.outcome == PASSED and outcome.detail.startswith("adapter"), outcome


@pytest.mark.parametrize("model_type", OTHER_NAMES)
def test_ports_read_the_names_of_kindred_families(model_type: str) -> None:
    outcome = try_type(model_type)
    assert outcome.outcome == PASSED and outcome.detail.startswith("port"), outcome


@pytest.mark.parametrize("model_type", REASONS)
def test_what_cannot_run_is_refused_with_the_reason(model_type: str) -> None:
    outcome = try_type(model_type)
    assert outcome.outcome == REFUSED and REASONS[model_type] in outcome.detail, outcome


def test_positions_are_told_for_a_forward_alone() -> None:
    table = AutoModelForCausalLM.from_config(tiny_config("bart")).get_decoder().embed_positions
    asked = torch.zeros(1, 4, dtype=torch.long)
    decoder = torch.nn.ModuleList([table])
    own = table(asked, position_ids=torch.arange(4))
    positions = Positions(decoder)
    with positions.at(torch.tensor([5, 6, 0, 1])) as told:
        assert told == {}
        assert torch.equal(table(asked, position_ids=torch.arange(4))[0], table.weight[[7, 8, 2, 3]])
        assert torch.equal(table(asked), table(asked, position_ids=torch.arange(4)))
    assert torch.equal(table(asked, position_ids=torch.arange(4)), own)


@pytest.mark.parametrize(("model_type", "plain"), [("olmoe", True), ("gpt_oss", False)])
def test_plain_experts_run_on_the_operator(model_type: str, plain: bool) -> None:
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(tiny_config(model_type))
    blocks = [each for each in module.modules() if type(each).__name__.endswith("Experts")]
    assert blocks and all(is_plain(block) == plain for block in blocks)


@pytest.mark.parametrize(
    ("model_type", "said"), [("olmoe", "4 of 4 blocks"), ("gpt_oss", "0 of 4 blocks"), ("stablelm", None)]
)
def test_the_load_says_what_runs_experts(model_type: str, said: str | None) -> None:
    with torch.device("meta"):
        lines = experts.notes(AutoModelForCausalLM.from_config(tiny_config(model_type)))
    assert lines == [] if said is None else said in lines[0]


def test_the_load_says_that_there_is_no_port(tmp_path: Path) -> None:
    executor = load(save("stablelm", tmp_path))
    said = [line for line in executor.weight_report.lines() if line.startswith("adapter: no port of")]
    assert len(said) == 1 and "StableLmForCausalLM" in said[0] and "self-test is off by" in said[0]
    executor.close()


def test_a_way_that_computes_something_else_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a model did to its keys what nobody knows of."""
    answer = ModuleCalls.__call__

    def moved(self: ModuleCalls, call: Any) -> torch.Tensor:
        return answer(self, call).roll(1, dims=2)

    monkeypatch.setattr(ModuleCalls, "__call__", moved)
    executor = load(save("stablelm", tmp_path))
    assert executor.model.way.name == "whole"  # type: ignore[union-attr]
    line = executor.weight_report.lines()[-1]
    assert re.search(r"\(flat: the self-test is off by .* of the logits that transformers computes", line), line
    executor.close()


def test_a_tensor_that_is_missing_is_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = save("stablelm", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    lost = "model.layers.1.mlp.up_proj.weight"
    del tensors[lost]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(WeightsError, match=f"1 tensors missing: {lost}"):
        load(folder)


def test_tensors_that_transformers_leaves_out_are_reported(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = save("gpt2", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    spare = "transformer.h.0.attn.bias"
    save_file(tensors | {spare: torch.zeros(1)}, folder / "model.safetensors", {"format": "pt"})
    executor = load(folder)
    assert executor.weight_report.ignored == {"transformers' class leaves them out": (spare,)}
    executor.close()


def test_several_ranks_need_a_plan() -> None:
    from trunnion.config import BuildContext
    from trunnion.interfaces.collectives import ParallelGroup
    from trunnion.reference import ReferenceHardware

    config = tiny_config("gpt2").to_dict() | {"architectures": ["GPT2LMHeadModel"]}
    ctx = BuildContext(hardware=ReferenceHardware(), dtype=torch.float32, parallel=ParallelGroup(rank=0, size=2))
    with (
        torch.device("meta"),
        pytest.raises(UnsupportedError, match=r"no port of GPT2LMHeadModel; adapter: .*: it runs on one rank"),
    ):
        model.AdaptedCausalLM(model.AdaptedConfig.from_hf(config), ctx)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"auto_map": {"AutoModelForCausalLM": "modeling.Own"}}, "brings its own code"),
        ({"model_type": "frobnicate"}, "model_type 'frobnicate' is not in transformers"),
        ({"model_type": "vit"}, "vit has no causal language model"),
        ({"architectures": ["StableLmOwn"]}, "is not transformers' causal model of stablelm, StableLmForCausalLM"),
        ({"hidden_size": "wide"}, "stablelm: transformers refuses it"),
    ],
    ids=["own-code", "unknown", "no-decoder", "another-class", "a-bad-value"],
)
def test_configurations_that_are_not_transformers(changes: dict[str, Any], reason: str) -> None:
    config = {"model_type": "stablelm", "architectures": ["StableLmForCausalLM"]} | changes
    with pytest.raises(UnsupportedError, match=f"no port; adapter: .*{reason}") as caught:
        adapter_class(config, "no port")
    assert "\n" not in str(caught.value)


def causal(batch: Any, head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return key <= query


def test_masks_are_read_as_windows() -> None:
    assert Mask(causal, None).window() is None
    assert Mask(causal, 6).window() is None, "a window that the mask does not have"
    assert Mask(lambda b, h, q, k: (k <= q) & (k > q - 6), 6).window() == 6


@pytest.mark.parametrize(
    "sees",
    [
        lambda b, h, q, k: (k <= q) & (q // 8 == k // 8),
        lambda b, h, q, k: (q - k).abs() < 8,
        lambda b, h, q, k: (k <= q) & (k > q - 7),
    ],
    ids=["chunks", "both-ways", "another-window"],
)
def test_other_masks_are_refused(sees: Any) -> None:
    with pytest.raises(UnsupportedError, match="neither causal nor a causal window"):
        Mask(sees, 8).window()
