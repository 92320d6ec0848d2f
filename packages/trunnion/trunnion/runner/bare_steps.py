"""Runs steps of a model without an executor or a host: groups and caches of its own, tensors built in Python."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trunnion.contract import BatchCounts, BatchTensors, CacheGroupSpec, CacheKind, GroupTensors, Limits
from trunnion.interfaces.attention import StepInputs
from trunnion.interfaces.break_points import BreakPoints
from trunnion.interfaces.hardware import Hardware
from trunnion.interfaces.model import CausalLM
from trunnion.runner.groups import BoundGroups
from trunnion.runner.kv_caches import allocate_caches

SEED = 5
INTS = {"dtype": torch.int32}


@dataclass(frozen=True)
class Part:
    """Tokens `first` to before `end` of a request, in one step; those before `first` were in earlier ones."""

    request: int
    first: int
    end: int


class BareSteps:
    """A loaded model, bound to `hardware`'s groups, and a few requests whose tokens are known.

    Their blocks lie in no order; a request's states are one, numbered as the request, from 1. Attention groups of the
    model are bound to these groups until somebody binds them to others.

    Args:
        requests: of each, all of its token ids.
    """

    def __init__(
        self,
        model: CausalLM,
        hardware: Hardware,
        device: torch.device,
        requests: Sequence[Sequence[int]],
        *,
        block_size: int,
        breaks: BreakPoints | None = None,
    ) -> None:
        self._model = model
        self._device = device
        self._requests = requests
        total, longest = sum(map(len, requests)), max(map(len, requests))
        limits = Limits(
            max_num_tokens=total,
            max_num_seqs=len(requests),
            max_model_len=longest,
            max_logits_rows=total,
            block_size=block_size,
        )
        self._groups = BoundGroups(model, hardware, device, limits, breaks)  # type: ignore[arg-type]
        spec = self._groups.cache_spec
        self._blocks = [_scattered(requests, group.block_size) for group in spec.groups]
        counts = [1 + sum(map(len, blocks)) for blocks in self._blocks]
        self._groups.bind_kv_cache(allocate_caches(spec, counts, device))

    def run(self, parts: Sequence[Part]) -> tuple[torch.Tensor, torch.Tensor]:
        """One eager step of them, in this order -> hidden states [T, hidden_size] and logits [T, vocab_size]."""
        step = self._step(parts)
        for group in self._groups.groups:
            group.plan(step)
        hidden = self._model.forward(step.device.input_ids, step.device.positions)
        return hidden, self._model.compute_logits(hidden)

    def _step(self, parts: Sequence[Part]) -> StepInputs:
        lengths = [part.end - part.first for part in parts]
        groups = zip(self._groups.cache_spec.groups, self._blocks, strict=True)
        host = BatchTensors(
            input_ids=torch.tensor([id for part in parts for id in self._requests[part.request][part.first : part.end]],
                                   **INTS),
            positions=self._positions(parts),
            query_start_loc=_sums(lengths),
            seq_lens=torch.tensor([part.end for part in parts], **INTS),
            logits_indices=torch.arange(sum(lengths), **INTS),
            groups=tuple(_group_tensors(group, parts, blocks) for group, blocks in groups),
        )  # fmt: skip
        counts = BatchCounts(
            num_tokens=sum(lengths),
            num_reqs=len(parts),
            num_logits=sum(lengths),
            max_query_len=max(lengths),
            max_seq_len=max(part.end for part in parts),
        )
        return StepInputs(counts=counts, host=host, device=_on_device(host, self._device))

    def _positions(self, parts: Sequence[Part]) -> torch.Tensor:
        """Of text all axes agree."""
        positions = torch.cat([torch.arange(part.first, part.end, **INTS) for part in parts])
        axes = getattr(self._model, "num_position_axes", 1)
        return positions if axes == 1 else positions[:, None].repeat(1, axes)


def _scattered(requests: Sequence[Sequence[int]], block_size: int) -> list[list[int]]:
    """Each request's blocks; block 0 is nobody's. Without a block size: one state each."""
    if not block_size:
        return [[1 + index] for index in range(len(requests))]
    counts = [-(-len(token_ids) // block_size) for token_ids in requests]
    free = list(range(1, 1 + sum(counts)))
    random.Random(SEED).shuffle(free)
    return [[free.pop() for _ in range(count)] for count in counts]


def _group_tensors(group: CacheGroupSpec, parts: Sequence[Part], blocks: Sequence[Sequence[int]]) -> GroupTensors:
    if group.kind is CacheKind.RECURRENT:
        return GroupTensors(
            state_indices=torch.tensor([blocks[part.request] for part in parts], **INTS),
            has_initial_state=torch.tensor([int(part.first > 0) for part in parts], **INTS),
            num_accepted=torch.ones(len(parts), **INTS),
        )
    size = group.block_size
    used = [blocks[part.request][: -(-part.end // size)] for part in parts]
    table = torch.zeros(len(parts), max(map(len, used)), **INTS)
    for row, own in zip(table, used, strict=True):
        row[: len(own)] = torch.tensor(own, **INTS)
    slots = [
        own[position // size] * size + position % size
        for part, own in zip(parts, used, strict=True)
        for position in range(part.first, part.end)
    ]
    return GroupTensors(
        slot_mapping=torch.tensor(slots, **INTS),
        block_table=table,
        kv_start=torch.zeros(len(parts), **INTS),
        kv_indptr=_sums([len(own) for own in used]),
        kv_indices=torch.tensor([block for own in used for block in own], **INTS),
        kv_last_page_len=torch.tensor([(part.end - 1) % size + 1 for part in parts], **INTS),
    )


def _sums(lengths: Sequence[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths], **INTS).cumsum(0).int()


def _on_device(host: BatchTensors, device: torch.device) -> BatchTensors:
    groups = tuple(GroupTensors(**_moved(group, device)) for group in host.groups)
    return BatchTensors(**{**_moved(host, device), "groups": groups})


def _moved(place: BatchTensors | GroupTensors, device: torch.device) -> dict[str, torch.Tensor]:
    found = {spec.name: getattr(place, spec.name) for spec in dataclasses.fields(place)}
    return {name: value.to(device) for name, value in found.items() if isinstance(value, torch.Tensor)}
