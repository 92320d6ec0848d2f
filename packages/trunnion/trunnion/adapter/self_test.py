"""Holds an adapted model against the module as transformers runs it: the same weights, a few tokens, at load time.

Two requests in one row of tokens, then a step that mixes a decode with a chunk, over blocks that lie in no order: what
a model does with masks, positions and state shows here, whatever its source says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from trunnion.contract import BatchCounts, BatchTensors, GroupTensors
from trunnion.errors import UnsupportedError
from trunnion.interfaces.attention import GroupSpec, StepInputs
from trunnion.layers.attention import Attention
from trunnion.reference import ReferenceHardware
from trunnion.runner.step_tensors import on_device

if TYPE_CHECKING:
    from trunnion.adapter.model import AdaptedCausalLM

LENGTHS = (11, 6)
STEPS = (((0, 0, 7), (1, 0, 5)), ((1, 5, 6), (0, 7, 11)))
"""Of each step the requests in order: which, from token, to token."""
BLOCK_SIZE = 4
BLOCKS = ((5, 2, 7), (3, 6, 0))
"""Of each request; block 0 is nobody's."""
NUM_BLOCKS = 8
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
    with _bound(model, device) as groups:
        rows: dict[tuple[int, int], torch.Tensor] = {}
        for parts in STEPS:
            step = _step(parts, requests, len(groups), device)
            for group in groups:
                group.plan(step)
            hidden = model(step.device.input_ids, step.device.positions)
            logits = model.compute_logits(hidden).float()
            places = [(request, token) for request, first, end in parts for token in range(first, end)]
            rows |= dict(zip(places, logits, strict=True))
    return torch.stack([rows[place] for place in sorted(rows)])


@contextmanager
def _bound(model: AdaptedCausalLM, device: torch.device) -> Iterator[list[Any]]:
    members: dict[GroupSpec, list[Attention]] = {}
    for layer in model.attention:
        assert isinstance(layer, Attention)
        members.setdefault(layer.spec, []).append(layer)
    groups: list[Any] = []
    for index, (spec, layers) in enumerate(members.items()):
        group_class, _ = ReferenceHardware().group_class(spec)
        group: Any = group_class(spec, len(layers), device)
        tensors = group_class.cache_tensors(spec, BLOCK_SIZE)
        group.bind_kv_cache(
            index,
            [
                {each.name: torch.zeros(NUM_BLOCKS, *each.shape, dtype=each.dtype, device=device) for each in tensors}
                for _ in layers
            ],
        )
        for row, layer in enumerate(layers):
            layer.bind(group, row)
        groups.append(group)
    yield groups


def _step(
    parts: Sequence[tuple[int, int, int]], requests: Sequence[torch.Tensor], num_groups: int, device: torch.device
) -> StepInputs:
    positions = torch.cat([torch.arange(first, end) for _, first, end in parts]).int()
    owners = [request for request, first, end in parts for _ in range(first, end)]
    slots = [
        BLOCKS[owner][position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
        for owner, position in zip(owners, positions.tolist(), strict=True)
    ]
    lengths = [end - first for _, first, end in parts]
    tables = torch.tensor([BLOCKS[request] for request, _, _ in parts], dtype=torch.int32)
    group = GroupTensors(
        slot_mapping=torch.tensor(slots, dtype=torch.int32),
        block_table=tables,
        kv_start=torch.zeros(len(parts), dtype=torch.int32),
    )
    host = BatchTensors(
        input_ids=torch.cat([requests[request][first:end] for request, first, end in parts]).int(),
        positions=positions,
        query_start_loc=torch.tensor([0, *lengths]).cumsum(0).int(),
        seq_lens=torch.tensor([end for _, _, end in parts], dtype=torch.int32),
        logits_indices=torch.arange(sum(lengths), dtype=torch.int32),
        groups=(group,) * num_groups,
    )
    counts = BatchCounts(
        num_tokens=sum(lengths),
        num_reqs=len(parts),
        num_logits=sum(lengths),
        max_query_len=max(lengths),
        max_seq_len=max(end for _, _, end in parts),
    )
    return StepInputs(counts=counts, host=host, device=on_device(host, device))
