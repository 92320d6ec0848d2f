"""Images on the simulated package: encoded once, kept over chunks, merged inside the graphs, refused by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from capture import DeviceMonitor
from tests.matrix.cases import quick_cards
from tests.matrix.hf_images import ReferenceImage
from tests.matrix.host_double import Chunk, Request

from trunnion.contract import BatchCounts, EncoderItem, Field, ForwardBatch
from trunnion.errors import BatchRefused
from trunnion.interfaces.runner import Mode
from trunnion.vision.positions import mrope_positions
from trunnion_models.card import Card

from .rig import MAX_ENCODER_ROWS, Rig
from .test_steady_state import MODEL_CODE, FramesOf
from .test_steps import assert_close

VISION = next(card for card in quick_cards() if card.name == "qwen2_5_vl-quick")
GRID = (1, 6, 8)
"""12 tokens, in windows of 2 x 2 tokens and smaller ones."""
FIRST, LENGTH = 4, 20
PATCH_DIM = 3 * 2 * 4 * 4


def image(seed: int, grid: tuple[int, int, int] = GRID, first_token: int = FIRST) -> ReferenceImage:
    patches = grid[0] * grid[1] * grid[2]
    pixels = torch.randn(patches, PATCH_DIM, generator=torch.Generator().manual_seed(seed))
    return ReferenceImage(pixels, grid, first_token, patches // 4)


def request(rig: Rig, *images: ReferenceImage) -> Request:
    """`LENGTH` tokens, all alike but for the images, so that only these tell requests apart."""
    tokens = [7] * LENGTH
    for each in images:
        tokens[each.first_token : each.end] = [VISION.config["image_token_id"]] * each.num_tokens
    positions, _ = mrope_positions(LENGTH, [(each.first_token, each.grid) for each in images], 2)
    return rig.host.add(tokens, torch.from_numpy(positions), images)


def in_chunks(rig: Rig, found: Request, *counts: int) -> torch.Tensor:
    """Logits of a request that is cached in steps of so many tokens."""
    rows = torch.cat([rig.host.step([Chunk(found, count)])[0] for count in counts])
    rig.host.finish(found)
    return rows


@pytest.mark.parametrize("mode", [Mode.EAGER, Mode.PIECEWISE, Mode.FULL], ids=lambda mode: mode.value)
def test_an_image_cut_at_every_offset_is_encoded_once(mode: Mode, rigs: Callable[..., Rig]) -> None:
    """Its rows stay in the pool over both chunks, while free rows hold NaN, and nothing but its encoding is eager."""
    rig = rigs(VISION, mode)
    whole = in_chunks(rig, request(rig, image(1)), LENGTH)
    for offset in range(1, LENGTH):
        rows = in_chunks(rig, request(rig, image(1)), offset, LENGTH - offset)
        assert_close(rows, whole)
    counters = rig.executor.counters
    assert counters.encodes == rig.host.image_rows.encodes == LENGTH
    if mode is not Mode.EAGER:
        assert counters.replays == 2 * LENGTH - 1 and not counters.eager


def test_images_of_two_requests_do_not_mix(rigs: Callable[..., Rig]) -> None:
    """Two images, a text and another image encoded between the chunks of the first: each as if it were alone."""
    alone = rigs(VISION, Mode.EAGER)
    first, second, third, text = [in_chunks(alone, request(alone, *each), LENGTH) for each in _three_and_a_text()]
    assert (first[-1] - second[-1]).abs().max() > 0.01, "images that do not matter prove nothing"
    rig = rigs(VISION, max_num_tokens=40, max_logits_rows=40)
    one, two, three, four = (request(rig, *each) for each in _three_and_a_text())
    got_one = [rig.host.step([Chunk(one, 9)])[0]]
    rows = rig.host.step([Chunk(two, 11), Chunk(four, 20), Chunk(three, 6)])
    got_two, got_four, got_three = [rows[0]], rows[1], [rows[2]]
    rows = rig.host.step([Chunk(three, 14), Chunk(one, 11), Chunk(two, 9)])
    for got, expected in zip(
        ([*got_one, rows[1]], [*got_two, rows[2]], [*got_three, rows[0]], [got_four]),
        (first, second, third, text),
        strict=True,
    ):
        assert_close(torch.cat(got), expected)
    assert rig.executor.counters.encodes == 3


def _three_and_a_text() -> Sequence[tuple[ReferenceImage, ...]]:
    return (image(1),), (image(2),), (image(3, (1, 4, 4), 5),), ()


def test_two_images_in_one_request(rigs: Callable[..., Rig]) -> None:
    """The second is encoded by the chunk that comes to it."""
    images = image(1, (1, 4, 4), 2), image(2, (1, 2, 8), 9)
    alone, rig = rigs(VISION, Mode.EAGER), rigs(VISION)
    whole = in_chunks(alone, request(alone, *images), LENGTH)
    found = request(rig, *images)
    rows, encodes = [], []
    for count in (1, 3, 5, 2, 9):
        rows.append(rig.host.step([Chunk(found, count)])[0])
        encodes.append(rig.executor.counters.encodes)
    assert_close(torch.cat(rows), whole)
    assert encodes == [0, 1, 1, 2, 2]


def test_decodes_behind_an_image_replay_at_positions_of_their_own(rigs: Callable[..., Rig]) -> None:
    """A full graph takes three positions per token; no row of the pool is read any more, and all of it is NaN."""
    alone, rig = rigs(VISION, Mode.EAGER), rigs(VISION)
    prompt = FIRST + image(1).num_tokens
    expected = in_chunks(alone, request(alone, image(1)), LENGTH)[prompt:]
    found, other = request(rig, image(1)), request(rig)
    rig.host.step([Chunk(found, prompt)])
    rig.host.step([Chunk(other, 3)])
    assert rig.executor._encoder_pool.rows.isnan().all()
    assert int(found.positions[prompt][0]) < prompt
    replays = rig.executor.counters.replays
    with FramesOf(MODEL_CODE) as frames:
        rows = [rig.host.step([Chunk(found, 1), Chunk(other, 1)])[0] for _ in range(LENGTH - prompt)]
    assert_close(torch.cat(rows), expected)
    assert rig.executor.counters.replays - replays == LENGTH - prompt and not frames.seen
    assert rig.runner.buckets.select(BatchCounts(2, 2, 2, 2, 1)).mode is Mode.FULL


def test_a_chunk_inside_an_image_allocates_in_the_groups_alone(rigs: Callable[..., Rig]) -> None:
    """The merge is part of the graph: nothing of the pool is gathered outside it, and no model code runs."""
    rig = rigs(VISION)
    found = request(rig, image(1))
    rig.host.step([Chunk(found, 7)])
    rig.host.step([Chunk(found, 5)])
    with DeviceMonitor(rig.host.memory) as monitor, FramesOf(MODEL_CODE) as frames:
        rig.host.step([Chunk(found, 3)])
    assert not frames.seen
    asked = {name.rpartition(" ")[2].rpartition(".")[0] for name in monitor.allocations}
    ours = {name for name in asked if name.startswith("trunnion.")}
    assert {name.split(".")[1] for name in ours} <= {"reference", "ops"}


def test_the_pool_is_in_the_profile_and_the_report(rigs: Callable[..., Rig]) -> None:
    rig = rigs(VISION)
    text = rigs(replace(VISION, images=()))
    pool = rig.executor._encoder_pool.rows
    assert pool.shape == (MAX_ENCODER_ROWS, VISION.config["hidden_size"])
    ours, theirs = rig.executor.memory_profile(), text.executor.memory_profile()
    assert ours.workspaces - theirs.workspaces == pool.nbytes and ours.activations > theirs.activations
    assert list(rig.executor.warm_up().eager) == ["images"] and not text.executor.warm_up().eager
    assert Field.ENCODER_INDICES in rig.executor.required_fields()
    assert Field.ENCODER_INDICES not in text.executor.required_fields()
    assert rig.executor.num_position_axes == 3 and rig.executor.encoder_patch_dim == PATCH_DIM


PIXELS = image(1).pixels
BAD_ITEMS: dict[str, tuple[tuple[EncoderItem, ...], str]] = {
    "columns": (
        (EncoderItem(PIXELS[:, :-1].contiguous(), GRID, 0, 12),),
        r"pixels have shape \(48, 95\), a grid of \(1, 6, 8\) patches needs \(48, 96\)",
    ),
    "patches": ((EncoderItem(PIXELS[:44], GRID, 0, 12),), r"pixels have shape \(44, 96\)"),
    "dtype": ((EncoderItem(PIXELS.double(), GRID, 0, 12),), r"dtype torch\.float64, expected torch\.float32"),
    "strides": ((EncoderItem(PIXELS.T.contiguous().T, GRID, 0, 12),), "must be contiguous"),
    "rows": ((EncoderItem(PIXELS, GRID, 0, 11),), r"num_rows is 11, a grid of \(1, 6, 8\) patches makes 12"),
    "grid": ((EncoderItem(PIXELS, (1, 3, 16), 0, 12),), r"grid \(1, 3, 16\): height and width must be multiples of 2"),
    "no-patches": ((EncoderItem(PIXELS[:0], (1, 0, 2), 0, 0),), r"grid \(1, 0, 2\): height and width must be"),
    "negative-row": ((EncoderItem(PIXELS, GRID, -1, 12),), r"rows -1 \.\.\. 10 are outside the pool of 40"),
    "past-the-pool": ((EncoderItem(PIXELS, GRID, 29, 12),), r"rows 29 \.\.\. 40 are outside the pool of 40"),
    "twice": (
        (EncoderItem(PIXELS, GRID, 3, 12), EncoderItem(PIXELS, GRID, 14, 12)),
        r"encoder_items\[1\]: rows 14 \.\.\. 25 are another image's of this step",
    ),
}


@pytest.mark.parametrize("name", BAD_ITEMS)
def test_a_bad_image_is_refused_and_the_next_good_step_works(name: str, rigs: Callable[..., Rig]) -> None:
    """By name, in one line; nothing is encoded, not even what came before it in the step."""
    items, words = BAD_ITEMS[name]
    rig = rigs(VISION)
    whole = in_chunks(rig, request(rig, image(1)), LENGTH)
    encodes = rig.executor.counters.encodes
    with pytest.raises(BatchRefused, match=words) as caught:
        rig.executor.execute_set(0, items)
    assert str(caught.value).startswith("encoder_items[") and "\n" not in str(caught.value)
    assert rig.executor.counters.encodes == encodes
    assert_close(in_chunks(rig, request(rig, image(1)), LENGTH), whole)


def test_whoever_takes_no_images_says_so(llama: Card, rigs: Callable[..., Rig]) -> None:
    """A text model, and a model whose executor was given no pool."""
    item = EncoderItem(PIXELS, GRID, 0, 12)
    for card, words in ((llama, "this model takes no images"), (replace(VISION, images=()), "max_encoder_rows is 0")):
        rig = rigs(card)
        with pytest.raises(BatchRefused, match=f"encoder_items: there are 1, and .*{words}"):
            rig.executor.execute_set(0, [item])
        assert rig.decode(rig.requests(1, 3)).isfinite().all()


def test_an_offered_batch_brings_its_images(rigs: Callable[..., Rig]) -> None:
    """`execute` with the host's own tensors: three columns of positions, no fewer."""
    rig = rigs(VISION)
    found = request(rig, image(1))
    expected = in_chunks(rig, request(rig, image(1)), LENGTH)
    chunk = Chunk(found, LENGTH)
    rig.host._reserve(chunk)
    rig.host._fill(0, [chunk], 1)
    lent = rig.executor.input_buffers()[0]
    own = replace(lent.tensors, positions=lent.tensors.positions[:LENGTH].clone())
    batch = ForwardBatch(lent.read_counts(), own, tuple(rig.host.image_rows.items([chunk])))
    with pytest.raises(BatchRefused, match="positions: has 2 columns, expected 3"):
        rig.executor.execute(replace(batch, tensors=replace(own, positions=own.positions[:, :2].contiguous())))
    assert_close(rig.executor.execute(batch).logits, expected)
