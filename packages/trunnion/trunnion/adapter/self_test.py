"""Holds an adapted model against the module as transformers runs it: the same weights, a few tokens, at load time.

Two requests in one row of tokens, then a step that mixes a decode with a chunk, over blocks that lie in no order: what
a model does with masks, positions and state shows here, whatever its source says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from trunnion.errors import UnsupportedError
from trunnion.reference import ReferenceHardware
from trunnion.runner.bare_steps import BareSteps, Part

if TYPE_CHECKING:
    from trunnion.adapter.model import AdaptedCausalLM

LENGTHS = (11, 6)
STEPS = ((Part(0, 0, 7), Part(1, 0, 5)), (Part(1, 5, 6), Part(0, 7, 11)))
BLOCK_SIZE = 4
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.05, torch.float16: 0.02}
"""Largest root mean square of the logits' errors, relative to that of the logits."""


@torch.inference_mode()
def self_test(model: AdaptedCausalLM, device: torch.device) -> float:
    """The relative error of the logits.

    Raises:
        UnsupportedError: it is too large, or one of the two cannot run.
    """
    generator = torch.Generator().manual_seed(5)
    requests = [torch.randint(0, model.config.vocab_size, (length,), generator=generator) for length in LENGTHS]
    try:
        with model.as_published() as module:
            truth = [module(input_ids=ids[None].to(device), use_cache=False).logits[0].float() for ids in requests]
        found = _run(model, requests, device)
    except UnsupportedError:
        raise
    except Exception as error:
        # The module is not ours: its words are the reason.
        raise UnsupportedError(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
    wanted = torch.cat(truth)
    error = float((found - wanted).square().mean().sqrt() / wanted.square().mean().sqrt())
    allowed = TOLERANCE[next(model.module.parameters()).dtype]
    if not error <= allowed:
        raise UnsupportedError(
            f"the self-test is off by {error:.1e} of the logits that transformers computes, allowed {allowed:.0e}"
        )
    return error


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
