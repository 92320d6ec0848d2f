"""`trunnion compare`: a checkpoint through this repository and through transformers, module by module."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Sequence
from pathlib import Path

from trunnion.cli.messages import UsageProblem, note
from trunnion.compare.comparison import Comparison, Row, compare
from trunnion.compare.page import page
from trunnion.compare.sides import record_here, record_there
from trunnion.config import DTYPES, ExecutorConfig
from trunnion.contract import Limits
from trunnion.hf_config import read_config, text_config

EXIT_DIFFERENT = 1
BLOCK_SIZE = 16
RANDOM_TOKENS = 24
SHOWN = 12
"""Rows of the table around the first difference."""


def compare_models(
    model: str,
    *,
    prompt: str | None,
    hardware: str,
    dtype: str,
    port: Path | None,
    as_json: bool,
    html: Path | None,
    save: Path | None,
) -> int:
    """Print the first module that differs and those around it; 1 if the logits differ."""
    if dtype not in DTYPES:
        raise UsageProblem(f"unknown --dtype {dtype!r}; choices: {', '.join(DTYPES)}")
    folder = Path(model).expanduser()
    token_ids = _token_ids(folder, prompt)
    count = len(token_ids)
    config = ExecutorConfig(
        model=folder,
        hardware=hardware,
        dtype=dtype,
        port=port,
        limits=Limits(
            max_num_tokens=count, max_num_seqs=1, max_model_len=count, max_logits_rows=count, block_size=BLOCK_SIZE
        ),
    )
    loaded, here = record_here(config, token_ids)
    for line in loaded.weight_report.lines():
        note(line)
    there = record_there(loaded, config, token_ids)
    result = compare(here, there, loaded.dtype)
    first = result.first_different
    if as_json:
        found = {"tolerance": result.tolerance, "first_different": first and first.module}
        print(json.dumps(found | {"modules": [dataclasses.asdict(row) for row in result.rows]}))
    else:
        print("\n".join(lines(result)))
    if html is not None:
        html.write_text(page(result, str(folder)), encoding="utf-8")
        note(f"wrote {html}")
    if save is not None and first is not None:
        from safetensors.torch import save_file

        name = first.module
        save_file({"here": here[name].made.contiguous(), "there": there[name].made.contiguous()}, save)
        note(f"wrote {save}: what {name} made here and there")
    return 0 if first is None else EXIT_DIFFERENT


def lines(result: Comparison) -> list[str]:
    """The verdict, and the rows around the first difference, or the last ones."""
    first = result.first_different
    place = len(result.rows) if first is None else result.rows.index(first)
    start = max(0, min(place - SHOWN // 2, len(result.rows) - SHOWN))
    shown = result.rows[start : start + SHOWN]
    width = max(len(row.module) for row in shown)
    table = [f"  {'module':{width}}  largest   relative  cosine    given", *(_line(row, first, width) for row in shown)]
    if first is None:
        verdict = f"no difference: logits are off by {result.logits.relative:.1e}, allowed {result.tolerance:.0e}"
    else:
        verdict = f"first difference: {first.module}, off by {first.relative:.1e}, allowed {result.tolerance:.0e}"
    return [f"{len(result.rows)} modules compared; {verdict}", *table]


def _line(row: Row, first: Row | None, width: int) -> str:
    mark = ">" if row is first else " "
    return f"{mark} {row.module:{width}}  {row.largest:.1e}   {row.relative:.1e}   {row.cosine:.5f}   {row.given:.1e}"


def _token_ids(folder: Path, prompt: str | None) -> Sequence[int]:
    vocab_size = int(text_config(read_config(folder)).get("vocab_size") or 256)
    if prompt is None:
        chosen = random.Random(7)
        return [chosen.randrange(vocab_size) for _ in range(RANDOM_TOKENS)]
    from trunnion.text.tokenizer import load_folder_tokenizer

    token_ids = load_folder_tokenizer(folder).encode(prompt, add_special_tokens=True)
    if not token_ids:
        raise UsageProblem("the prompt has no tokens")
    return token_ids
