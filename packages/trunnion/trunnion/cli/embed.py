"""`trunnion embed`: the embeddings of texts, run together, printed in order as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from trunnion.cli.answers import catch_interrupt
from trunnion.cli.host import Finished
from trunnion.cli.messages import UsageProblem
from trunnion.cli.pooled import MAX_TOGETHER, check_length, exit_code, run_pooled
from trunnion.cli.sampling_options import blocks_needed
from trunnion.cli.session import ModelOptions, ModelPlan, OpenHost, print_figures
from trunnion.hf_config import read_json_object
from trunnion.text.model_text import Task

PROMPTS_FILE = "config_sentence_transformers.json"


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
    plan = ModelPlan(options, Task.EMBED)
    prompt = _prompt(plan.text.path, prompt_name)
    ids = [plan.text.tokenizer.encode(prompt + text, add_special_tokens=True) for text in texts]
    for number, token_ids in enumerate(ids, start=1):
        check_length(token_ids, plan.max_model_len, "the text" if len(ids) == 1 else f"text {number}")
    num_seqs = min(len(ids), MAX_TOGETHER)
    lengths = [len(token_ids) for token_ids in ids]
    blocks = blocks_needed(lengths, options.max_num_seqs or num_seqs)
    # An encoder takes a text in one step.
    with (
        plan.open_host(open_host, num_seqs=num_seqs, kv_blocks=blocks, num_tokens=max(lengths)) as host,
        catch_interrupt() as interrupt,
    ):
        ends = run_pooled(
            host, ids, interrupt, lambda index, end: print(_line(end, texts[index], as_json=as_json), flush=True)
        )
        print_figures(host, table=stats)
    return exit_code(ends, interrupt)


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
