"""All that a command needs to know of a model beside its weights: tokenizer, sampling defaults, lengths, end tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from trunnion import registry
from trunnion.errors import ConfigError
from trunnion.hf_config import eos_token_ids, read_config, read_generation_config
from trunnion.pooling import read_pooling
from trunnion.text.gguf_metadata import read_gguf_metadata
from trunnion.text.sample_model import SAMPLE_MODELS, find_sample_model
from trunnion.text.tokenizer import TextTokenizer, gguf_tokenizer, load_folder_tokenizer

CLASSIFIER = "ForSequenceClassification"
"""How transformers' names of classifiers end."""
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_NOT_APPLIED = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "num_beams": 1,
    "encoder_repetition_penalty": 1.0,
}
"""Fields of generation_config.json that this host does not apply, with the value that asks for nothing."""


class Task(Enum):
    """What a model is for; the value says how its folder tells, and with which command it runs."""

    GENERATE = "is a language model (no modules.json says how to pool): use trunnion generate or chat"
    EMBED = "pools embeddings (modules.json): use trunnion embed"
    SCORE = "is a classifier (its architecture): use trunnion rerank"


@dataclass(frozen=True, kw_only=True)
class SamplingDefaults:
    """What a model's generation_config.json asks for; temperature 0 is greedy, None is off."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    not_applied: Mapping[str, Any] | None = None
    """Fields asked for and not applied; a command says so."""


@dataclass(frozen=True, kw_only=True)
class ModelText:
    """`end_ids`: any of them ends an output."""

    path: Path
    tokenizer: TextTokenizer
    sampling: SamplingDefaults
    end_ids: tuple[int, ...]
    max_position: int | None
    """Longest sequence the model was made for."""
    task: Task = Task.GENERATE


def resolve_model(name: str) -> Path:
    """The folder or GGUF file that `--model` means: a path, or the alias of a sample model.

    Raises:
        ConfigError: nothing there, or nothing that can be loaded, with the remedy.
    """
    path = Path(name).expanduser()
    if not path.exists() and name in SAMPLE_MODELS:
        return find_sample_model(name)
    if not name or not path.exists():
        raise ConfigError(
            f"model {name!r} does not exist; give a folder with config.json and *.safetensors, a .gguf file, "
            f"or one of: {', '.join(SAMPLE_MODELS)}"
        )
    if path.is_file():
        _check_file(path)
    else:
        _check_folder(path)
    return path


def load_model_text(path: Path, port: Path | None = None) -> ModelText:
    """Read a resolved model's text side; weights are not touched. `port` may hold its family."""
    return _from_gguf(path) if path.is_file() else _from_folder(path, port)


def _check_file(path: Path) -> None:
    if path.suffix in _PICKLE_SUFFIXES:
        raise ConfigError(_pickle_refusal(path, [path.name]))
    if path.suffix != ".gguf":
        raise ConfigError(f"{path} is neither a folder nor a .gguf file")


def _check_folder(path: Path) -> None:
    names = sorted(file.name for file in path.iterdir())
    weights = [name for name in names if name.endswith(".safetensors")]
    pickles = [name for name in names if name.endswith(_PICKLE_SUFFIXES)]
    if not weights and pickles:
        raise ConfigError(_pickle_refusal(path, pickles))
    ggufs = [name for name in names if name.endswith(".gguf")]
    if not weights and ggufs:
        raise ConfigError(f"{path} holds GGUF files; name one of them: {', '.join(ggufs)}")
    if "config.json" not in names:
        raise ConfigError(f"{path} has no config.json")
    if not weights:
        raise ConfigError(f"{path} has no *.safetensors")


def _pickle_refusal(path: Path, names: list[str]) -> str:
    return (
        f"{path} holds its weights as pickle ({', '.join(names[:3])}), which can run any code when read; convert it "
        "where you trust it: AutoModelForCausalLM.from_pretrained(...).save_pretrained(...) of transformers writes "
        "*.safetensors"
    )


def _from_folder(path: Path, port: Path | None) -> ModelText:
    tokenizer = load_folder_tokenizer(path)
    config = read_config(path)
    generation = read_generation_config(path)
    own = tokenizer.token_id("eos_token")
    return ModelText(
        path=path,
        tokenizer=tokenizer,
        sampling=_sampling(generation),
        end_ids=eos_token_ids(config, generation) or (() if own is None else (own,)),
        max_position=registry.max_positions(config, port=port),
        task=_task(path, config),
    )


def _from_gguf(path: Path) -> ModelText:
    metadata = read_gguf_metadata(path)
    keys = ("eos", "eot", "eom")
    ends: Iterable[int | None] = (metadata.get(f"tokenizer.ggml.{key}_token_id") for key in keys)
    return ModelText(
        path=path,
        tokenizer=gguf_tokenizer(metadata),
        sampling=SamplingDefaults(),
        end_ids=tuple(dict.fromkeys(id for id in ends if id is not None)),
        max_position=metadata.get(f"{metadata.get('general.architecture')}.context_length"),
    )


def _task(path: Path, config: Mapping[str, Any]) -> Task:
    if read_pooling(path) is not None:
        return Task.EMBED
    names = config.get("architectures") or ()
    return Task.SCORE if any(str(name).endswith(CLASSIFIER) for name in names) else Task.GENERATE


def _sampling(generation: Mapping[str, Any]) -> SamplingDefaults:
    asked = {key: generation[key] for key, off in _NOT_APPLIED.items() if generation.get(key) not in (None, off)}
    if not generation.get("do_sample"):
        return SamplingDefaults(not_applied=asked or None)
    temperature = _number(generation, "temperature")
    # transformers samples from the best 50 unless the file says otherwise
    top_k = _number({"top_k": 50, **generation}, "top_k")
    return SamplingDefaults(
        temperature=1.0 if temperature is None else temperature,
        top_k=None if top_k is None else int(top_k),
        top_p=_number(generation, "top_p"),
        min_p=_number(generation, "min_p"),
        not_applied=asked or None,
    )


def _number(generation: Mapping[str, Any], key: str) -> float | None:
    value = generation.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"generation_config.json: {key} must be a number, got {value!r}")
    return float(value)
