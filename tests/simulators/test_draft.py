"""A target and its draft on the simulated package: every step replays, in order, and costs nothing but its graphs."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from capture import DelayedTransfers, DeviceMonitor
from tests.matrix.draft_double import DraftChunk, DraftDouble, SpeculatingHost, make_pair
from tests.matrix.host_double import Chunk, HostDouble
from tests.matrix.trained_draft import TrainedDraft, save_trained_draft
from tests.matrix.trained_eagle3 import TrainedEagle3, save_trained_eagle3
from trunnion_sim.hardware import SimHardware

from trunnion.contract import BatchCounts, ForwardOutput, Limits
from trunnion.interfaces.runner import Mode
from trunnion.runner.model_executor import ModelExecutor

from .test_steady_state import MODEL_CODE, STEPS, FramesOf
from .test_steps import assert_close

WIDTH = 4
LIMITS = Limits(
    max_num_tokens=24,
    max_num_seqs=6,
    max_model_len=64,
    max_logits_rows=24,
    block_size=4,
    max_decode_query_len=WIDTH,
)
NUM_BLOCKS = 120
Pair = tuple[ModelExecutor, ModelExecutor]
Trained = TrainedDraft | TrainedEagle3


@pytest.fixture(scope="module", params=[save_trained_draft, save_trained_eagle3], ids=["head", "eagle3"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    found: Trained = request.param(tmp_path_factory.mktemp("trained"))
    return found


@pytest.fixture
def pairs(trained: Trained) -> Iterator[Callable[[SimHardware], Pair]]:
    """Makes targets with their drafts, and closes them."""
    made: list[ModelExecutor] = []

    def make(hardware: SimHardware) -> Pair:
        pair = make_pair(trained.folder, "sim", hardware, LIMITS, draft_model=trained.draft_model)
        made.extend(pair)
        return pair

    yield make
    for executor in reversed(made):
        executor.close()


class Side:
    """One executor of a pair, and a step of it that is filled once and launched as often as one likes."""

    def __init__(self, host: HostDouble, hardware: SimHardware) -> None:
        self.host = host
        self.executor = host.executor
        buffers = self.executor.input_buffers()
        self.memory = [*(buffer.storage for buffer in buffers), *(buffer.output_rows for buffer in buffers)]
        self._transfers = DelayedTransfers(hardware.stream, self.memory)

    def fill(self, chunks: Sequence[Chunk]) -> None:
        """Both buffer sets hold decodes of equal length."""
        for chunk in chunks:
            self.host._reserve(chunk)
        for buffer_set in range(len(self.executor.input_buffers())):
            self.host._fill(buffer_set, chunks, chunks[0].count)

    def launch(self, buffer_set: int) -> ForwardOutput:
        with self._transfers:
            return self.executor.execute_set(buffer_set)


def fill_both(pair: Pair, hardware: SimHardware, prompts: Sequence[list[int]]) -> tuple[Side, Side]:
    """Prompts are cached; then the target verifies three tokens of each, and the draft follows row by row."""
    target = Side(HostDouble(pair[0], NUM_BLOCKS, pair[0].device), hardware)
    draft = Side(DraftDouble(pair[1], NUM_BLOCKS, pair[1].device), hardware)
    assert isinstance(draft.host, DraftDouble), "a draft's host knows rows of hidden states"
    requests = [target.host.add(tokens) for tokens in prompts]
    followers = [draft.host.add(tokens[1:]) for tokens in prompts]
    for request, follower in zip(requests, followers, strict=True):
        count = len(request.tokens) - 1 - WIDTH
        target.host.step([Chunk(request, count, ())])
        draft.host.draft([DraftChunk(follower, count, (), hidden_rows=range(count))], 0)
    target.fill([Chunk(request, WIDTH) for request in requests])
    draft.fill(
        [
            DraftChunk(follower, WIDTH, hidden_rows=range(index * WIDTH, (index + 1) * WIDTH))
            for index, follower in enumerate(followers)
        ]
    )
    return target, draft


def prompts_of(count: int, seed: int = 5) -> list[list[int]]:
    rng = random.Random(seed)
    return [rng.choices(range(1, 131), k=rng.randint(WIDTH + 3, 14)) for _ in range(count)]


def test_a_steady_pair_of_steps_costs_nothing(pairs: Callable[[SimHardware], Pair]) -> None:
    """200 verifications, each followed by the draft: full graphs, no allocation, no wait, no Python of a model."""
    hardware = SimHardware()
    sides = fill_both(pairs(hardware), hardware, prompts_of(6))
    for side in sides:
        counts = side.executor.input_buffers()[0].read_counts()
        assert side.executor._runner.select(counts).mode is Mode.FULL
        for buffer_set in (0, 1):
            side.executor.execute_set(buffer_set)
    before = [side.executor.counters.replays for side in sides]

    def repeat(steps: int) -> None:
        for step in range(steps):
            for side in sides:
                side.executor.wait(side.executor.execute_set(step % 2).fence)

    with DeviceMonitor([*sides[0].memory, *sides[1].memory]) as monitor, FramesOf(MODEL_CODE) as frames:
        repeat(STEPS)
    assert [side.executor.counters.replays - count for side, count in zip(sides, before, strict=True)] == [STEPS] * 2
    assert not any(side.executor.counters.eager for side in sides)
    assert not frames.seen and not monitor.allocations and not monitor.waits
    gc.collect()
    gc.disable()
    try:
        repeat(20)
        blocks = sys.getallocatedblocks()
        repeat(STEPS)
        assert sys.getallocatedblocks() - blocks < STEPS // 4
    finally:
        gc.enable()


def test_a_draft_follows_a_target_that_has_not_run_yet(pairs: Callable[[SimHardware], Pair]) -> None:
    """On a late device both are launched before either has run: what the draft gathers, it gathers in its turn."""
    prompts, outputs = prompts_of(3), []
    for hardware in (SimHardware(), SimHardware(late=True)):
        pair = pairs(hardware)
        # Chunks run in pieces, which nothing delays: only what comes after them is late.
        late, hardware.stream.late = hardware.stream.late, False
        target, draft = fill_both(pair, hardware, prompts)
        hardware.stream.late = late
        assert target.executor.hidden is not None
        target.executor.hidden.rows.fill_(torch.nan)
        target.launch(0)
        second = draft.launch(0)
        if late:
            assert target.executor.hidden.rows.isnan().all(), "the device is late"
        draft.executor.wait(second.fence)
        assert second.logits is not None
        outputs.append(second.logits.clone())
    assert outputs[0].isnan().logical_not().all()
    torch.testing.assert_close(outputs[1], outputs[0])


def test_padding_and_placeholders_may_be_anything(trained: Trained, pairs: Callable[[SimHardware], Pair]) -> None:
    """The token of padding rows and placeholders has an embedding of NaN, in the target and so in the draft."""
    rng = random.Random(2)
    prompts: list[list[int]] = []
    while len(prompts) < 5:
        prompt = rng.choices(range(1, 131), k=rng.randint(2, 9))
        if 0 not in trained.greedy(prompt, 20):
            prompts.append(prompt)
    target, draft = pairs(SimHardware())
    host = SpeculatingHost(target, draft, WIDTH - 1, num_blocks=NUM_BLOCKS)
    target.model.get_parameter("model.embed_tokens.weight").data[0] = torch.nan
    assert host.run(prompts, 20) == [trained.greedy(prompt, 20) for prompt in prompts]
    assert not target.counters.eager and not draft.counters.eager


def test_drafts_are_those_of_plain_torch(trained: Trained, pairs: Callable[[SimHardware], Pair]) -> None:
    """Three requests draft five tokens each, all but the first on what the head itself returned."""
    target, draft = pairs(SimHardware())
    host, follower = HostDouble(target, NUM_BLOCKS, target.device), DraftDouble(draft, NUM_BLOCKS, draft.device)
    prompts = [prompt[:7] for prompt in prompts_of(3)]
    host.step([Chunk(host.add(prompt), 6, ()) for prompt in prompts])
    requests = [follower.add(prompt[1:]) for prompt in prompts]
    chunks = [DraftChunk(r, 6, (5,), hidden_rows=range(6 * i, 6 * i + 6)) for i, r in enumerate(requests)]
    logits = follower.draft(chunks, 0)
    last_rows = [6 * index + 5 for index in range(3)]
    for _ in range(4):
        for request, row in zip(requests, logits, strict=True):
            request.tokens = [*request.tokens, int(row.argmax())]
        chunks = [DraftChunk(r, 1, hidden_rows=[row]) for r, row in zip(requests, last_rows, strict=True)]
        logits, last_rows = follower.draft(chunks, 1), [0, 1, 2]
    for prompt, request, row in zip(prompts, requests, logits, strict=True):
        expected, said = trained.draft_logits(prompt, 5), trained.token_ids
        assert list(request.tokens[6:]) == said[expected[:4].argmax(-1)].tolist()
        assert_close(row[0][said], expected[4], tolerance=1e-4)


def test_full_graphs_for_one_token_and_for_all_drafts(pairs: Callable[[SimHardware], Pair]) -> None:
    target, draft = pairs(SimHardware())
    for executor in (target, draft):
        for length in (1, WIDTH):
            counts = BatchCounts(3 * length, 3, 3, 3, length)
            assert executor._runner.select(counts).mode is Mode.FULL
