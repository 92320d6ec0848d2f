"""`trunnion compare`: a checkpoint in two implementations, module by module."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trunnion import registry
from trunnion.cli.messages import UsageProblem, note
from trunnion.compare.comparison import Comparison, Row, compare
from trunnion.compare.page import page
from trunnion.compare.saved import save_outputs
from trunnion.compare.sides import PORT, SIDES, Recording, record
from trunnion.config import DTYPES, ExecutorConfig
from trunnion.contract import Limits
from trunnion.hf_config import checkpoint_dtype, read_config, text_config
from trunnion.ops.registry import OPERATORS
from trunnion.reference import ReferenceHardware

EXIT_DIFFERENT = 1
BLOCK_SIZE = 16
RANDOM_LENGTHS = (24, 9)
SHOWN = 12
"""Rows of the table around the first difference."""


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """As given on the command line.

    Raises:
        UsageProblem: a choice that there is not, or a file that cannot be written.
    """

    model: Path
    way: str | None = None
    """One of SIDES; None: what would run the checkpoint."""
    against: str = "hf"
    prompts: Sequence[str] = ()
    """Empty: random tokens."""
    hardware: str = "cpu"
    dtype: str = "float32"
    port: Path | None = None
    as_json: bool = False
    html: Path | None = None
    save: Path | None = None

    def __post_init__(self) -> None:
        choices = {"dtype": ("auto", *DTYPES), "way": (None, *SIDES), "against": SIDES}
        for name, known in choices.items():
            if (value := getattr(self, name)) not in known:
                named = ", ".join(str(choice) for choice in known if choice is not None)
                raise UsageProblem(f"unknown --{name} {value!r}; choices: {named}")
        if self.port is not None and PORT not in (self.way or PORT, self.against):
            raise UsageProblem(f"--port {self.port}: neither side is a port, but {self.way} and {self.against}")
        for name in ("html", "save"):
            path = getattr(self, name)
            if path is not None and not path.absolute().parent.is_dir():
                raise UsageProblem(f"--{name} {path}: there is no folder {path.absolute().parent}")


def compare_models(options: CompareOptions) -> int:
    """Print the first module that differs and those around it; 1 if the logits differ."""
    published = read_config(options.model)
    requests = _requests(options, text_config(published))
    dtype = DTYPES[options.dtype] if options.dtype != "auto" else checkpoint_dtype(published)
    config = _executor_config(options, requests, str(dtype).removeprefix("torch."))
    hardware = registry.hardware(options.hardware)
    # The other side is a reference: it runs none of the package's kernels.
    with OPERATORS.borrowed():
        here = record(options.way, config, hardware, requests)
    for line in here.notes:
        note(line)
    there = record(options.against, config, ReferenceHardware(), requests)
    result = compare(here.calls, there.calls, dtype)
    lengths = " and ".join(str(len(token_ids)) for token_ids in requests)
    title = f"{here.title} against {there.title}: {config.dtype}, {lengths} tokens"
    print(_as_json(result, here, there, requests) if options.as_json else "\n".join([title, *lines(result)]))
    if options.html is not None:
        options.html.write_text(page(result, str(options.model), title), encoding="utf-8")
        note(f"wrote {options.html}")
    if options.save is not None:
        name = (result.first_different or result.logits).module
        save_outputs(options.save, name, here.calls[name], there.calls[name])
        note(f"wrote {options.save}: what {name} made here and there, and was given")
    return 0 if result.first_different is None else EXIT_DIFFERENT


def lines(result: Comparison) -> list[str]:
    """The verdict, and the rows around the first difference, or the last ones."""
    first = result.first_different
    place = len(result.rows) if first is None else result.rows.index(first)
    start = max(0, min(place - SHOWN // 2, len(result.rows) - SHOWN))
    shown = result.rows[start : start + SHOWN]
    width = max(len(row.module) for row in shown)
    table = [f"  {'module':{width}}  largest   relative  cosine    given", *(_line(row, first, width) for row in shown)]
    hint = [f"look at: {result.look_at}"] if result.look_at is not None else []
    return [f"{len(result.rows)} modules compared; {result.verdict}", *hint, *table]


def _line(row: Row, first: Row | None, width: int) -> str:
    mark = ">" if row is first else " "
    return f"{mark} {row.module:{width}}  {row.largest:.1e}   {row.relative:.1e}   {row.cosine:.5f}   {row.given:.1e}"


def _as_json(result: Comparison, here: Recording, there: Recording, requests: Sequence[Sequence[int]]) -> str:
    """What is no number stands as null."""
    first = result.first_different
    rows = [
        {name: None if isinstance(value, float) and not math.isfinite(value) else value
         for name, value in dataclasses.asdict(row).items()}
        for row in result.rows
    ]  # fmt: skip
    found: dict[str, Any] = {
        "here": here.title,
        "there": there.title,
        "requests": requests,
        "tolerance": result.tolerance,
        "first_different": first and first.module,
        "look_at": result.look_at,
        "modules": rows,
    }
    return json.dumps(found, allow_nan=False)


def _executor_config(options: CompareOptions, requests: Sequence[Sequence[int]], dtype: str) -> ExecutorConfig:
    total = sum(map(len, requests))
    limits = Limits(
        max_num_tokens=total,
        max_num_seqs=len(requests),
        max_model_len=max(map(len, requests)),
        max_logits_rows=total,
        block_size=BLOCK_SIZE,
    )
    return ExecutorConfig(model=options.model, hardware=options.hardware, dtype=dtype, port=options.port, limits=limits)


def _requests(options: CompareOptions, config: Any) -> list[list[int]]:
    if not options.prompts:
        chosen, vocab_size = random.Random(7), int(config.get("vocab_size") or 256)
        return [[chosen.randrange(vocab_size) for _ in range(length)] for length in RANDOM_LENGTHS]
    from trunnion.text.tokenizer import load_folder_tokenizer

    tokenizer = load_folder_tokenizer(options.model)
    requests = [tokenizer.encode(prompt, add_special_tokens=True) for prompt in options.prompts]
    if empty := [prompt for prompt, token_ids in zip(options.prompts, requests, strict=True) if not token_ids]:
        raise UsageProblem(f"prompt {empty[0]!r} has no tokens")
    return requests
