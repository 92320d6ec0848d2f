"""`trunnion chat` from a pipe and on a terminal, against a scripted host."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def chat(cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def invoke(*lines: str, arguments: tuple[str, ...] = (), **fake: Any) -> Any:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return cli("chat", "--model", str(model), *arguments, **fake)

    return invoke


def test_turns_keep_the_history(chat: Callable[..., Any]) -> None:
    outcome = chat("one", "", "two", script=lambda prompt: f"<{prompt.count('[user]')}>")
    assert (outcome.code, outcome.out) == (0, "<1>\n<2>\n")
    assert [request.prompt for request in outcome.host.seen] == [
        "<s>[user]one</s>[assistant]",
        "<s>[user]one</s>[assistant]<1></s>[user]two</s>[assistant]",
    ]
    assert outcome.host.options.prefix_caching


def test_later_turns_begin_with_the_tokens_of_earlier_ones(chat: Callable[..., Any]) -> None:
    first, second = chat("one", "two").host.seen
    assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids


def test_commands(chat: Callable[..., Any]) -> None:
    outcome = chat("one", "/reset", "/nonsense here", "two", "/exit", "three")
    prompts = [request.prompt for request in outcome.host.seen]
    assert prompts == ["<s>[user]one</s>[assistant]", "<s>[user]two</s>[assistant]"]
    assert "unknown command '/nonsense'" in outcome.err


def test_system_message_survives_a_reset(chat: Callable[..., Any]) -> None:
    prompts = [r.prompt for r in chat("a", "/reset", "b", arguments=("--system", "Be brief.")).host.seen]
    assert prompts == [f"<s>[system]Be brief.</s>[user]{text}</s>[assistant]" for text in "ab"]


def test_interrupt_stops_the_answer_only(chat: Callable[..., Any]) -> None:
    outcome = chat("one", "two", script=lambda prompt: "x" * 50, interrupt_after=3)
    assert outcome.code == 0
    first, second = outcome.host.seen
    assert (first.cancelled, second.cancelled) == (True, False)
    assert outcome.out.splitlines()[1] == "x" * 50
    said = outcome.out.splitlines()[0]
    assert 3 <= len(said) <= 4 and f"[assistant]{said}</s>[user]two" in second.prompt


def test_conversation_that_grows_too_long_says_so_and_goes_on(chat: Callable[..., Any]) -> None:
    outcome = chat("x" * 30, "y" * 30, "/reset", "z", arguments=("--max-model-len", "70"))
    assert [request.prompt[9] for request in outcome.host.seen] == ["x", "z"]
    assert "the conversation has" in outcome.err and "/reset" in outcome.err


def test_error_of_an_answer_leaves_it_out_of_the_history(chat: Callable[..., Any]) -> None:
    outcome = chat("one", error="the device is gone")
    assert "trunnion: the device is gone" in outcome.err


def test_terminal_gets_a_prompt_and_ends_at_end_of_file(cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", _Terminal("hello\n"))
    outcome = cli("chat", "--model", str(model))
    assert outcome.code == 0
    assert "> " in outcome.out and "ok\n" in outcome.out and "/reset" in outcome.err


def test_no_chat_template_is_one_line_and_exit_2(chat: Callable[..., Any], model: Path) -> None:
    (model / "tokenizer_config.json").write_text(json.dumps({}))
    outcome = chat("one")
    assert (outcome.code, outcome.err.count("\n"), outcome.host) == (2, 1, None)
    assert "no chat template" in outcome.err


def test_line_that_is_not_utf8_is_refused_and_forgotten(chat: Callable[..., Any]) -> None:
    outcome = chat("ab\udcff\nhello\n")
    assert "the line is not UTF-8 at character 2" in outcome.err
    assert [request.prompt for request in outcome.host.seen] == ["<s>[user]hello</s>[assistant]"]
