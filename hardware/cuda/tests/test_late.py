"""Steps on a device that is late: the host goes on, refills what it may, and nothing runs before somebody waits."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.conformance.tiny_llama import VOCAB, write_tiny_llama
from tests.matrix.cases import quick_cards
from tests.matrix.hf_reference import build_reference
from tests.matrix.host_double import Chunk, HostDouble, Request

from trunnion.config import ExecutorConfig
from trunnion.contract import Limits
from trunnion.runner.model_executor import ModelExecutor
from trunnion_cuda.hardware import CudaHardware

simulator = pytest.importorskip("cuda_simulator")
if torch.cuda.get_device_name() != "simulated":
    pytest.skip("a real device is as late as it is", allow_module_level=True)

LIMITS = Limits(max_num_tokens=16, max_num_seqs=4, max_model_len=64, max_logits_rows=8, block_size=4)
NOT_THERE = -5.0


class Host(HostDouble):
    """One executor with requests of its own."""

    def __init__(self, folder: Path) -> None:
        config = ExecutorConfig(model=folder, hardware="cuda", limits=LIMITS, dtype="bfloat16")
        executor = ModelExecutor.create(config, CudaHardware())
        super().__init__(executor, 100, executor.device)
        self.requests: list[Request] = []

    def begin(self, *lengths: int) -> None:
        """Forget all, and cache the first tokens of new requests."""
        self.reset(0)
        rng = random.Random(5)
        self.requests = [self.add(rng.choices(range(VOCAB), k=LIMITS.max_model_len)) for _ in lengths]
        for request, length in zip(self.requests, lengths, strict=True):
            while request.computed < length:
                self.step([Chunk(request, min(LIMITS.max_num_tokens, length - request.computed), (0,))])
        for buffer in self.executor.input_buffers():
            buffer.output_rows.fill_(NOT_THERE)

    def decode(self, batch: slice) -> torch.Tensor:
        """A step that is waited for."""
        rows, fence = self.launch_decode(batch)
        self.executor.wait(fence)
        return rows.clone()

    def launch_decode(self, batch: slice) -> tuple[torch.Tensor, int]:
        """A step that is not."""
        return self.launch([Chunk(request, 1) for request in self.requests[batch]])


@pytest.fixture(scope="module", params=["llama", "deepseek_v2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder that FlashInfer runs, with latent attention or without."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "llama":
        return write_tiny_llama(folder, head_dim=64)
    card = next(card for card in quick_cards() if card.name == "deepseek_v2-quick")
    return build_reference(card, torch.bfloat16, folder).folder


@pytest.fixture(scope="module")
def prompt(folder: Path) -> Host:
    """Its device is never late."""
    return Host(folder)


@pytest.fixture(scope="module")
def host(folder: Path) -> Host:
    """Its device is late where a test says so."""
    return Host(folder)


@pytest.fixture
def queue() -> Iterator[object]:
    """The device's queue, empty before and after."""
    found = simulator.simulation().queue
    found.caught_up = 0
    yield found
    assert found.done == found.launched


def test_two_steps_back_to_back(host: Host, prompt: Host, queue) -> None:
    """Step n + 1 is filled, planned and launched before n has run, of which nothing is uploaded, its plan included."""
    lengths = 40, 3, 17, 1
    host.begin(*lengths)
    prompt.begin(*lengths)
    for turn in range(4):
        batches = (slice(0, 4), slice(1, 3)) if turn % 2 else (slice(2, 3), slice(0, 4))
        expected = [prompt.decode(batch) for batch in batches]
        with queue.late():
            launched = [host.launch_decode(batch) for batch in batches]
            assert queue.launched > queue.done, "the device has not begun"
            for (rows, fence), wanted in zip(launched, expected, strict=True):
                host.executor.wait(fence)
                assert torch.equal(rows, wanted)
    assert queue.caught_up == 0, "a replayed step enqueues and goes on"


def test_two_steps_of_one_shape(host: Host, prompt: Host, queue) -> None:
    """Both replay one graph, whose plan's buffers on the device are one and the same."""
    host.begin(30, 2, 9)
    prompt.begin(30, 2, 9)
    for batches in [(slice(0, 2), slice(1, 3)), (slice(1, 3), slice(0, 2)), (slice(0, 2), slice(0, 2))]:
        expected = [prompt.decode(batch) for batch in batches]
        with queue.late():
            launched = [host.launch_decode(batch) for batch in batches]
            for (rows, fence), wanted in zip(launched, expected, strict=True):
                host.executor.wait(fence)
                assert torch.equal(rows, wanted)


def test_outputs_come_with_their_fence(host: Host, queue) -> None:
    host.begin(6, 5)
    with queue.late():
        rows, fence = host.launch_decode(slice(0, 2))
        assert (rows == NOT_THERE).all()
        host.executor.wait(fence)
        assert not (rows == NOT_THERE).any()


def test_chunks_on_a_late_device(host: Host, prompt: Host, queue) -> None:
    """Pieces, and what the host plans between them; not all of it is late."""
    host.begin(5, 1)
    prompt.begin(5, 1)
    chunks = [[Chunk(request, 7, (6,)) for request in each.requests] for each in (host, prompt)]
    expected, fence = prompt.launch(chunks[1])
    prompt.executor.wait(fence)
    with queue.late():
        rows, fence = host.launch(chunks[0])
        host.executor.wait(fence)
        assert torch.equal(rows, expected)


def test_the_stream_waits_for_the_events_of_the_host(host: Host, prompt: Host, queue) -> None:
    """`execute` returns before the last layer has written; each waits, writes and says so, one after the other."""
    host.begin(9, 4)
    prompt.begin(9, 4)
    expected = prompt.decode(slice(0, 2))
    events = host.events
    events.active = True
    batch = [Chunk(request, 1) for request in host.requests]
    with queue.late(), events.step(host.steps % 2, 2):
        rows, fence = host.launch(batch)
        written = list(events.written)
        host.executor.wait(fence)
    events.active = False
    assert written != events.order, "the host waited until the last layer had written"
    assert torch.equal(rows, expected)
    assert events.waited == events.written == events.order
