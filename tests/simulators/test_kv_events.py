"""Steps with KV events on the simulated package: in pieces though a full graph is there, and layer after layer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.matrix.host_double import Chunk

from trunnion.contract import BatchCounts
from trunnion.errors import BatchRefused
from trunnion.interfaces.kv_events import SLOT_ERROR, SLOT_MISUSED, SLOT_TIMEOUT, KVEventError
from trunnion.interfaces.runner import Mode
from trunnion.reference.kv_events import HostKVEvents
from trunnion.runner.buckets import Buckets
from trunnion_models.card import Card

from .rig import Rig
from .test_steps import assert_close


def decode(rig: Rig, *, events: bool) -> torch.Tensor:
    """A prefill and three uniform decodes."""
    requests = rig.requests(4, 9)
    rig.host.events.active = events
    rows = rig.prefill(requests, 5)
    rows += [rig.decode(requests) for _ in range(3)]
    rig.host.events.active = False
    rows.append(rig.decode(requests))
    return torch.cat(rows)


@pytest.mark.parametrize("mode", list(Mode), ids=lambda mode: mode.value)
def test_layers_wait_one_by_one_in_every_way_of_execution(card: Card, mode: Mode, rigs: Callable[..., Rig]) -> None:
    """What the same steps give without events; `LayerEvents` judges who waited, wrote, and when."""
    expected = decode(rigs(card, Mode.EAGER), events=False)
    rig = rigs(card, mode)
    assert_close(decode(rig, events=True), expected)
    assert rig.executor.counters.kv_event_steps == 4 + 3
    if mode is Mode.FULL:
        # The last decode is in its full graph again.
        breaks = [full.graph.num_breaks for full in rig.runner.steps.full.values()]
        assert breaks and not any(breaks)
        assert rig.runner.select(BatchCounts(4, 4, 4, 4)).mode is Mode.FULL


def test_a_full_graph_is_never_chosen(llama: Card, rigs: Callable[..., Rig]) -> None:
    """By the buckets; and a runner that chooses one all the same is an error."""
    rig = rigs(llama)
    counts = BatchCounts(4, 4, 4, 4, has_kv_events=1)
    assert rig.runner.select(counts).mode is Mode.PIECEWISE
    requests = rig.requests(4, 9)
    rig.prefill(requests, 3)
    rig.runner.select = lambda counts: Buckets.select(rig.runner.buckets, BatchCounts(4, 4, 4, 4))  # type: ignore
    rig.host.events.active = True
    with pytest.raises(RuntimeError, match="in a graph no layer can wait"):
        rig.decode(requests)


@pytest.mark.parametrize(
    ("result", "error", "words"),
    [
        (SLOT_ERROR, KVEventError, r"kv_ready\[0\] was signalled with an error"),
        (SLOT_TIMEOUT, KVEventError, r"kv_ready\[0\] did not come in time"),
        (SLOT_MISUSED, RuntimeError, "layer 0 ran twice"),
    ],
)
def test_a_layer_whose_event_fails_does_not_run(
    llama: Card, rigs: Callable[..., Rig], result: int, error: type[Exception], words: str
) -> None:
    """The step fails at its first layer, and the next one is as ever."""
    rig = rigs(llama)
    requests = rig.requests(2, 9)
    rig.prefill(requests, 3)
    events, reference = rig.host.events, rig.executor._kv_events
    assert isinstance(reference, HostKVEvents)
    wait, reference._wait = reference._wait, lambda slot: result  # type: ignore
    events.active = True
    with pytest.raises(error, match=words):
        rig.decode(requests)
    assert events.written == []
    for layer in events.order:
        events._restore(layer)
    events.active, reference._wait = False, wait
    assert rig.decode(requests).isfinite().all()


def test_events_without_slots_are_refused(llama: Card, rigs: Callable[..., Rig]) -> None:
    rig = rigs(llama)
    rig.executor._kv_events = None
    rig.host.events.active = True
    with pytest.raises(BatchRefused, match="kv_events"):
        rig.prefill(rig.requests(1, 3), 3)


class CountingFence:
    """A fence that says when it was waited for."""

    def __init__(self, seen: list[str]) -> None:
        self._seen = seen

    def wait(self) -> None:
        self._seen.append("fence")


def test_a_device_that_works_on_is_waited_for_before_a_layer_has_written(llama: Card, rigs: Callable[..., Rig]) -> None:
    """Where there are fences, each layer's signal stands behind one."""
    rig, seen = rigs(llama), list[str]()
    reference = rig.executor._kv_events
    assert isinstance(reference, HostKVEvents)
    signal = reference._signal
    reference._record_fence = lambda buffer_set: CountingFence(seen)
    reference._signal = lambda slot: (seen.append("written"), signal(slot))[1]  # type: ignore
    rig.host.events.active = True
    rig.host.step([Chunk(request, 3) for request in rig.requests(1, 3)])
    assert seen == ["fence", "written"] * len(rig.host.events.order)
