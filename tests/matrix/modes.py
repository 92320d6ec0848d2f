"""The ways a host may feed the same tokens. Each must give the logits of one forward over the whole sequence."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping, Sequence

import torch

from trunnion_models.card import ROUNDED_TOLERANCE, Card

from .bench import Bench, Comparison
from .host_double import Chunk, Request


def whole(bench: Bench, seen: Comparison) -> None:
    """Each prompt alone, in one step; then all of them in one step."""
    host, count = bench.host, len(bench.card.seq_lens)
    for index in range(count):
        request = bench.add(index)
        seen.add(index, 0, host.step([Chunk(request, request.remaining)])[0])
        host.finish(request)
    requests = [bench.add(index) for index in range(count)]
    for index, rows in enumerate(host.step([Chunk(request, request.remaining) for request in requests])):
        seen.add(index, 0, rows)


def split(bench: Bench, seen: Comparison) -> None:
    """The longest prompt cut in two at every offset."""
    host, index = bench.host, _longest(bench)
    tokens = bench.sequence(index)
    for offset in range(1, len(tokens)):
        request = bench.add(index)
        seen.add(index, 0, host.step([Chunk(request, offset)])[0])
        seen.add(index, offset, host.step([Chunk(request, request.remaining)])[0])
        host.finish(request)


def decode(bench: Bench, seen: Comparison) -> None:
    """All prompts token by token from the first one, together, until the longest ends."""
    host = bench.host
    requests = [bench.add(index) for index in range(len(bench.card.seq_lens))]
    while any(request.remaining for request in requests):
        live = [index for index, request in enumerate(requests) if request.remaining]
        starts = [requests[index].computed for index in live]
        for index, start, rows in zip(live, starts, host.step([Chunk(requests[i], 1) for i in live]), strict=True):
            seen.add(index, start, rows)


def mixed(bench: Bench, seen: Comparison) -> None:
    """Ragged batches: prefills, chunks and decodes side by side, requests that wait, rows without logits, no tokens."""
    host = bench.host
    for seed in range(4):
        rng = random.Random(seed)
        requests = [bench.add(index) for index in range(len(bench.card.seq_lens))]
        while any(request.remaining for request in requests):
            assert host.step([]) == [], "a step without requests has no logits"
            live = [index for index, request in enumerate(requests) if request.remaining]
            chosen = [index for index in live if rng.random() < 0.8] or live
            rng.shuffle(chosen)
            chunks = [_ragged(requests[index], rng) for index in chosen]
            starts = [requests[index].computed for index in chosen]
            for index, start, chunk, rows in zip(chosen, starts, chunks, host.step(chunks), strict=True):
                for row, logits in zip(chunk.wanted, rows, strict=True):
                    seen.add_row(index, start + row, logits)
        for request in requests:
            host.finish(request)


def preempt(bench: Bench, seen: Comparison) -> None:
    """Decodes that lose their blocks half way, to others, and start again in other blocks."""
    host = bench.host
    victim_index = _longest(bench)
    others = [index for index in range(len(bench.card.seq_lens)) if index != victim_index]
    victim = bench.add(victim_index)
    half = victim.remaining // 2
    host.step([Chunk(victim, half)])
    for _ in range(3):
        start = victim.computed
        seen.add(victim_index, start, host.step([Chunk(victim, 1)])[0])
    lost = victim.computed
    host.preempt(victim)
    requests = {index: bench.add(index) for index in others}
    for index, rows in zip(
        others, host.step([Chunk(requests[i], max(1, requests[i].remaining - 2)) for i in others]), strict=True
    ):
        seen.add(index, 0, rows)
    seen.add(victim_index, 0, host.step([Chunk(victim, lost)])[0])
    while victim.remaining:
        live = [(victim_index, victim), *((i, request) for i, request in requests.items() if request.remaining)]
        starts = [request.computed for _, request in live]
        rows = host.step([Chunk(request, 1) for _, request in live])
        for (index, _), start, logits in zip(live, starts, rows, strict=True):
            seen.add(index, start, logits)


def prefix(bench: Bench, seen: Comparison) -> None:
    """Prefix-cache hits, and where the executor makes use of it the same told of the blocks that requests share."""
    _prefix_hits(bench, seen)
    if not bench.host.executor.accepts_prefix_levels:
        return
    before = bench.host.executor.counters.prefix_level_steps
    with bench.host.with_levels():
        _prefix_hits(bench, seen)
    assert bench.host.executor.counters.prefix_level_steps > before, "no step was told of shared blocks"


def _prefix_hits(bench: Bench, seen: Comparison) -> None:
    """Hits of every number of whole blocks, full ones included, while the first owner decodes on."""
    host, index = bench.host, _longest(bench)
    tokens, size = bench.sequence(index), bench.block_size
    owner = bench.add(index)
    host.step([Chunk(owner, owner.remaining - 1)])
    whole_blocks = (len(tokens) - 1) // size * size
    for cached in range(size, whole_blocks + 1, size):
        partial = host.fork(owner, tokens, cached)
        full = host.fork(owner, tokens[:cached], cached)
        rows, last_block = host.step([Chunk(partial, partial.remaining), Chunk(full, full.remaining)])
        seen.add(index, cached, rows)
        seen.add(index, cached - size, last_block)
        host.finish(partial)
        host.finish(full)
    heir = host.fork(owner, tokens, whole_blocks)
    twin = host.fork(owner, tokens, whole_blocks)
    decoded = host.step([Chunk(owner, 1), Chunk(twin, 1)])
    seen.add(index, len(tokens) - 1, decoded[0])
    seen.add(index, whole_blocks, decoded[1])
    host.finish(twin)
    host.finish(owner)
    seen.add(index, whole_blocks, host.step([Chunk(heir, heir.remaining)])[0])


def _assert_same(bench: Bench, outputs: Sequence[torch.Tensor], first: Sequence[torch.Tensor]) -> None:
    """Matrix products may block their rows differently; anything beyond rounding is another request's data."""
    allowed = bench.card.fp32_tolerance if bench.reference.own_error is None else 0.05
    changes = [
        (rows - expected).abs().amax(-1) / expected.abs().max() for rows, expected in zip(outputs, first, strict=True)
    ]
    if bench.card.rounds and bench.reference.own_error is None:
        median, allowed = float(torch.cat(changes).median()), ROUNDED_TOLERANCE
        assert median <= bench.card.fp32_tolerance, f"half of the rows change by {median:.1e} with their place or more"
    for index, change in enumerate(changes):
        largest = float(change.max())
        assert largest <= allowed, f"sequence {index} changes by {largest:.1e} with its place in the batch"


def shuffle(bench: Bench, seen: Comparison) -> None:
    """The same batch with its requests in every order: the same outputs."""
    host, count = bench.host, len(bench.card.seq_lens)
    first: list[torch.Tensor] = []
    for turn in range(count):
        order = [(index + turn) % count for index in range(count)]
        requests = {index: bench.add(index) for index in range(count)}
        cut = {index: requests[index].remaining // 2 for index in range(count)}
        before = dict(zip(order, host.step([Chunk(requests[i], cut[i]) for i in order]), strict=True))
        after = dict(zip(order, host.step([Chunk(requests[i], requests[i].remaining) for i in order]), strict=True))
        outputs = [torch.cat((before[index], after[index])) for index in range(count)]
        for index, rows in enumerate(outputs):
            seen.add(index, 0, rows)
        first = first or outputs
        _assert_same(bench, outputs, first)
        for request in requests.values():
            host.finish(request)


def events(bench: Bench, seen: Comparison) -> None:
    """Chunks, decodes and a step without tokens, each layer's cache there only when its event says so."""
    host, counters = bench.host, bench.executor.counters
    before = counters.kv_event_steps - host.steps
    requests = [bench.add(index) for index in range(len(bench.card.seq_lens))]
    chunks = {index: Chunk(request, max(1, request.remaining // 2)) for index, request in enumerate(requests)}
    with host.with_events():
        while chunks:
            starts = [chunk.request.computed for chunk in chunks.values()]
            for index, start, rows in zip(chunks, starts, host.step(chunks.values()), strict=True):
                seen.add(index, start, rows)
            chunks = {index: Chunk(request, 1) for index, request in enumerate(requests) if request.remaining}
        assert host.step([]) == [], "a step without requests has no logits"
    assert counters.kv_event_steps - host.steps == before, "not every step with events was counted"
    for request in requests:
        host.finish(request)
    # Nothing of the events is left in steps without.
    whole(bench, seen)


MODES: Mapping[str, Callable[[Bench, Comparison], None]] = {
    "whole": whole,
    "split": split,
    "decode": decode,
    "mixed": mixed,
    "preempt": preempt,
    "prefix": prefix,
    "shuffle": shuffle,
    "events": events,
}


def lengths(bench: Bench, seen: Comparison) -> None:
    """Prompts that must come whole: each beginning of the longest one, alone."""
    index = _longest(bench)
    for length in range(1, len(bench.sequence(index)) + 1):
        _whole_prompts(bench, seen, [(index, length)])


def together(bench: Bench, seen: Comparison) -> None:
    """Prompts that must come whole: random beginnings side by side, in any order, some of them without a row."""
    for seed in range(8):
        rng = random.Random(seed)
        count = len(bench.card.seq_lens)
        chosen = [(index, rng.randint(1, len(bench.sequence(index)))) for index in rng.sample(range(count), count)]
        assert bench.host.step([]) == [], "a step without requests has no rows"
        _whole_prompts(bench, seen, chosen, wanted=[rng.random() < 0.8 for _ in chosen])


def _whole_prompts(
    bench: Bench, seen: Comparison, prompts: Sequence[tuple[int, int]], wanted: Sequence[bool] | None = None
) -> None:
    """One step of the first so many tokens of sequences; what is wanted of a prompt is the row of its last token."""
    wanted = [True] * len(prompts) if wanted is None else wanted
    requests = [bench.add(index, length) for index, length in prompts]
    rows = [(length - 1,) if wants else () for (_, length), wants in zip(prompts, wanted, strict=True)]
    chunks = [Chunk(request, request.remaining, want) for request, want in zip(requests, rows, strict=True)]
    for (index, length), found in zip(prompts, bench.host.step(chunks), strict=True):
        for row in found:
            seen.add_row(index, length - 1, row)
    for request in requests:
        bench.host.finish(request)


WHOLE_PROMPT_MODES: Mapping[str, Callable[[Bench, Comparison], None]] = {"lengths": lengths, "together": together}
"""Of models that see whole prompts: there is nothing to cut, cache, preempt or share."""


def modes_of(card: Card) -> Mapping[str, Callable[[Bench, Comparison], None]]:
    """The modes that a card runs in."""
    return WHOLE_PROMPT_MODES if card.whole_prompts else MODES


NEEDS_SHARED_BLOCKS = ("prefix",)
"""Modes that a model with recurrent layers cannot run: a state holds one prefix, blocks hold them all."""


def compare(bench: Bench, mode: str, name: str) -> None:
    """Feed the card's sequences as `mode` does and hold the rows against the reference; `name` settles the blocks."""
    bench.host.reset(zlib.crc32(name.encode()))
    seen = Comparison(bench)
    modes_of(bench.card)[mode](bench, seen)
    seen.check()


def _longest(bench: Bench) -> int:
    return max(range(len(bench.card.seq_lens)), key=lambda index: bench.card.seq_lens[index])


def _ragged(request: Request, rng: random.Random) -> Chunk:
    """A chunk of random size whose last row, random rows, or no row is wanted."""
    count = min(request.remaining, rng.choice([1, 1, 2, 5, 9]))
    rows = rng.choice([None, (count - 1,), (), tuple(range(0, count, 2))])
    return Chunk(request, count, rows)
