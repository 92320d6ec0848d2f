"""Steps that overlap: uploads and graphs run late, and the host goes on without waiting, as far as it may."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.matrix.host_double import Chunk
from trunnion_sim.hardware import SimHardware

from trunnion.contract import Staging
from trunnion.errors import BatchRefused
from trunnion_models.card import Card

from .rig import Rig
from .test_steps import assert_close

# What overlaps is staging, which no model has a part in: one model will do.


@pytest.fixture
def late(llama: Card, rigs: Callable[..., Rig]) -> Rig:
    """A rig on a device that does nothing until somebody waits for it."""
    return rigs(llama, SimHardware(late=True))


def test_two_steps_back_to_back(late: Rig, llama: Card, rigs: Callable[..., Rig]) -> None:
    """Step n + 1 is filled and launched while n has not even been uploaded; both are right, batch sizes differing."""
    prompt = rigs(llama)
    requests, same = late.requests(5, 20), prompt.requests(5, 20)
    for turn in range(4):
        batches = (slice(0, 5), slice(1, 4)) if turn % 2 else (slice(2, 3), slice(0, 5))
        launched = [late.host.launch([Chunk(request, 1) for request in requests[batch]]) for batch in batches]
        expected = [prompt.decode(same[batch]) for batch in batches]
        for (rows, fence), wanted in zip(launched, expected, strict=True):
            late.executor.wait(fence)
            assert_close(rows.clone(), wanted)


def test_a_step_takes_ids_that_are_not_sampled_yet(llama: Card, rigs: Callable[..., Rig]) -> None:
    """The second step is launched before the first has run, and takes what the device then samples of it."""
    late, prompt = rigs(llama, SimHardware(late=True), staging=Staging.DEVICE), rigs(llama)
    sampled = late.executor.sampled_ids
    assert sampled is not None
    requests = late.requests(3, 1)
    same = [prompt.host.add(list(request.tokens)) for request in requests]
    for buffer in late.executor.input_buffers():
        buffer.output_rows.fill_(-5.0)

    def launch() -> tuple[torch.Tensor, int]:
        rows, fence = late.host.launch([Chunk(request, 1) for request in requests])
        late.hardware.stream.launch(lambda: sampled[:3].copy_(rows.argmax(-1)))
        return rows, fence

    first, _ = launch()
    for row, request in enumerate(requests):
        request.tokens.append(-1 - row)
    second, fence = launch()
    assert (first == -5.0).all(), "the device has not begun"
    late.executor.wait(fence)
    expected = prompt.decode(same)
    assert_close(first.clone(), expected)
    for request, token in zip(same, expected.argmax(-1).tolist(), strict=True):
        request.tokens.append(token)
    assert_close(second.clone(), prompt.decode(same))


def test_outputs_come_with_their_fence_and_not_before(late: Rig) -> None:
    """The device is late indeed: rows keep what they held until somebody waits."""
    requests = late.requests(2, 6)
    for buffer in late.executor.input_buffers():
        buffer.output_rows.fill_(-5.0)
    rows, fence = late.host.launch([Chunk(request, 1) for request in requests])
    assert (rows == -5.0).all()
    late.executor.wait(fence)
    assert not (rows == -5.0).any()


def test_a_set_in_flight_is_refused(late: Rig) -> None:
    """Until its own fence, and then it is free; nothing of a refused step is launched."""
    requests = late.requests(2, 12)
    _, first = late.host.launch([Chunk(requests[0], 1)])
    with pytest.raises(BatchRefused, match=f"buffer set 0 is in use until fence {first}"):
        late.host.execute(0)
    _, second = late.host.launch([Chunk(requests[1], 1)])
    late.executor.wait(first)
    late.host.execute(0)
    with pytest.raises(BatchRefused, match=f"buffer set 1 is in use until fence {second}"):
        late.host.execute(1)
    late.executor.wait(second)
    late.host.execute(1)
    assert late.executor.counters.replays == 4


def test_a_refill_before_the_fence_would_be_wrong(late: Rig) -> None:
    """What the rule is for: rows written before the copy has run are the rows that are sent."""
    (request,) = late.requests(1, 12)
    rows, fence = late.host.launch([Chunk(request, 1)])
    late.executor.wait(fence)
    right = rows.clone()
    again = late.host.execute(0)
    ids = late.executor.input_buffers()[0].tensors.input_ids
    ids[0] = ids[0] % 100 + 1
    late.executor.wait(again.fence)
    assert not torch.equal(right, rows)
