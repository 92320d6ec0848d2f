"""Memory that FlashInfer's wrappers plan and merge in: shared where one step cannot need it twice."""

from __future__ import annotations

import functools
from typing import Any

import torch

from trunnion_cuda.segments import Segments

FLOAT_BYTES = 128 << 20
"""Partial results of split keys, used while a layer runs: one per device serves every group and layer."""
INT_BYTES = 8 << 20
"""The schedule of one planned wrapper; as much again, twice, on the host."""
STEPS_IN_FLIGHT = 2
"""The executor's buffer sets: when a step is planned, the one two before it is done."""


@functools.cache
def float_workspace(device: torch.device) -> torch.Tensor:
    """The device's one buffer of partial results; FlashInfer wants it zeroed for its first use."""
    return torch.zeros(FLOAT_BYTES, dtype=torch.uint8, device=device)


class PlanMemory:
    """What a planned wrapper needs until its step is done; wrappers that are never planned together share one.

    Graphs hold the address of the device's part, so that it stays. The host's parts alternate: a plan is written while
    the copy of the one before it may still wait in the stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._device_part = torch.zeros(INT_BYTES, dtype=torch.uint8, device=device)
        self._host_parts = [torch.zeros(INT_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(STEPS_IN_FLIGHT)]
        self._copies: list[dict[Any, dict[str, torch.Tensor]]] = [{} for _ in range(STEPS_IN_FLIGHT)]
        self._turn = 0

    def next_step(self) -> None:
        """From here on plans are those of another step."""
        self._turn = (self._turn + 1) % STEPS_IN_FLIGHT

    @property
    def parts(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The device's part, and the host's part of this step."""
        return self._device_part, self._host_parts[self._turn]

    def lend_to(self, wrapper: Any) -> None:
        """Let the wrapper plan here. It has no public way to share or alternate these buffers."""
        wrapper._int_workspace_buffer, wrapper._pin_memory_int_workspace_buffer = self.parts

    def host_copies(self, segments: Segments, key: Any) -> dict[str, torch.Tensor]:
        """Pinned copies of a graph's segments, at the same addresses for the same key: uploads may wait."""
        found = self._copies[self._turn].setdefault(key, {})
        result = {}
        for name in ("qo_indptr", "kv_indptr", "kv_indices", "last_page_len"):
            values = getattr(segments, name)
            if values is None:
                continue
            if name not in found or len(found[name]) < len(values):
                found[name] = torch.zeros(len(values), dtype=torch.int32, pin_memory=True)
            result[name] = found[name][: len(values)]
            result[name].numpy()[:] = values
        return result
