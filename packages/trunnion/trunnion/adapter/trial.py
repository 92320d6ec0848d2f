"""A forward of the module on the meta device, where nothing is computed: which attention calls it makes, and whether
it can be flattened at all. What a module does to a request's state, or asks of a value, it does here too, and fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trunnion.adapter.attention import HANDLER, AttentionCall
from trunnion.errors import UnsupportedError

TOKENS = 7


@dataclass(frozen=True)
class Seen:
    """One attention call of a forward."""

    module: str
    facts: dict[str, Any]


def attention_calls(model: nn.Module, forward: Any) -> list[Seen]:
    """The calls of `forward(input_ids, positions)`, in order.

    Raises:
        UnsupportedError: the module cannot run many requests in one row of tokens; the text says what it does.
    """
    seen: list[Seen] = []
    with _handlers(model, seen):
        ids, positions = (torch.zeros(TOKENS, dtype=torch.int32, device="meta") for _ in range(2))
        try:
            hidden = forward(ids, positions)
        except UnsupportedError:
            raise
        except Exception as error:
            # Whatever it is: the module is not ours, and its words are the reason.
            raise UnsupportedError(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
    if not seen:
        raise UnsupportedError("no layer calls attention through transformers' interface")
    if hidden.dim() != 2 or hidden.shape[0] != TOKENS:
        raise UnsupportedError(f"{TOKENS} tokens give hidden states {list(hidden.shape)}")
    return seen


@contextmanager
def _handlers(model: nn.Module, seen: list[Seen]) -> Iterator[None]:
    """Note calls instead of answering them."""
    for name, module in model.named_modules():

        def note(call: AttentionCall, name: str = name) -> torch.Tensor:
            seen.append(Seen(name, call.facts()))
            return call.query.new_empty(1, call.query.shape[2], call.query.shape[1], call.value.shape[3])

        module.__dict__[HANDLER] = note
    try:
        yield
    finally:
        for module in model.modules():
            module.__dict__.pop(HANDLER, None)
