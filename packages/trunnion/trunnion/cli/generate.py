"""`trunnion generate`: answers to prompts, run together, printed in order as they come."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from trunnion.cli.answers import Answer, catch_interrupt, follow
from trunnion.cli.images import Prompt, user_message
from trunnion.cli.messages import EXIT_INTERRUPTED, EXIT_UNEXPECTED, UsageProblem, note
from trunnion.cli.prompts import check_prompt, read_prompt
from trunnion.cli.sampling_options import SamplingOptions, blocks_needed
from trunnion.cli.session import ModelOptions, OpenHost, SessionPlan

MAX_TOGETHER = 32
"""Requests per step unless --max-num-seqs says otherwise."""


def generate(
    prompts: Sequence[str],
    options: ModelOptions,
    sampling: SamplingOptions,
    *,
    raw: bool,
    as_json: bool,
    stats: bool,
    open_host: OpenHost,
    images: Sequence[Path] = (),
) -> int:
    """Print one answer per prompt, each about all `images`; the exit code."""
    if raw and images:
        raise UsageProblem("--image needs the model's chat template, which --raw leaves out")
    texts = list(prompts) or [read_prompt()]
    for number, text in enumerate(texts, start=1):
        check_prompt(text, _name(number, texts))
    plan = SessionPlan(options, sampling)
    made = [_prompt(plan, text, images, raw=raw) for text in texts]
    for number, prompt in enumerate(made, start=1):
        plan.check_length(prompt.token_ids, _name(number, texts))
    num_seqs = min(len(made), MAX_TOGETHER)
    lengths = [plan.request_length(prompt.token_ids) for prompt in made]
    blocks = blocks_needed(lengths, options.max_num_seqs or num_seqs)
    # One prompt's images at once; those of others take turns.
    rows = max(prompt.num_encoder_rows for prompt in made)
    with (
        plan.open(open_host, num_seqs=num_seqs, kv_blocks=blocks, encoder_rows=rows) as session,
        catch_interrupt() as interrupt,
    ):
        answers = [session.ask(prompt) for prompt in made]
        printer = _JsonPrinter(answers, texts) if as_json else _TextPrinter(answers)
        follow(session.host, answers, interrupt, printer.show)
        session.print_figures(table=stats)
    failed = [answer.finished.error for answer in answers if answer.finished and answer.finished.reason == "error"]
    for error in failed:
        note(f"trunnion: {error}")
    return EXIT_INTERRUPTED if interrupt.seen else EXIT_UNEXPECTED if failed else 0


def _name(number: int, texts: Sequence[str]) -> str:
    return "the prompt" if len(texts) == 1 else f"prompt {number}"


def _prompt(plan: SessionPlan, text: str, images: Sequence[Path], *, raw: bool) -> Prompt:
    if raw:
        return Prompt(token_ids=plan.text.tokenizer.encode(text, add_special_tokens=True))
    return plan.prompts.encode([user_message(text, images)])


class _TextPrinter:
    """Streams the first unfinished answer; the others wait for their turn. An empty line stands between answers."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = answers
        self._current = 0
        self._shown = 0

    def show(self, index: int, text: str) -> None:
        while self._current < len(self._answers):
            answer = self._answers[self._current]
            sys.stdout.write(answer.text[self._shown :])
            self._shown = len(answer.text)
            if answer.finished is None:
                break
            sys.stdout.write("\n" if answer.text[-1:] != "\n" else "")
            self._current += 1
            self._shown = 0
            sys.stdout.write("\n" if self._current < len(self._answers) else "")
        sys.stdout.flush()


class _JsonPrinter:
    """One JSON object per answer and line, in the order of the prompts."""

    def __init__(self, answers: Sequence[Answer], prompts: Sequence[str]) -> None:
        self._answers = answers
        self._prompts = prompts
        self._printed = 0

    def show(self, index: int, text: str) -> None:
        while self._printed < len(self._answers) and self._answers[self._printed].finished is not None:
            print(json.dumps(_summary(self._answers[self._printed], self._prompts[self._printed])), flush=True)
            self._printed += 1


def _summary(answer: Answer, prompt: str) -> dict[str, object]:
    finished = answer.finished
    assert finished is not None, "only finished answers are printed"
    return {
        "prompt": prompt,
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason,
        "stop_string": answer.stops.matched,
        "stop_id": finished.stop_id,
        "num_prompt_tokens": finished.num_prompt_tokens,
        "num_cached_tokens": finished.num_cached_tokens,
        "num_output_tokens": len(answer.token_ids),
        "num_preemptions": finished.num_preemptions,
        "seed": finished.seed,
        "error": finished.error or None,
    }
