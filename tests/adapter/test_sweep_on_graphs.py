"""Adapted models under graphs: the capture simulator replays every step, and computes what transformers does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from trunnion.interfaces.runner import Mode
from trunnion.runner.model_executor import ModelExecutor

from .sweep import PASSED, QUICK, REFUSED, WRONG, main, simulated, try_type

IN_CI = ("gpt2", "olmoe", "afmoe")
"""Fused projections and learned positions; experts; windows on some layers, and experts."""


def _marks(name: str) -> list[pytest.MarkDecorator]:
    return [] if name in IN_CI else [pytest.mark.nightly]


TYPES = [pytest.param(name, marks=_marks(name)) for name in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)]


@pytest.mark.parametrize("execution", [Mode.PIECEWISE.value, Mode.FULL.value])
@pytest.mark.parametrize("model_type", TYPES)
def test_replayed_steps_compute_what_transformers_does(model_type: str, execution: str) -> None:
    outcome = try_type(model_type, simulated(execution))
    assert outcome.outcome != WRONG, outcome
    if model_type in (*QUICK, *IN_CI):
        assert outcome.outcome == PASSED and " replays, " in outcome.detail, outcome
    if outcome.outcome == REFUSED:
        # Graphs are no reason: what runs eagerly is captured.
        assert try_type(model_type).outcome == REFUSED


def test_a_step_that_runs_eager_on_a_package_with_graphs_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    execute = ModelExecutor.execute_set

    def counted(self: ModelExecutor, *args: object) -> object:
        self.counters.eager["no graph"] += 1
        return execute(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(ModelExecutor, "execute_set", counted)
    outcome = try_type("gpt2", simulated("full"))
    assert outcome.outcome == WRONG and "steps ran eager: {'no graph': " in outcome.detail


def test_the_sweep_takes_a_package_and_how_far_it_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "outcomes.json"
    options = ["--hardware", "sim", "--execution", "piecewise", "--only", "gpt2", "--json", str(file)]
    assert main(options) == 0
    (outcome,) = json.loads(file.read_text())
    assert (outcome["model_type"], outcome["outcome"]) == ("gpt2", PASSED)
    assert "1 passed, 0 refused, 0 wrong" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--hardware", "tpu"], "unknown hardware 'tpu'; installed: "),
        (["--hardware", "cpu", "--execution", "full"], "hardware 'cpu' cannot be limited to 'full'; it offers none"),
        (["--execution", "lazy"], "invalid choice: 'lazy'"),
        (["--only", "frob"], "no causal model type frob in transformers"),
    ],
)
def test_a_mistake_in_an_option_is_said(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(options)
    assert said in capsys.readouterr().err
