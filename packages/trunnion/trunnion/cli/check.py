"""`trunnion check`: whether and how a checkpoint will run, from its configuration and headers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from trunnion import registry
from trunnion.checkup.checkup import CheckOptions, check_checkpoint
from trunnion.checkup.facts import CheckReport
from trunnion.checkup.lines import report_lines
from trunnion.cli.messages import UsageProblem
from trunnion.cli.sampling_options import BLOCK_SIZE, DEFAULT_MAX_MODEL_LEN, LARGEST
from trunnion.config import ACTIVATIONS, DTYPES, KV_CACHE_DTYPES, WEIGHTS
from trunnion.text.sample_model import SAMPLE_MODELS, find_sample_model

EXIT_REFUSED = 1


def check(
    model: str,
    *,
    hardware: str,
    dtype: str,
    kv_cache_dtype: str,
    weights: str,
    activations: str,
    max_model_len: int | None,
    max_num_seqs: int,
    max_num_tokens: int,
    port: Path | None,
    as_json: bool,
) -> int:
    """Print the report; 1 if the checkpoint is refused."""
    for name, value, choices in (("dtype", dtype, DTYPES), ("kv-cache-dtype", kv_cache_dtype, KV_CACHE_DTYPES)):
        if value != "auto" and value not in choices:
            raise UsageProblem(f"unknown --{name} {value!r}; choices: auto, {', '.join(choices)}")
    for name, value, choices in (("weights", weights, WEIGHTS), ("activations", activations, ACTIVATIONS)):
        if value not in choices:
            raise UsageProblem(f"unknown --{name} {value!r}; choices: {', '.join(choices)}")
    least = {"max_model_len": (max_model_len, 2), "max_num_seqs": (max_num_seqs, 1)}
    for name, (number, lowest) in {**least, "max_num_tokens": (max_num_tokens, 1)}.items():
        if number is not None and not lowest <= number <= LARGEST:
            raise UsageProblem(f"--{name.replace('_', '-')} must be from {lowest} to {LARGEST}, got {number}")
    # A port that is no port is a mistake in an option, and no fact about the checkpoint.
    registry.model_families(port)
    options = CheckOptions(
        hardware=registry.hardware(hardware),
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        weights=weights,
        activations=activations,
        max_model_len=max_model_len,
        default_max_model_len=DEFAULT_MAX_MODEL_LEN,
        max_num_seqs=max_num_seqs,
        max_num_tokens=max_num_tokens,
        block_size=BLOCK_SIZE,
        port=port,
    )
    report = check_checkpoint(_resolve(model), options)
    print(json.dumps(as_object(report)) if as_json else "\n".join(report_lines(report)))
    return 0 if report.runs else EXIT_REFUSED


def as_object(report: CheckReport) -> dict[str, Any]:
    """What `--json` prints: the report's fields, `runs`, and the sum of the memory."""
    found = {"runs": report.runs, **dataclasses.asdict(report), "way": report.way or "refused"}
    if report.memory is not None:
        found["memory"]["total"] = report.memory.total
    return found


def _resolve(model: str) -> Path:
    path = Path(model).expanduser()
    if path.exists():
        return path
    if model in SAMPLE_MODELS:
        return find_sample_model(model)
    raise UsageProblem(
        f"{model!r} does not exist; give a folder with config.json, a config.json, a .gguf file, or one of: "
        f"{', '.join(SAMPLE_MODELS)}"
    )
