"""Sampling and length options: the user's where given, else what the model's generation_config.json asks for."""

from __future__ import annotations

from dataclasses import dataclass

from trunnion.cli.host import Sampling
from trunnion.cli.messages import UsageProblem
from trunnion.text.model_text import SamplingDefaults

DEFAULT_MAX_MODEL_LEN = 4096
BLOCK_SIZE = 16
LARGEST = 2**31 - 1
"""Counts cross into C++ in 32 bits."""


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """As given on the command line; None means the model's default."""

    max_tokens: int
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check("--max-tokens", self.max_tokens, 1, LARGEST)
        _check("--temperature", self.temperature, 0, 100)
        _check("--top-k", self.top_k, 0, LARGEST)
        _check("--top-p", self.top_p, 0, 1, open_low=True)
        _check("--min-p", self.min_p, 0, 1)
        _check("--seed", self.seed, 0, 2**64 - 1)
        if "" in self.stop:
            raise UsageProblem("--stop must not be empty")

    def resolve(self, defaults: SamplingDefaults) -> Sampling:
        """The request's sampling."""

        def pick(given: float | None, default: float | None, off: float) -> float:
            return given if given is not None else default if default is not None else off

        return Sampling(
            max_tokens=self.max_tokens,
            temperature=pick(self.temperature, defaults.temperature, 0.0),
            top_k=int(pick(self.top_k, defaults.top_k, 0)),
            top_p=pick(self.top_p, defaults.top_p, 1.0),
            min_p=pick(self.min_p, defaults.min_p, 0.0),
            seed=self.seed,
        )


def resolve_max_model_len(asked: int | None, model_limit: int | None) -> int:
    """Tokens per request: as asked, else the model's limit or 4096, whichever is less."""
    if asked is None:
        return min(model_limit or DEFAULT_MAX_MODEL_LEN, DEFAULT_MAX_MODEL_LEN)
    _check("--max-model-len", asked, 2, LARGEST)
    if model_limit is not None and asked > model_limit:
        raise UsageProblem(f"--max-model-len {asked} is above the model's limit of {model_limit}")
    return asked


def blocks_needed(lengths: list[int], max_num_seqs: int) -> int:
    """Blocks with which the `max_num_seqs` longest of these requests run together, block 0 included."""
    longest = sorted(lengths, reverse=True)[:max_num_seqs]
    return 1 + sum(-(-length // BLOCK_SIZE) + 1 for length in longest)


def _check(name: str, value: float | None, low: float, high: float, *, open_low: bool = False) -> None:
    if value is None:
        return
    above = value > low if open_low else value >= low
    if above and value <= high:
        return
    if high == LARGEST and not above:
        raise UsageProblem(f"{name} must be at least {low}, got {value}")
    raise UsageProblem(
        f"{name} must be {'above' if open_low else 'from'} {low} {'up ' if open_low else ''}to {high}, got {value}"
    )
