"""`trunnion embed`: the embeddings of texts, run together, printed in order as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from trunnion.cli.answers import Interrupt, catch_interrupt
from trunnion.cli.host import Finished, Host
from trunnion.cli.messages import EXIT_INTERRUPTED, EXIT_UNEXPECTED, UsageProblem, note
from trunnion.cli.sampling_options import blocks_needed
from trunnion.cli.session import ModelOptions, ModelPlan, OpenHost, print_figures
from trunnion.hf_config import read_json_object

MAX_TOGETHER = 32
"""Requests per step unless --max-num-seqs says otherwise."""
PROMPTS_FILE = "config_sentence_transformers.json"
_POLL_SECONDS = 0.1


def embed(
    texts: Sequence[str],
    options: ModelOptions,
    *,
    prompt_name: str | None,
    as_json: bool,
    stats: bool,
    open_host: OpenHost,
) -> int:
    """Print one embedding per text, an array or with `as_json` an object; the exit code."""
    plan = ModelPlan(options, pools=True)
    prompt = _prompt(plan.text.path, prompt_name)
    ids = [plan.text.tokenizer.encode(prompt + text, add_special_tokens=True) for text in texts]
    for number, token_ids in enumerate(ids, start=1):
        _check_length(token_ids, plan.max_model_len, "the text" if len(ids) == 1 else f"text {number}")
    num_seqs = min(len(ids), MAX_TOGETHER)
    blocks = blocks_needed([len(token_ids) for token_ids in ids], options.max_num_seqs or num_seqs)
    with plan.open_host(open_host, num_seqs=num_seqs, kv_blocks=blocks) as host, catch_interrupt() as interrupt:
        ends = _run(host, ids, texts, interrupt, as_json=as_json)
        print_figures(host, table=stats)
    failed = [end.error for end in ends if end.reason == "error"]
    for error in failed:
        note(f"trunnion: {error}")
    return EXIT_INTERRUPTED if interrupt.seen else EXIT_UNEXPECTED if failed else 0


def _check_length(token_ids: Sequence[int], longest: int, what: str) -> None:
    if not token_ids:
        raise UsageProblem(f"{what} is empty")
    if len(token_ids) > longest:
        raise UsageProblem(f"{what} has {len(token_ids)} tokens; --max-model-len is {longest}")


def _prompt(folder: Path, name: str | None) -> str:
    """What sentence-transformers puts before a text: the prompt of that name, or the folder's default; "" is none."""
    path = folder / PROMPTS_FILE
    facts = read_json_object(path) if path.is_file() else {}
    prompts = facts.get("prompts") or {}
    name = name if name is not None else facts.get("default_prompt_name")
    if name is None:
        return ""
    if name not in prompts:
        choices = ", ".join(sorted(prompts)) or "none"
        raise UsageProblem(f"unknown --prompt-name {name!r}; {PROMPTS_FILE} has: {choices}")
    return str(prompts[name])


def _run(
    host: Host, ids: Sequence[Sequence[int]], texts: Sequence[str], interrupt: Interrupt, *, as_json: bool
) -> list[Finished]:
    """Until every request has ended; each is printed once those before it have been."""
    indices: dict[int, int] = {}
    ends: list[Finished | None] = [None] * len(ids)
    printed, cancelled = 0, False
    try:
        for index, token_ids in enumerate(ids):
            indices[_submit(host, token_ids)] = index
        while printed < len(ids):
            if interrupt.seen and not cancelled:
                _cancel(host, indices, ends)
                cancelled = True
            event = host.next_event(_POLL_SECONDS)
            if event is None or event.finished is None or event.request_id not in indices:
                continue
            ends[indices[event.request_id]] = event.finished
            while printed < len(ids) and (end := ends[printed]) is not None:
                if end.embedding is not None:
                    print(_line(end, texts[printed], as_json=as_json), flush=True)
                printed += 1
    except BaseException:
        _cancel(host, indices, ends)
        raise
    return [end for end in ends if end is not None]


def _submit(host: Host, token_ids: Sequence[int]) -> int:
    try:
        return host.submit_embedding(token_ids)
    except ValueError as error:
        raise UsageProblem(str(error)) from error


def _cancel(host: Host, indices: dict[int, int], ends: Sequence[Finished | None]) -> None:
    for request_id, index in indices.items():
        if ends[index] is None:
            host.cancel(request_id)


def _line(end: Finished, text: str, *, as_json: bool) -> str:
    assert end.embedding is not None, "only embeddings are printed"
    if not as_json:
        return json.dumps(end.embedding)
    return json.dumps(
        {
            "text": text,
            "embedding": end.embedding,
            "num_prompt_tokens": end.num_prompt_tokens,
            "num_cached_tokens": end.num_cached_tokens,
        }
    )
