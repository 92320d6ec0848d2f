"""Tells a decoder where its tokens are: as an argument, or if it takes none, at the modules that look positions up."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

ARGUMENT = "position_ids"


class Positions:
    """Where the tokens of a row are, for one decoder.

    A decoder without the argument counts its row from zero, and hands that to a table or a sinusoid within: modules
    whose forward takes `position_ids` are given ours instead, while `at` lasts. A decoder without such a module either
    needs no positions or fails the self-test.
    """

    def __init__(self, decoder: nn.Module) -> None:
        self._is_argument = ARGUMENT in inspect.signature(decoder.forward).parameters
        self._first = _first_position(decoder)
        self._current: torch.Tensor | None = None
        if not self._is_argument:
            for module in decoder.modules():
                if ARGUMENT in (signature := inspect.signature(module.forward)).parameters:
                    module.register_forward_pre_hook(_Replaces(self, signature), with_kwargs=True)

    @contextmanager
    def at(self, positions: torch.Tensor, *, counts_itself: bool = False) -> Iterator[dict[str, torch.Tensor]]:
        """positions [T] -> what the decoder is called with on their account.

        Args:
            counts_itself: the decoder runs request by request, and counts from what its cache holds.
        """
        if self._is_argument:
            yield {ARGUMENT: (positions + self._first).unsqueeze(0)}
            return
        self._current = None if counts_itself else positions
        try:
            yield {}
        finally:
            self._current = None

    @property
    def current(self) -> torch.Tensor | None:
        """Of the forward that runs; None outside `at`, where the module is on its own."""
        return self._current


class _Replaces:
    """A hook before a module's forward that puts our positions in the place of its argument."""

    def __init__(self, positions: Positions, signature: inspect.Signature) -> None:
        self._positions = positions
        self._signature = signature

    def __call__(self, _: nn.Module, given: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        positions = self._positions.current
        if positions is None:
            return None
        bound = self._signature.bind(*given, **named)
        counted = bound.arguments.get(ARGUMENT)
        bound.arguments[ARGUMENT] = positions if counted is None else positions.reshape(counted.shape)
        return bound.args, bound.kwargs


def _first_position(decoder: nn.Module) -> int:
    """What the first token's position is called: tables of RoBERTa's kind begin behind the padding token's row."""
    tables = (each for name, each in decoder.named_modules() if name.endswith("position_embeddings"))
    paddings = [each.padding_idx for each in tables if isinstance(each, nn.Embedding)]
    return next((padding + 1 for padding in paddings if padding is not None), 0)
