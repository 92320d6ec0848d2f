"""`trunnion embed` against a scripted host: what is printed where, what the host is asked, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


def write_mode(folder: Path, mode: str) -> None:
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({mode: True}))


def write_prompts(folder: Path, default: str | None) -> None:
    prompts = {"prompts": {"query": "Query: ", "document": ""}, "default_prompt_name": default}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))


def embed(cli: Cli, model: Path, *arguments: str, **fake: Any) -> Any:
    return cli("embed", "--model", str(model), *arguments, **fake)


def test_one_array_per_text_in_order(cli: Cli, pooling_model: Path) -> None:
    outcome = embed(cli, pooling_model, "a", "text", "of")
    assert outcome.code == 0
    assert [json.loads(line) for line in outcome.out.splitlines()] == [[1.0, 0.5], [4.0, 0.5], [2.0, 0.5]]
    assert outcome.err.count("\n") == 1 and "execute calls" in outcome.err
    assert outcome.host.options.limits.max_num_seqs == 3


def test_json_says_more(cli: Cli, pooling_model: Path) -> None:
    assert json.loads(embed(cli, pooling_model, "--json", "two").out) == {
        "text": "two",
        "embedding": [3.0, 0.5],
        "num_prompt_tokens": 3,
        "num_cached_tokens": 0,
    }


def test_prompts_stand_before_the_text(cli: Cli, pooling_model: Path) -> None:
    assert embed(cli, pooling_model, "sky").host.seen[0].prompt == "sky"
    write_prompts(pooling_model, None)
    assert embed(cli, pooling_model, "sky").host.seen[0].prompt == "sky"
    assert embed(cli, pooling_model, "--prompt-name", "query", "sky").host.seen[0].prompt == "Query: sky"
    write_prompts(pooling_model, "query")
    assert embed(cli, pooling_model, "sky").host.seen[0].prompt == "Query: sky"
    assert embed(cli, pooling_model, "--prompt-name", "document", "sky").host.seen[0].prompt == "sky"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prompt-name", "nonsense", "a"], "unknown --prompt-name 'nonsense'; config_sentence_transformers.json has"),
        (["--max-model-len", "4", "four", "five5"], "text 2 has 5 tokens; --max-model-len is 4"),
        ([""], "the text is empty"),
        ([], "TEXT"),
    ],
    ids=["prompt-name", "too-long", "empty", "none"],
)
def test_mistakes_are_one_line_and_exit_2(cli: Cli, pooling_model: Path, arguments: list[str], words: str) -> None:
    outcome = embed(cli, pooling_model, *arguments)
    assert (outcome.code, outcome.out, outcome.host) == (2, "", None)
    assert words in outcome.err and outcome.err.count("\n") == 1


def test_a_text_may_fill_max_model_len(cli: Cli, pooling_model: Path) -> None:
    assert embed(cli, pooling_model, "--max-model-len", "4", "four").code == 0


@pytest.mark.parametrize("command", [["generate", "a"], ["chat"]], ids=["generate", "chat"])
def test_a_pooling_model_does_not_generate(cli: Cli, pooling_model: Path, command: list[str]) -> None:
    outcome = cli(command[0], "--model", str(pooling_model), *command[1:])
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == f"trunnion: {pooling_model} pools embeddings (modules.json): use trunnion embed\n"


def test_a_language_model_does_not_embed(cli: Cli, model: Path) -> None:
    outcome = embed(cli, model, "a")
    assert (outcome.code, outcome.out) == (2, "")
    assert "is a language model (no modules.json says how to pool): use trunnion generate or chat" in outcome.err


def test_other_pooling_modes_are_refused_by_name(cli: Cli, pooling_model: Path) -> None:
    write_mode(pooling_model, "pooling_mode_max_tokens")
    outcome = embed(cli, pooling_model, "a")
    assert (outcome.code, outcome.out) == (2, "")
    assert "pooling mode max is not supported; choices: lasttoken, cls, mean" in outcome.err


def test_a_step_holds_the_longest_text_whole(cli: Cli, pooling_model: Path) -> None:
    config = json.loads((pooling_model / "config.json").read_text()) | {"max_position_embeddings": 900}
    (pooling_model / "config.json").write_text(json.dumps(config))
    assert embed(cli, pooling_model, "a" * 700, "b").host.options.limits.max_num_tokens == 700
    assert embed(cli, pooling_model, "a", "b").host.options.limits.max_num_tokens == 512


def test_refusals_and_errors_of_the_host(cli: Cli, pooling_model: Path) -> None:
    refused = embed(cli, pooling_model, "a", refusal="kind is embed, and so on")
    assert (refused.code, refused.err) == (2, "trunnion: kind is embed, and so on\n")
    failed = embed(cli, pooling_model, "a", error="the step failed twice")
    assert (failed.code, failed.out) == (1, "")
    assert failed.err.splitlines()[-1] == "trunnion: the step failed twice"


def test_ctrl_c_prints_what_there_is(cli: Cli, pooling_model: Path) -> None:
    outcome = embed(cli, pooling_model, "a", "bb", "ccc", interrupt_after=1)
    assert outcome.code == 130
    assert outcome.out.splitlines() == ["[3.0, 0.5]"]
