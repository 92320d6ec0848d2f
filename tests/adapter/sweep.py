"""Every causal model type of transformers through the adapter: passed, refused with the reason, or wrong.

`python -m tests.adapter.sweep [--only TYPE ...] [--json FILE]`. A model with random weights is saved, loaded as a user
would, and fed a ragged prefill and steps that mix chunks and decodes; the truth is its own forward, request by request.
`--hardware sim --execution piecewise` (or `full`) captures and replays every step on the capture simulator: a step that
runs eager there counts as wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tests.matrix.host_double import Chunk, HostDouble
from tqdm import tqdm
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

from trunnion import registry
from trunnion.adapter.model import AdaptedCausalLM
from trunnion.config import ExecutorConfig
from trunnion.contract import Limits
from trunnion.errors import TrunnionError
from trunnion.interfaces.hardware import Hardware
from trunnion.interfaces.runner import Mode
from trunnion.runner.model_executor import ModelExecutor

from .tiny_configs import tiny_config

QUICK = ("gpt2", "opt", "gpt_neox", "phi", "starcoder2", "olmoe", "nemotron", "stablelm")
"""Of `--quick`: small ones, each with an oddity of its own, that the adapter runs."""
SIMULATORS = Path(__file__).resolve().parents[1] / "simulators"
SIM = "sim"
LENGTHS = (13, 7)
CHUNKS = (1, 1, 2, 1, 3, 1)
"""Tokens of a request's steps after the first, by turns."""
FIRST = (4, 3)
LARGEST = 40_000_000
"""Parameters of a tiny model."""
TOLERANCE = 1e-4
"""Largest error of a logit, in units of the largest logit or of 1."""
PASSED, REFUSED, WRONG, NO_MODEL = "passed", "refused", "wrong", "no tiny model"


@dataclass(frozen=True)
class Outcome:
    """What became of a model type."""

    model_type: str
    outcome: str
    detail: str


def try_type(model_type: str, hardware: Hardware | None = None) -> Outcome:
    """Make, save, load and run one, on the CPU package if `hardware` is None."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            module = _random_model(model_type)
            _save(module, tiny_config(model_type), folder)
        except Exception as error:
            return Outcome(model_type, NO_MODEL, _line(error))
        try:
            executor = ModelExecutor.create(_settings(Path(folder)), hardware)
        except (TrunnionError, ValueError) as error:
            return Outcome(model_type, REFUSED, _line(error))
        except Exception as error:
            return Outcome(model_type, WRONG, f"neither taken nor refused: {_line(error)}")
    model = executor.model
    how = f"adapter {model.way.name}" if isinstance(model, AdaptedCausalLM) else "port"
    try:
        error = _largest_error(module, executor)
        if hardware is not None:
            how = f"{how}, {_replays(executor)}"
    except Exception as error:
        return Outcome(model_type, WRONG, f"after it was accepted: {_line(error)}")
    finally:
        executor.close()
    return Outcome(model_type, PASSED if error <= TOLERANCE else WRONG, f"{how}, error {error:.1e}")


def _replays(executor: ModelExecutor) -> str:
    """How many steps were graphs; AssertionError if some were not, on a package that captures."""
    counters = executor.counters
    if getattr(executor.model, "why_eager", None) is not None:
        return "eager"
    assert not counters.eager, f"steps ran eager: {dict(counters.eager)}"
    return f"{counters.replays} replays"


def simulated(execution: str) -> Hardware:
    """The capture simulator, going no further than `execution`; it is not installed, and lies beside its tests."""
    if str(SIMULATORS) not in sys.path:
        sys.path.insert(0, str(SIMULATORS))
    from trunnion_sim.hardware import SimHardware

    return SimHardware(Mode(execution))


def _random_model(model_type: str) -> PreTrainedModel:
    config = tiny_config(model_type)
    with torch.device("meta"):
        size = sum(each.numel() for each in AutoModelForCausalLM.from_config(config).parameters())
    if size > LARGEST:
        raise ValueError(f"{size:,} parameters are left of its default configuration, more than {LARGEST:,}")
    torch.manual_seed(11)
    module = AutoModelForCausalLM.from_config(tiny_config(model_type), attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            # Weights of one size would leave attention flat, and norms without a trace.
            parameter.normal_(1.0 if "norm" in name and parameter.dim() == 1 else 0.0, 0.1)
    ids = torch.arange(LENGTHS[0])[None] % module.config.get_text_config(decoder=True).vocab_size
    assert module(input_ids=ids, use_cache=False).logits.isfinite().all(), "its own logits are not finite"
    return module


def _save(module: PreTrainedModel, config: PretrainedConfig, folder: str) -> None:
    """As published: with the configuration that names the model type, even if the module holds a part of it."""
    module.save_pretrained(folder)
    if type(config) is not type(module.config):
        config.architectures = [type(module).__name__]
        config.save_pretrained(folder)


def _settings(folder: Path) -> ExecutorConfig:
    limits = Limits(max_num_tokens=32, max_num_seqs=2, max_model_len=32, max_logits_rows=32, block_size=4)
    return ExecutorConfig(model=folder, hardware="cpu", limits=limits, dtype="float32")


@torch.inference_mode()
def _largest_error(module: PreTrainedModel, executor: ModelExecutor) -> float:
    generator = random.Random(3)
    sequences = [[generator.randrange(3, executor.vocab_size) for _ in range(length)] for length in LENGTHS]
    truth = [module(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float() for ids in sequences]
    host = HostDouble(executor, 40, executor.device)
    requests = [host.add(ids) for ids in sequences]
    done, errors = [0, 0], []
    sizes = iter(CHUNKS * 8)
    while live := [index for index in (0, 1) if done[index] < LENGTHS[index]]:
        takes = [min(FIRST[i] if not done[i] else next(sizes), LENGTHS[i] - done[i]) for i in live]
        rows = host.step([Chunk(requests[i], take) for i, take in zip(live, takes, strict=True)])
        for index, take, row in zip(live, takes, rows, strict=True):
            wanted = truth[index][done[index] : done[index] + take]
            errors.append((row.float() - wanted).abs().max() / max(1.0, float(truth[index].abs().max())))
            done[index] += take
    return float(torch.stack(errors).max())


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[-1000:]}"


def _hardware(name: str, execution: str | None) -> Hardware | None:
    """None: the CPU package by itself."""
    if name == SIM:
        return simulated(execution or Mode.FULL.value)
    found = registry.hardware(name)
    if execution is not None:
        return found.limited_to(Mode(execution))
    return None if name == "cpu" else found


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 1 if a model that was accepted computes something else than transformers."""
    parser = argparse.ArgumentParser(prog="adapter-sweep", description=__doc__)
    parser.add_argument("--only", action="append", metavar="TYPE", help="this model type; may be repeated")
    parser.add_argument("--quick", action="store_true", help=f"these model types: {', '.join(QUICK)}")
    parser.add_argument("--hardware", default="cpu", metavar="NAME", help="an installed package, or sim [cpu]")
    parser.add_argument("--execution", choices=[mode.value for mode in Mode], help="no further than this [its own]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes here")
    options = parser.parse_args(arguments)
    if unknown := sorted({*(options.only or ())} - MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys()):
        parser.error(f"no causal model type {', '.join(unknown)} in transformers")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        hardware = _hardware(options.hardware, options.execution)
    except ValueError as error:
        parser.error(str(error))
    types = [*(options.only or ()), *(QUICK if options.quick else ())] or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    outcomes = []
    for each in tqdm(types, desc="adapter-sweep", disable=None):
        outcomes.append(outcome := try_type(each, hardware))
        tqdm.write(f"{outcome.model_type:32} {outcome.outcome:14} {outcome.detail}")
    counts = Counter(outcome.outcome for outcome in outcomes)
    print(", ".join(f"{counts[name]} {name}" for name in (PASSED, REFUSED, WRONG, NO_MODEL)))
    if options.json:
        options.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1) + "\n")
    return int(counts[WRONG] > 0)


if __name__ == "__main__":
    sys.exit(main())
