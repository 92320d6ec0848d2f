"""Batches for one group without a model: random requests, shuffled blocks, poisoned caches, junk past the counts."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from trunnion.contract import BatchCounts, BatchTensors, CacheKind, GroupTensors, LayerCaches
from trunnion.interfaces.attention import Group, GroupSpec, StepInputs
from trunnion.interfaces.hardware import Hardware

JUNK = -987_654_321


@dataclass(frozen=True)
class Request:
    """`context` tokens are cached, `query` tokens come with this step; the last `unwritten` are placeholders."""

    context: int
    query: int
    unwritten: int = 0

    @property
    def seq_len(self) -> int:
        return self.context + self.query


@dataclass(frozen=True)
class Shape:
    """One step: decodes first, `decode_query_len` tokens each; `padding` rows of tokens follow the last real one."""

    name: str
    requests: tuple[Request, ...]
    num_decodes: int = 0
    decode_query_len: int = 1
    padding: int = 0
    max_decode_query_len: int = 0
    """Tokens of the longest decode there may be, and states per request; 0: of this step's decodes."""
    levels: tuple[tuple[int, int], ...] = ()
    """Ranges of neighbours as (requests, leading blocks that they share), told to the group: together all requests."""

    @property
    def num_states(self) -> int:
        """States per request of a recurrent group."""
        return max(self.decode_query_len, self.max_decode_query_len)

    @property
    def num_tokens(self) -> int:
        return sum(request.query for request in self.requests)

    @property
    def real_rows(self) -> torch.Tensor:
        """Rows whose output is defined."""
        rows: list[int] = []
        first = 0
        for request in self.requests:
            rows.extend(range(first, first + request.query - request.unwritten))
            first += request.query
        return torch.tensor(rows, dtype=torch.int64)


SHAPES = (
    Shape("prefill", (Request(0, 7),)),
    Shape("prefill-ragged", (Request(0, 1), Request(0, 13), Request(0, 4))),
    Shape("chunk", (Request(5, 6), Request(8, 1), Request(1, 9))),
    Shape("decode", tuple(Request(length, 1) for length in (0, 3, 4, 5, 17, 1)), num_decodes=6),
    Shape("decode-far-apart", (Request(40, 1), Request(1, 1), Request(39, 1)), num_decodes=3),
    Shape("verify", (Request(6, 3), Request(11, 3)), num_decodes=2, decode_query_len=3),
    Shape("mixed", (Request(9, 1), Request(2, 1), Request(0, 5), Request(7, 4)), num_decodes=2),
    Shape(
        "verify-short-drafts",
        (Request(6, 3, unwritten=2), Request(11, 3), Request(5, 3, unwritten=1)),
        num_decodes=3,
        decode_query_len=3,
    ),
    Shape(
        "verify-mixed",
        (Request(6, 3), Request(0, 3), Request(11, 3), Request(9, 5), Request(0, 4), Request(5, 1)),
        num_decodes=3,
        decode_query_len=3,
    ),
    Shape(
        "decode-after-verify",
        (Request(9, 1), Request(0, 1), Request(4, 1), Request(7, 5)),
        num_decodes=3,
        max_decode_query_len=4,
    ),
    Shape("chunk-short", (Request(6, 4, unwritten=1), Request(3, 2))),
    Shape("padded", (Request(9, 1), Request(4, 1)), num_decodes=2, padding=3),
    Shape("empty", ()),
    Shape(
        "levels-decode",
        tuple(Request(length, 1) for length in (8, 17, 9, 8, 5, 3, 30, 24)),
        num_decodes=8,
        levels=((4, 2), (2, 0), (2, 6)),
    ),
    Shape(
        "levels-mixed",
        (Request(9, 1), Request(2, 1), Request(12, 7), Request(14, 1), Request(12, 4), Request(0, 5)),
        num_decodes=2,
        levels=((1, 2), (1, 0), (3, 3), (1, 0)),
    ),
    Shape(
        "levels-verify",
        (Request(8, 3), Request(11, 3, unwritten=1), Request(4, 3, unwritten=2)),
        num_decodes=3,
        decode_query_len=3,
        levels=((3, 1),),
    ),
    Shape("levels-padded", (Request(9, 1), Request(4, 1)), num_decodes=2, padding=3, levels=((2, 1),)),
)


class GroupRig:
    """A group with caches of its own, and the steps it is given."""

    def __init__(self, group_class: type[Group], spec: GroupSpec, device: torch.device, block_size: int = 4) -> None:
        self.spec = spec
        self.device = device
        self.block_size = block_size
        self.num_blocks = 64
        self.group = group_class(spec, 2, device)
        tensors = group_class.cache_tensors(spec, block_size)
        self.caches: LayerCaches = [
            {
                tensor.name: torch.full((self.num_blocks, *tensor.shape), torch.nan, dtype=tensor.dtype, device=device)
                for tensor in tensors
            }
            for _ in range(2)
        ]
        self.group.bind_kv_cache(0, self.caches)

    def fill_like(self, other: GroupRig) -> None:
        """The same cache contents as `other`, NaN included."""
        for own, theirs in zip(self.caches, other.caches, strict=True):
            rows = same_tensors(theirs, own)
            for name, tensor in own.items():
                tensor.copy_(rows[name])


def same_tensors(layer: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The cache tensors of a layer, cut as `other` has them.

    Groups may keep the parts of a row in tensors of their own, which follow each other as the parts do.
    """
    if layer.keys() == other.keys():
        return layer
    rows = torch.cat([tensor.cpu() for tensor in layer.values()], dim=-1)
    return dict(zip(other, rows.split([tensor.shape[-1] for tensor in other.values()], dim=-1), strict=True))


def block_size_for(hardware: Hardware, wanted: int = 4) -> int:
    """`wanted` tokens, rounded up to what the package's blocks can hold."""
    return -(-wanted // hardware.block_size_multiple) * hardware.block_size_multiple


def build_step(spec: GroupSpec, shape: Shape, block_size: int, num_blocks: int, seed: int) -> StepInputs:
    """The step as the host would build it; on the host."""
    rng = random.Random(seed)
    free = list(range(1, num_blocks))
    rng.shuffle(free)
    tables, starts, slots = [], [], []
    levels = _levels(shape, block_size)
    shared = _shared_blocks(spec, levels, free) or [[] for _ in shape.requests]
    for request, leading in zip(shape.requests, shared, strict=True):
        start = 0
        if spec.window is not None:
            start = max(0, request.context - spec.window + 1) // block_size * block_size
        count = -(-(request.seq_len - start) // block_size)
        blocks = [*leading, *(free.pop() for _ in range(count - len(leading)))]
        tables.append(blocks)
        starts.append(start)
        for position in range(request.context, request.seq_len):
            block, offset = divmod(position - start, block_size)
            written = position < request.seq_len - request.unwritten
            slots.append(blocks[block] * block_size + offset if written else -1)
    width = max((len(blocks) for blocks in tables), default=0) + 3
    counts = BatchCounts(
        num_tokens=shape.num_tokens,
        num_reqs=len(shape.requests),
        num_logits=0,
        num_decodes=shape.num_decodes,
        decode_query_len=shape.decode_query_len,
        max_query_len=max((request.query for request in shape.requests), default=0),
        max_seq_len=max((request.seq_len for request in shape.requests), default=0),
        num_prefixes=len(shape.levels),
    )
    bounds = [0]
    for request in shape.requests:
        bounds.append(bounds[-1] + request.query)
    if spec.kind is CacheKind.RECURRENT:
        states = _int32(rng.sample(range(1, num_blocks), len(shape.requests) * shape.num_states))
        accepted = [rng.randint(1, shape.num_states) if request.context else JUNK for request in shape.requests]
        group = GroupTensors(
            state_indices=states.view(-1, shape.num_states),
            has_initial_state=_int32([int(request.context > 0) for request in shape.requests]),
            num_accepted=_int32(accepted) if shape.num_states > 1 else None,
        )
    else:
        group = GroupTensors(
            slot_mapping=_int32(slots),
            block_table=_int32([blocks + [0] * (width - len(blocks)) for blocks in tables]).view(-1, width),
            kv_start=_int32(starts),
            kv_indptr=_int32(_running_sum([len(blocks) for blocks in tables])),
            kv_indices=_int32([block for blocks in tables for block in blocks] + [JUNK] * 5),
            kv_last_page_len=_int32(
                [
                    (request.seq_len - start - 1) % block_size + 1
                    for request, start in zip(shape.requests, starts, strict=True)
                ]
            ),
        )
    tensors = BatchTensors(
        input_ids=_int32([0] * shape.num_tokens),
        positions=_int32([p for request in shape.requests for p in range(request.context, request.seq_len)]),
        query_start_loc=_int32(bounds),
        seq_lens=_int32([request.seq_len for request in shape.requests]),
        logits_indices=_int32([]),
        groups=(group,),
    )
    if shape.levels:
        tensors.prefix_indptr = _int32(_running_sum([count for count, _ in levels]))
        tensors.prefix_lens = _int32([blocks * block_size for _, blocks in levels])
    return StepInputs(counts, tensors, tensors)


def _levels(shape: Shape, block_size: int) -> list[tuple[int, int]]:
    """Ranges of neighbours and the leading blocks that they share, no more than all of them have cached."""
    found, first = [], 0
    for count, num_blocks in shape.levels:
        cached = min(request.context for request in shape.requests[first : first + count]) // block_size
        found.append((count, min(num_blocks, cached)))
        first += count
    return found


def _shared_blocks(spec: GroupSpec, levels: list[tuple[int, int]], free: list[int]) -> list[list[int]]:
    """Per request: the leading blocks that it shares with its range, of a group that sees everything."""
    leading = []
    for count, num_blocks in levels:
        blocks = [free.pop() for _ in range(num_blocks)] if spec.kind in (CacheKind.FULL, CacheKind.MLA) else []
        leading += [blocks] * count
    return leading


def to_device(step: StepInputs, device: torch.device) -> StepInputs:
    """The same step with a device copy where the device is not the host."""
    if device.type == "cpu":
        return step
    host = step.host
    group = host.groups[0]
    moved = GroupTensors(
        **{
            name: None if getattr(group, name) is None else getattr(group, name).to(device)
            for name in GroupTensors.__dataclass_fields__
        }
    )
    tensors = BatchTensors(
        **{
            name: getattr(host, name).to(device)
            for name in BatchTensors.__dataclass_fields__
            if name not in ("groups", "prefix_indptr", "prefix_lens") and getattr(host, name) is not None
        },
        groups=(moved,),
    )
    return StepInputs(step.counts, host, tensors)


def live_rows(spec: GroupSpec, shape: Shape, step: StepInputs, block_size: int) -> torch.Tensor:
    """Cache rows (states for a recurrent group) that hold what earlier steps left: all that a group may read."""
    group = step.host.groups[0]
    if spec.kind is CacheKind.RECURRENT:
        assert group.state_indices is not None and group.has_initial_state is not None
        continues = group.has_initial_state == 1
        if group.num_accepted is None:
            return group.state_indices[continues, 0].long()
        return group.state_indices[continues, group.num_accepted[continues].long() - 1].long()
    assert group.block_table is not None and group.kv_start is not None
    rows = []
    for index, request in enumerate(shape.requests):
        start = int(group.kv_start[index])
        for position in range(start, request.context):
            block, offset = divmod(position - start, block_size)
            rows.append(int(group.block_table[index, block]) * block_size + offset)
    return torch.tensor(rows, dtype=torch.int64)


def _running_sum(values: list[int]) -> list[int]:
    total, sums = 0, [0]
    for value in values:
        total += value
        sums.append(total)
    return sums


def _int32(values: list[int] | list[list[int]]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)
