"""A small host in Python: paged blocks of several groups, windows, states; it fills the lent buffers as a host would.

It plans nothing clever. What it adds is malice: block ids are shuffled, every cache starts as NaN (block 0 included),
freed blocks become NaN again, and what a step does not use of the lent buffers holds junk.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from trunnion.contract import (
    COUNT_FIELDS,
    BatchCounts,
    CacheGroupSpec,
    CacheKind,
    EncoderItem,
    ForwardOutput,
    GroupTensors,
)
from trunnion.runner.model_executor import ModelExecutor

from .hf_images import ReferenceImage
from .image_rows import ImageRows
from .kv_events import LayerEvents

JUNK = -987_654_321
"""What unused elements of the lent buffers hold."""


class Pool:
    """The caches and the free blocks (or states) of one cache group."""

    def __init__(self, spec: CacheGroupSpec, num_blocks: int, device: torch.device, rng: random.Random) -> None:
        self.spec = spec
        self.rng = rng
        self.caches = [
            {t.name: torch.full((num_blocks, *t.shape), torch.nan, dtype=t.dtype, device=device) for t in spec.tensors}
            for _ in spec.layers
        ]
        self.num_blocks = num_blocks
        self.users: dict[int, int] = {}
        self.reset()

    @property
    def is_recurrent(self) -> bool:
        return self.spec.kind is CacheKind.RECURRENT

    def reset(self) -> None:
        """Free everything, NaN everywhere, a new order of block ids."""
        self.users.clear()
        self.free = list(range(1, self.num_blocks))
        self.rng.shuffle(self.free)
        for layer in self.caches:
            for tensor in layer.values():
                tensor.fill_(torch.nan)

    def take(self) -> int:
        """One block for one user."""
        block = self.free.pop(self.rng.randrange(len(self.free)))
        self.users[block] = 1
        return block

    def share(self, block: int) -> int:
        """One more user of a block."""
        self.users[block] += 1
        return block

    def drop(self, block: int) -> None:
        """One user less; a block without users is poisoned and free."""
        self.users[block] -= 1
        if self.users[block]:
            return
        del self.users[block]
        self.poison(block)
        self.free.append(block)

    def poison(self, block: int) -> None:
        """NaN in all tensors of a block."""
        for layer in self.caches:
            for tensor in layer.values():
                tensor[block].fill_(torch.nan)


@dataclass
class Request:
    """A sequence of known tokens and what of it is cached."""

    tokens: Sequence[int]
    computed: int = 0
    """Tokens whose K/V lie in the cache."""
    blocks: list[list[int]] = field(default_factory=list)
    """Per group: blocks from `kv_start` on; the states of a recurrent group."""
    kv_start: list[int] = field(default_factory=list)
    column: int = 0
    """Which of its states holds what was computed last, in every recurrent group."""
    positions: torch.Tensor | None = None
    """[tokens, axes] int32; None: each token's index, on every axis."""
    images: Sequence[ReferenceImage] = ()
    token_types: Sequence[int] | None = None
    """The type of each token; None: all of type 0."""
    rows: dict[int, range] = field(default_factory=dict)
    """Per image whose tokens are under way: its rows of the encoder pool."""

    @property
    def remaining(self) -> int:
        return len(self.tokens) - self.computed

    def refuse(self, count: int) -> None:
        """Take back the last `count` tokens of a decode of several tokens."""
        assert count <= self.column or not count, "at least one token of a decode stays"
        self.computed -= count
        self.column -= count


@dataclass(frozen=True)
class Chunk:
    """`count` tokens of `request` in this step, and which of them (from the chunk's start) logits are wanted of."""

    request: Request
    count: int
    rows: tuple[int, ...] | None = None
    """None means all."""
    placeholders: int = 0
    """So many of the last tokens are none: they are computed, but have no slot."""

    @property
    def wanted(self) -> tuple[int, ...]:
        return tuple(range(self.count)) if self.rows is None else self.rows

    def advance(self, query_len: int) -> None:
        """Note that the chunk was computed, in a step whose decodes have `query_len` tokens."""
        self.request.computed += self.count
        self.request.column = self.count - 1 if self.count == query_len else 0
        self.request.refuse(self.placeholders)


class HostDouble:
    """Binds poisoned caches to an executor and drives it, one `execute_set` per step."""

    def __init__(self, executor: ModelExecutor, num_blocks: int, device: torch.device, seed: int = 0) -> None:
        self.executor = executor
        self.rng = random.Random(seed)
        self.pools = [Pool(group, num_blocks, device, self.rng) for group in executor.kv_cache_spec().groups]
        executor.bind_kv_cache([pool.caches for pool in self.pools])
        self.events = LayerEvents(executor, [pool.caches for pool in self.pools])
        self.report = executor.warm_up()
        self.image_rows = ImageRows(executor, self.rng)
        self.levels = False
        """Whether steps say which neighbours share leading blocks; see `with_levels`."""
        self.steps = 0
        self.first_rows: list[int] = []

    def reset(self, seed: int) -> None:
        """Forget every request."""
        self.rng.seed(seed)
        for pool in self.pools:
            pool.reset()
        self.image_rows.reset()

    @contextmanager
    def with_events(self) -> Iterator[None]:
        """Within, every step gives its layers events, see `LayerEvents`."""
        self.events.active = True
        try:
            yield
        finally:
            self.events.active = False

    @contextmanager
    def with_levels(self) -> Iterator[None]:
        """Within, every step says which of its neighbours share leading blocks; the executor accepts that."""
        self.levels = True
        try:
            yield
        finally:
            self.levels = False

    @property
    def has_recurrent(self) -> bool:
        return any(pool.is_recurrent for pool in self.pools)

    def add(
        self,
        tokens: Sequence[int],
        positions: torch.Tensor | None = None,
        images: Sequence[ReferenceImage] = (),
        token_types: Sequence[int] | None = None,
    ) -> Request:
        """A request with nothing cached."""
        return Request(
            tokens=tokens,
            blocks=self._take_states(),
            kv_start=[0] * len(self.pools),
            positions=positions,
            images=images,
            token_types=token_types,
        )

    def _take_states(self) -> list[list[int]]:
        """Per group: all states that a request will ever have; no blocks yet."""
        return [
            [pool.take() for _ in range(pool.spec.max_blocks_per_seq)] if pool.is_recurrent else []
            for pool in self.pools
        ]

    def fork(self, source: Request, tokens: Sequence[int], cached: int) -> Request:
        """A prefix-cache hit: the first `cached` tokens of `tokens` come from `source`'s blocks, whole ones only.

        On a full hit the last block is computed again, into a block of its own: its logits are needed.
        """
        assert list(tokens[:cached]) == list(source.tokens[:cached]), "a hit needs equal tokens"
        sizes = {pool.spec.block_size for pool in self.pools}
        cached = min(cached, (len(tokens) - 1) // max(sizes) * max(sizes))
        request = Request(tokens=tokens, computed=cached, positions=source.positions, images=source.images)
        for pool, blocks, start in zip(self.pools, source.blocks, source.kv_start, strict=True):
            assert not pool.is_recurrent and start == 0, "only a source whose blocks are all there can be shared"
            assert cached % pool.spec.block_size == 0, "only whole blocks are shared"
            request.blocks.append([pool.share(block) for block in blocks[: cached // pool.spec.block_size]])
            request.kv_start.append(0)
        return request

    def preempt(self, request: Request) -> None:
        """Take everything from a request; it starts again from its first token."""
        for pool, blocks in zip(self.pools, request.blocks, strict=True):
            for block in blocks:
                pool.drop(block)
        self.image_rows.drop_all(request)
        request.blocks = self._take_states()
        request.kv_start = [0] * len(self.pools)
        request.computed = request.column = 0

    def finish(self, request: Request) -> None:
        """Free what a request holds."""
        for pool, blocks in zip(self.pools, request.blocks, strict=True):
            for block in blocks:
                pool.drop(block)
        self.image_rows.drop_all(request)
        request.blocks = []

    def step(self, chunks: Iterable[Chunk], query_len: int = 1) -> list[torch.Tensor]:
        """One step; returns the wanted logits [rows, vocab_size] of each chunk, in the order given.

        Chunks of `query_len` tokens are decodes. `first_rows` says afterwards where the chunks lay.
        """
        given = list(chunks)
        order = sorted(range(len(given)), key=lambda index: given[index].count != query_len)
        batch = [given[index] for index in order]
        for chunk in batch:
            self._reserve(chunk)
        buffer_set = self.steps % len(self.executor.input_buffers())
        self.steps += 1
        num_logits = self._fill(buffer_set, batch, query_len)
        images = self.image_rows.items(batch)
        with self.events.step(buffer_set, sum(chunk.count for chunk in batch)):
            output = self.executor.execute_set(buffer_set, images)
            self.executor.wait(output.fence)
        lent = output.logits if output.pooled is None else output.pooled
        assert lent is not None and lent.dtype == torch.float32, "the contract's output rows are float32"
        rows = lent.cpu().clone()
        assert rows.shape[0] == num_logits, f"asked for {num_logits} rows of logits, got {rows.shape[0]}"
        starts = list(itertools.accumulate((chunk.count for chunk in batch), initial=0))
        self.first_rows = [starts[order.index(index)] for index in range(len(given))]
        for chunk in batch:
            chunk.advance(query_len)
            self.image_rows.drop_behind(chunk.request)
        parts = rows.split([len(chunk.wanted) for chunk in batch])
        return [parts[order.index(index)] for index in range(len(given))]

    def execute(self, buffer_set: int, items: Sequence[EncoderItem] = ()) -> ForwardOutput:
        """Start the step that lies in a set."""
        return self.executor.execute_set(buffer_set, items)

    def launch(self, chunks: Sequence[Chunk]) -> tuple[torch.Tensor, int]:
        """Start a step and return its output rows, which may not be there yet, and its fence.

        All chunks have the same number of tokens and stay in the order given.
        """
        for chunk in chunks:
            self._reserve(chunk)
        buffer_set = self.steps % len(self.executor.input_buffers())
        self.steps += 1
        self._fill(buffer_set, chunks, chunks[0].count)
        output = self.execute(buffer_set, self.image_rows.items(chunks))
        for chunk in chunks:
            chunk.advance(chunks[0].count)
            self.image_rows.drop_behind(chunk.request)
        rows = output.logits if output.pooled is None else output.pooled
        assert rows is not None, "an executor has one kind of output"
        return rows, output.fence

    def _reserve(self, chunk: Chunk) -> None:
        """Drop what the window has left behind, then take blocks for the chunk's tokens."""
        request = chunk.request
        end = request.computed + chunk.count
        assert end <= len(request.tokens), "a chunk goes past its request's end"
        for index, pool in enumerate(self.pools):
            if pool.is_recurrent:
                continue
            size, blocks = pool.spec.block_size, request.blocks[index]
            if pool.spec.window is not None:
                first_seen = max(0, request.computed - pool.spec.window + 1)
                while request.kv_start[index] + size <= first_seen:
                    pool.drop(blocks.pop(0))
                    request.kv_start[index] += size
            while request.kv_start[index] + len(blocks) * size < end:
                blocks.append(pool.take())

    def _fill(self, buffer_set: int, batch: Sequence[Chunk], query_len: int = 1) -> int:
        """Write the batch into the lent buffers; returns how many rows of logits it asks for."""
        buffers = self.executor.input_buffers()[buffer_set]
        buffers.storage.fill_(JUNK)
        tensors = buffers.tensors
        starts = [0]
        for chunk in batch:
            starts.append(starts[-1] + chunk.count)
        spans = [range(chunk.request.computed, chunk.request.computed + chunk.count) for chunk in batch]
        _write(tensors.input_ids, [c.request.tokens[p] for c, span in zip(batch, spans, strict=True) for p in span])
        axes = self.executor.num_position_axes
        _write(
            tensors.positions,
            [position for c, span in zip(batch, spans, strict=True) for position in _positions(c.request, span, axes)],
        )
        if tensors.encoder_indices is not None:
            self.image_rows.reserve(batch)
            _write(tensors.encoder_indices, self.image_rows.indices(batch))
        _write(tensors.query_start_loc, starts)
        _write(tensors.seq_lens, [span.stop for span in spans])
        wanted = [start + row for start, chunk in zip(starts, batch, strict=False) for row in chunk.wanted]
        _write(tensors.logits_indices, wanted)
        for index, pool in enumerate(self.pools):
            if pool.is_recurrent:
                self._fill_states(tensors.groups[index], index, batch)
            else:
                self._fill_paged(tensors.groups[index], index, batch, spans)
        types = [c.request.token_types or [0] * len(c.request.tokens) for c in batch]
        has_types = any(map(any, types))
        if has_types:
            _write(tensors.token_type_ids, [given[p] for given, span in zip(types, spans, strict=True) for p in span])
        prefixes = self._prefix_levels(batch) if self.levels else []
        if prefixes:
            _write(tensors.prefix_indptr, [0, *itertools.accumulate(count for count, _ in prefixes)])
            _write(tensors.prefix_lens, [shared for _, shared in prefixes])
        counts = BatchCounts(
            num_tokens=starts[-1],
            num_reqs=len(batch),
            num_logits=len(wanted),
            num_decodes=sum(chunk.count == query_len for chunk in batch),
            decode_query_len=query_len,
            max_query_len=max((chunk.count for chunk in batch), default=0),
            max_seq_len=max((span.stop for span in spans), default=0),
            has_kv_events=int(self.events.active),
            num_prefixes=len(prefixes),
            has_token_types=int(has_types),
        )
        buffers.counts.copy_(torch.tensor([getattr(counts, name) for name in COUNT_FIELDS]))
        return len(wanted)

    def _prefix_levels(self, batch: Sequence[Chunk]) -> list[tuple[int, int]]:
        """Ranges of neighbours as (requests, leading tokens that they share), each as long as its first two allow."""
        ranges: list[tuple[int, int]] = []
        for before, chunk in zip([None, *batch], batch, strict=False):
            count, shared = ranges[-1] if ranges else (0, 0)
            common = 0 if before is None else self._shared_tokens(before.request, chunk.request)
            if common and (count == 1 or common >= shared):
                ranges[-1] = count + 1, common if count == 1 else shared
            else:
                ranges.append((1, 0))
        return ranges

    def _shared_tokens(self, one: Request, other: Request) -> int:
        """Leading tokens in the same whole blocks of all groups that see everything, cached for both of them."""
        shared = min(one.computed, other.computed)
        for pool, ours, theirs in zip(self.pools, one.blocks, other.blocks, strict=True):
            if not pool.is_recurrent and pool.spec.window is None:
                same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False))
                shared = min(shared, sum(1 for _ in same) * pool.spec.block_size)
        sizes = [pool.spec.block_size for pool in self.pools if not pool.is_recurrent]
        return shared // max(sizes) * max(sizes) if sizes else 0

    def _fill_states(self, group: GroupTensors, index: int, batch: Sequence[Chunk]) -> None:
        """A request that starts from nothing keeps junk for `num_accepted`; states that are not chosen become NaN."""
        assert group.state_indices is not None, "recurrent groups have states"
        for row, chunk in enumerate(batch):
            request = chunk.request
            _write(group.state_indices[row], request.blocks[index])
            if request.computed and group.num_accepted is not None:
                group.num_accepted[row] = request.column + 1
            for column, state in enumerate(request.blocks[index]):
                if column != request.column:
                    self.pools[index].poison(state)
        _write(group.has_initial_state, [int(chunk.request.computed > 0) for chunk in batch])

    def _fill_paged(self, group: GroupTensors, index: int, batch: Sequence[Chunk], spans: Sequence[range]) -> None:
        size = self.pools[index].spec.block_size
        slots, indptr, indices, last_lens = [], [0], [], []
        for row, (chunk, span) in enumerate(zip(batch, spans, strict=True)):
            request = chunk.request
            blocks, start = request.blocks[index], request.kv_start[index]
            for position in span:
                block, offset = divmod(position - start, size)
                slots.append(blocks[block] * size + offset if position < span.stop - chunk.placeholders else -1)
            assert group.block_table is not None, "paged groups have a block table"
            group.block_table[row].zero_()
            _write(group.block_table[row], blocks)
            indices += blocks
            indptr.append(len(indices))
            last_lens.append((span.stop - start - 1) % size + 1)
        _write(group.slot_mapping, slots)
        _write(group.kv_start, [chunk.request.kv_start[index] for chunk in batch])
        for field_tensor, values in (
            (group.kv_indptr, indptr),
            (group.kv_indices, indices),
            (group.kv_last_page_len, last_lens),
        ):
            if field_tensor is not None:
                _write(field_tensor, values)


def _positions(request: Request, span: range, axes: int) -> Sequence[int | list[int]]:
    if axes == 1:
        return span
    return [[p] * axes if request.positions is None else request.positions[p].tolist() for p in span]


def _write(target: torch.Tensor | None, values: Sequence[int | list[int]]) -> None:
    assert target is not None, "the executor lends this field"
    assert len(values) <= target.shape[0], f"{len(values)} values for a buffer of {target.shape[0]}"
    if values:
        target[: len(values)] = torch.tensor(values, dtype=torch.int32)
