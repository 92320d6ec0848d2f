"""What graphs take of a device's streams and events, and how many sizes of steps fit into what there is.

A graph keeps streams for as long as it lives, and a capture that finds none fails in the middle (hicann/runtime,
docs/zh/FAQ, EE1023). What a graph takes is not documented: the numbers below are those of vllm-ascend's
`update_aclgraph_sizes`, where they were found by trial. Each task that is updated has an event of its own. torch_npu
makes it of a word of memory where CANN's streams wait for values (NPUEvent.cpp); it is counted all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trunnion.contract import Limits
from trunnion.errors import UnsupportedError
from trunnion.runner.buckets import DOUBLINGS, Buckets, ladder

RESERVED = 184
"""Streams that are not for graphs: those of the runtime, the host, the captures and the updates."""
COLLECTIVE_RESERVED = 40
"""And for each domain of collectives."""
COLLECTIVE_STREAMS = 2
"""Of a graph, for each domain whose collectives may stand in it."""
RESERVED_EVENTS = 512
"""Events that are not for tasks: torch_npu's, the collectives', the fences. An estimate: nobody says how many."""


@dataclass(frozen=True, kw_only=True)
class GraphBudget:
    """The streams and events of one device."""

    streams: int
    """All that it has."""
    events: int
    """All that it has."""
    taken: int = 0
    """Streams of the graphs of other executors."""
    events_taken: int = 0
    num_domains: int = 0
    """Of collectives that graphs hold: 1 for tensor parallelism."""

    @property
    def for_graphs(self) -> int:
        """What is left for graphs."""
        return self.streams - self.taken - RESERVED - COLLECTIVE_RESERVED * self.num_domains

    @property
    def events_for_tasks(self) -> int:
        """What is left for tasks."""
        return self.events - self.events_taken - RESERVED_EVENTS

    @property
    def per_graph(self) -> int:
        """Streams that one graph takes."""
        return 1 + COLLECTIVE_STREAMS * self.num_domains

    def needed(self, buckets: Buckets, num_layers: int) -> int:
        """Streams of all graphs of an executor whose groups have `num_layers` layers, each of them a break."""
        graphs = len(buckets.tokens) * (num_layers + 1) + len(buckets.logits) + len(buckets.all_full())
        return graphs * self.per_graph

    def events_needed(self, buckets: Buckets, num_tasks: int) -> int:
        """Events of all full graphs of an executor, `num_tasks` of whose layers are updated."""
        return len(buckets.all_full()) * num_tasks

    def choose(
        self, limits: Limits, decode_query_lens: Sequence[int] | None, num_layers: int, num_tasks: int = 0
    ) -> Buckets:
        """The finest buckets that fit; the coarsest there are if none does, which `check` refuses."""
        for doublings in range(DOUBLINGS, 0, -1):
            buckets = Buckets(limits, decode_query_lens, doublings=doublings)
            has_streams = self.needed(buckets, num_layers) <= self.for_graphs
            if has_streams and self.events_needed(buckets, num_tasks) <= self.events_for_tasks:
                break
        return buckets

    def check(self, buckets: Buckets, num_layers: int, num_tasks: int = 0) -> None:
        """Refuse what does not fit, before anything is captured.

        Raises:
            UnsupportedError: the graphs of `buckets` take more streams than there are, or more events.
        """
        self._check_streams(buckets, num_layers)
        needed, limits = self.events_needed(buckets, num_tasks), buckets.limits
        if needed > self.events_for_tasks:
            raise UnsupportedError(
                f"{len(buckets.all_full())} full graphs of decodes of up to {limits.max_num_seqs} requests,"
                f" {num_tasks} attention layers each that are updated, take {needed} events, and the device has"
                f" {self.events_for_tasks} for them; choices: fewer max_num_seqs, or no full graphs:"
                " AscendHardware(Mode.PIECEWISE)"
            )

    def _check_streams(self, buckets: Buckets, num_layers: int) -> None:
        needed, limits = self.needed(buckets, num_layers), buckets.limits
        if needed <= self.for_graphs:
            return
        others = len(buckets.logits) + len(buckets.all_full())
        num_sizes = (self.for_graphs // self.per_graph - others) // (num_layers + 1)
        fits = (size for size in reversed(ladder(limits.max_num_tokens)) if len(ladder(size, doublings=1)) <= num_sizes)
        fewer = f"max_num_tokens of at most {found}, " if (found := next(fits, None)) is not None else ""
        raise UnsupportedError(
            f"graphs of steps of up to {limits.max_num_tokens} tokens, {num_layers} attention layers each, take"
            f" {needed} streams, and the device has {self.for_graphs} for them; choices: {fewer}fewer max_num_seqs"
            f" (now {limits.max_num_seqs}) or max_logits_rows (now {limits.max_logits_rows}), or no graphs at all:"
            " AscendHardware(Mode.EAGER)"
        )
