"""Holds an adapted model against the module as transformers runs it: the same weights, a few tokens, at load time.

Two requests in one row of tokens, then a step that mixes a decode with a chunk, then decodes, over blocks that lie
in no order: what a model does with masks, positions and state shows here, whatever its source says.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trunnion.errors import UnsupportedError
from trunnion.reference import ReferenceHardware
from trunnion.runner.bare_steps import BareSteps, Part

if TYPE_CHECKING:
    from trunnion.adapter.model import AdaptedCausalLM

LENGTHS = (13, 8)
STEPS = (
    (Part(0, 0, 7), Part(1, 0, 5)),
    (Part(1, 5, 6), Part(0, 7, 11)),
    (Part(1, 6, 7), Part(0, 11, 12)),
    (Part(0, 12, 13), Part(1, 7, 8)),
)
BLOCK_SIZE = 4
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.05, torch.float16: 0.02}
"""Largest root mean square of the logits' errors, relative to that of the logits."""
MUCH_WORSE = 3.0
ROUNDING = 1e-6
"""Smaller errors are not told apart."""


@torch.inference_mode()
def settle(model: AdaptedCausalLM, device: torch.device) -> float:
    """Leave `model` in the first of its ways that computes what transformers does -> the relative error of the logits.

    Raises:
        UnsupportedError: there is none; the text says what each does.
    """
    generator = torch.Generator().manual_seed(5)
    requests = [torch.randint(0, model.config.vocab_size, (length,), generator=generator) for length in LENGTHS]
    with _in_one_line(), model.as_published() as module:
        truth = [module(input_ids=ids[None].to(module.device), use_cache=False).logits[0].float() for ids in requests]
    test = _Test(model, device, requests, torch.cat(truth).to(device))
    reasons: list[str] = []
    while True:
        try:
            return test.together(test.in_turns()) if model.way.keeps_states else test.run()
        except UnsupportedError as error:
            reasons.append(f"{model.way.name}: {error}")
        if model.way.num_latent:
            model.use(dataclasses.replace(model.way, expands=True, why_not_before=reasons[-1]))
            continue
        try:
            model.use(dataclasses.replace(model.next_way(), why_not_before=reasons[-1]))
        except UnsupportedError as error:
            raise UnsupportedError("; ".join([*reasons, str(error)])) from None


@contextmanager
def _in_one_line() -> Iterator[None]:
    try:
        yield
    except UnsupportedError:
        raise
    except Exception as error:
        # The module is not ours: its words are the reason.
        raise UnsupportedError(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error


@dataclass(frozen=True)
class _Test:
    model: AdaptedCausalLM
    device: torch.device
    requests: Sequence[torch.Tensor]
    truth: torch.Tensor

    def run(self) -> float:
        """The error; UnsupportedError if it is too large."""
        with _in_one_line():
            found = _run(self.model, self.requests, self.device)
        error = float((found - self.truth).square().mean().sqrt() / self.truth.square().mean().sqrt())
        allowed = TOLERANCE[next(self.model.module.parameters()).dtype]
        if not error <= allowed:
            raise UnsupportedError(
                f"the self-test is off by {error:.1e} of the logits that transformers computes, allowed {allowed:.0e}"
            )
        return error

    def in_turns(self) -> float:
        """As `run`, of a way that keeps states: a request goes on in chunks where that is as right as token by token.

        Some scans of transformers begin a chunk without the state before it.
        """
        chunks = self.model.way
        try:
            error = self.run()
        except UnsupportedError:
            error = math.inf
        self.model.use(dataclasses.replace(chunks, one_by_one=True))
        one_by_one = self.run()
        if error > MUCH_WORSE * max(one_by_one, ROUNDING):
            return one_by_one
        self.model.use(chunks)
        return error

    def together(self, apart: float) -> float:
        """Have requests decode in one call where that is as right as each by itself, whose error is `apart`."""
        alone = self.model.way
        if not alone.can_batch:
            return apart
        self.model.use(dataclasses.replace(alone, batched=True))
        try:
            error = self.run()
        except UnsupportedError:
            error = math.inf
        if error <= MUCH_WORSE * max(apart, ROUNDING):
            return error
        self.model.use(alone)
        return apart


def _run(model: AdaptedCausalLM, requests: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Logits of all tokens, request by request, on reference groups of the test's own."""
    token_ids = [request.tolist() for request in requests]
    bare = BareSteps(model, ReferenceHardware(), device, token_ids, block_size=BLOCK_SIZE)
    rows: dict[tuple[int, int], torch.Tensor] = {}
    for parts in STEPS:
        _, logits = bare.run(parts)
        places = [(part.request, token) for part in parts for token in range(part.first, part.end)]
        rows |= dict(zip(places, logits.float(), strict=True))
    return torch.stack([rows[place] for place in sorted(rows)])
