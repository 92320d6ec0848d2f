"""Ropes that look at a step's longest request: each request is as transformers runs the longest that is admitted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.matrix.host_double import Chunk, HostDouble
from transformers import AutoModelForCausalLM, PreTrainedModel

from trunnion.adapter import ropes
from trunnion.config import ExecutorConfig
from trunnion.contract import Limits
from trunnion.errors import UnsupportedError
from trunnion.runner.model_executor import ModelExecutor

from .tiny_configs import tiny_config

LONGEST, TRAINED = 24, 16
"""Tokens of the longest request, and of those that the frequencies were trained for."""
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.5, 1.0, 2.0],
    "long_factor": [3.0, 2.0, 5.0, 4.0],
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dynamic": (
        "stablelm",
        {
            "max_position_embeddings": TRAINED,
            "rope_parameters": {
                "rope_type": "dynamic",
                "factor": 4.0,
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
            },
        },
    ),
    "longrope": (
        "minicpm3",
        {
            "rope_parameters": {**LONGROPE, "original_max_position_embeddings": TRAINED},
            "original_max_position_embeddings": TRAINED,
        },
    ),
}


def save(case: str, folder: Path) -> PreTrainedModel:
    """Of random weights, large enough for the rope to show."""
    model_type, fields = CASES[case]
    config = type(tiny_config(model_type))(**{**tiny_config(model_type).to_dict(), **fields})
    torch.manual_seed(2)
    module = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.2)
    module.save_pretrained(folder)
    return module


def executor(folder: Path, longest: int = LONGEST) -> ModelExecutor:
    limits = Limits(max_num_tokens=32, max_num_seqs=2, max_model_len=longest, max_logits_rows=32, block_size=4)
    return ModelExecutor.create(ExecutorConfig(model=folder, hardware="cpu", limits=limits, dtype="float32"))


def serve(made: ModelExecutor, requests: list[list[int]]) -> list[torch.Tensor]:
    """Logits of each request, in chunks that mix them."""
    host = HostDouble(made, 40, made.device)
    added = [host.add(ids) for ids in requests]
    rows: list[list[torch.Tensor]] = [[] for _ in requests]
    done = [0] * len(requests)
    while live := [index for index, ids in enumerate(requests) if done[index] < len(ids)]:
        takes = [min(5, len(requests[index]) - done[index]) for index in live]
        step = host.step([Chunk(added[index], take) for index, take in zip(live, takes, strict=True)])
        for index, take, row in zip(live, takes, step, strict=True):
            rows[index].append(row)
            done[index] += take
    made.close()
    return [torch.cat(each) for each in rows]


@torch.inference_mode()
@pytest.mark.parametrize("case", CASES)
def test_the_longest_request_is_as_transformers_runs_it_whoever_is_beside_it(case: str, tmp_path: Path) -> None:
    module = save(case, tmp_path)
    generator = random.Random(1)
    long, short = ([generator.randrange(3, 131) for _ in range(length)] for length in (LONGEST, 9))
    together, [alone] = serve(executor(tmp_path), [long, short]), serve(executor(tmp_path), [short])
    wanted = module(input_ids=torch.tensor([long]), use_cache=False).logits[0]
    held = module(input_ids=torch.tensor([short]), use_cache=False).logits[0]
    assert (together[0] - wanted).abs().max() <= 1e-4 * wanted.abs().max()
    assert (together[1] - alone).abs().max() <= 1e-5 * alone.abs().max()
    assert (held - alone).abs().max() > 0.01 * alone.abs().max(), "transformers chooses for a short one anew"


@pytest.mark.parametrize("case", CASES)
def test_the_load_says_what_ropes_are_held_at(case: str, tmp_path: Path) -> None:
    save(case, tmp_path)
    made = executor(tmp_path)
    assert f"adapter: rope {case} as for a request of {LONGEST} tokens" in made.weight_report.notes
    made.close()


@torch.inference_mode()
def test_a_short_limit_holds_the_frequencies_of_short_requests(tmp_path: Path) -> None:
    module = save("longrope", tmp_path)
    ids = list(range(3, 3 + TRAINED))
    [found] = serve(executor(tmp_path, TRAINED), [ids])
    wanted = module(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    assert (found - wanted).abs().max() <= 1e-4 * wanted.abs().max()


def test_a_rope_reaches_as_far_as_its_factor_stretches_it() -> None:
    config = type(tiny_config("stablelm"))(**CASES["dynamic"][1])
    assert ropes.reach(config) == 4 * TRAINED
    assert ropes.reach(tiny_config("stablelm")) is None


def test_a_rope_that_cannot_choose_once_is_refused() -> None:
    class Odd(torch.nn.Module):
        rope_type = "dynamic"

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("inv_freq", torch.ones(2))

        def forward(self, x: torch.Tensor, grid: Any, time: Any) -> None:
            raise AssertionError("not reached")

    with pytest.raises(UnsupportedError, match=r"Odd cannot choose its frequencies once: .*time"):
        ropes.hold(Odd(), 8, torch.float32)
