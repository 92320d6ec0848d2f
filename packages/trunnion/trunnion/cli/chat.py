"""`trunnion chat`: a conversation on a terminal, or line by line from a pipe."""

from __future__ import annotations

import sys
from typing import Any

from trunnion.cli.answers import catch_interrupt, follow
from trunnion.cli.images import user_message
from trunnion.cli.messages import UsageProblem, note
from trunnion.cli.prompts import check_prompt
from trunnion.cli.sampling_options import BLOCK_SIZE, SamplingOptions
from trunnion.cli.session import ModelOptions, OpenHost, Session, SessionPlan
from trunnion.errors import ImageError, TrunnionError
from trunnion.text.chat_template import Message

HELP = (
    "/exit or Ctrl-D ends, /reset forgets the conversation, /image FILE shows an image with the next line, "
    "Ctrl-C stops an answer"
)


def chat(
    options: ModelOptions, sampling: SamplingOptions, *, system: str | None, stats: bool, open_host: OpenHost
) -> int:
    """Answer line after line, each with all that was said before; the exit code."""
    plan = SessionPlan(options, sampling)
    if plan.text.tokenizer.chat_template is None:
        raise UsageProblem("the model has no chat template; use trunnion generate --raw")
    # One request at a time, and as much again for prefixes of earlier turns to stay findable.
    blocks = 1 + 2 * -(-plan.max_model_len // BLOCK_SIZE)
    rows = min(plan.max_model_len, plan.prompts.largest_image())
    with plan.open(open_host, num_seqs=1, kv_blocks=blocks, encoder_rows=rows) as session:
        conversation = _Conversation(plan, session, system)
        if sys.stdin.isatty():
            note(HELP)
        while (line := _read_line()) is not None:
            if line == "/exit":
                break
            if line == "/reset":
                conversation.reset()
            elif line.split()[:1] == ["/image"]:
                conversation.show(line.removeprefix("/image").strip())
            elif line.startswith("/"):
                note(f"unknown command {line.split()[0]!r}; {HELP}")
            elif line.strip():
                conversation.say(line)
        session.print_figures(table=stats)
    return 0


def _read_line() -> str | None:
    """The next line; None at the end, or at a Ctrl-C before anything was asked."""
    try:
        if sys.stdin.isatty():
            return input("> ")
        line = sys.stdin.readline()
        return line.rstrip("\n") if line else None
    except (EOFError, KeyboardInterrupt):
        sys.stderr.write("\n")
        return None


class _Conversation:
    """Messages so far. Earlier turns are found in the prefix cache, so only the new ones are computed."""

    def __init__(self, plan: SessionPlan, session: Session, system: str | None) -> None:
        self._plan = plan
        self._session = session
        self._start = [{"role": "system", "content": system}] if system is not None else []
        self._messages: list[Message] = list(self._start)
        self._images: list[Any] = []
        """To be shown with the next line."""

    def reset(self) -> None:
        self._messages = list(self._start)
        self._images = []

    def show(self, path: str) -> None:
        """Read an image; what is none is refused."""
        try:
            if not path:
                raise UsageProblem("/image needs a file: /image FILE")
            self._images.append(self._plan.prompts.load(path))
        except TrunnionError as problem:
            note(str(problem))

    def say(self, text: str) -> None:
        """Stream the answer; a line that does not fit is refused and forgotten."""
        messages = [*self._messages, user_message(text, self._images)]
        try:
            check_prompt(text, "the line")
            prompt = self._plan.prompts.encode(messages)
        except (UsageProblem, ImageError) as problem:
            note(str(problem))
            return
        try:
            self._plan.check_length(prompt.token_ids, "the conversation")
        except UsageProblem as problem:
            note(f"{problem}; /reset starts anew")
            return
        with catch_interrupt() as interrupt:
            answer = self._session.ask(prompt)
            follow(self._session.host, [answer], interrupt, _show)
        sys.stdout.write("\n")
        sys.stdout.flush()
        if answer.finished is not None and answer.finished.reason == "error":
            note(f"trunnion: {answer.finished.error}")
            return
        self._images = []
        self._messages = [*messages, {"role": "assistant", "content": answer.text}]


def _show(index: int, text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
