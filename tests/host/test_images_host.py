"""Images through the serving host over the null executor, whose validation sees every batch."""

from __future__ import annotations

import array
import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from trunnion_host.serving import HostConfig, Image, InvalidError, SamplingParams, ServingHost

PATCH_DIM = 3
PATCHES_PER_ROW = 4
PLACEHOLDER = 7
SMALL = HostConfig(
    model="null:images=1,axes=3",
    hardware="null",
    max_num_tokens=24,
    max_num_seqs=4,
    max_model_len=96,
    max_encoder_rows=24,
    block_size=4,
    exit_on_fatal=False,
)

Open = Callable[..., ServingHost]


@dataclasses.dataclass
class Prompt:
    """What is submitted."""

    token_ids: list[int]
    images: list[Image]
    positions: list[list[int]] | None
    position_delta: int


def picture(seed: int, num_tokens: int, first_token: int) -> Image:
    """A picture of 2 x 2n patches."""
    rng = random.Random(seed)
    values = array.array("f", [rng.random() for _ in range(num_tokens * PATCHES_PER_ROW * PATCH_DIM)])
    pixels = memoryview(values).cast("B").cast("f", (num_tokens * PATCHES_PER_ROW, PATCH_DIM))
    return Image(pixels=pixels, grid=(1, 2, 2 * num_tokens), first_token=first_token, num_tokens=num_tokens)


def prompt(*parts: Sequence[int] | tuple[str, int, int], axes: int = 3) -> Prompt:
    """Text, or ("image", seed, number of tokens), in turn; a picture advances positions by half its tokens."""
    made = Prompt([], [], [], 0)
    assert made.positions is not None
    following = 0
    for part in parts:
        count = part[2] if part[0] == "image" else len(part)
        if part[0] == "image":
            made.images.append(picture(part[1], count, len(made.token_ids)))
            made.token_ids += [PLACEHOLDER] * count
            made.positions += [[following, following + i % 2, following + i // 2] for i in range(count)]
            following += (count + 1) // 2
        else:
            made.token_ids += part
            made.positions += [[following + i] * 3 for i in range(count)]
            following += count
    made.position_delta = following - len(made.token_ids)
    if axes == 1:
        made.positions, made.position_delta = None, 0
    return made


@pytest.fixture(params=[False, True], ids=["plain", "overlap"])
def host(build: Path, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Open a host over the library without Python; when the test ends no block and no row is held."""
    small = dataclasses.replace(SMALL, overlap=request.param)
    (library,) = build.rglob("libtrunnion_host_null.so")
    hosts: list[ServingHost] = []

    def open_host(**changes: object) -> ServingHost:
        hosts.append(ServingHost(dataclasses.replace(small, **changes), library=library))  # type: ignore[arg-type]
        return hosts[-1]

    yield open_host
    for opened in hosts:
        stats = opened.stats()
        opened.close()
        assert (stats.encoder_rows_used, stats.blocks_used) == (0, 0)


def submit(host: ServingHost, made: Prompt, max_tokens: int = 8) -> int:
    return host.submit(
        made.token_ids,
        SamplingParams(max_tokens=max_tokens),
        images=made.images,
        positions=made.positions,
        position_delta=made.position_delta,
    )


def tokens_of(host: ServingHost, request_id: int) -> list[int]:
    return [event.token_id for event in host.stream(request_id) if not event.finished]


@pytest.mark.parametrize("axes", [1, 3])
def test_a_span_cut_at_every_offset(host: Open, axes: int) -> None:
    made = prompt([1, 2, 3], ("image", 1, 6), [4], ("image", 2, 5), [5, 6], axes=axes)
    model = f"null:images=1,axes={axes}"
    outputs = []
    for chunk in range(1, 18):
        opened = host(model=model, max_num_tokens=max(chunk, 4), max_num_seqs=min(chunk, 4), prefix_caching=False)
        outputs.append(tokens_of(opened, submit(opened, made)))
        assert opened.stats().images_encoded == 2
    assert all(output == outputs[0] for output in outputs)
    other = prompt([1, 2, 3], ("image", 1, 6), [4], ("image", 3, 5), [5, 6], axes=axes)
    assert tokens_of(opened, submit(opened, other)) != outputs[0]


def test_random_requests_are_never_refused(host: Open) -> None:
    rng = random.Random(4)
    prompts = []
    for i in range(20):
        image = ("image", rng.randrange(3), rng.randrange(1, 16))
        text = [rng.randrange(131) for _ in range(rng.randrange(1, 6))]
        more = ("image", rng.randrange(3), rng.randrange(1, 10))
        prompts.append(prompt(*[(text,), (image, text), (text, image, text), (image, text, more, [3])][i % 4]))
    alone = host(prefix_caching=False, max_num_tokens=96)
    expected = [tokens_of(alone, submit(alone, made)) for made in prompts]
    crowd = host(kv_blocks=14, model="null:images=1,axes=3,csr=1,fail_at=40")
    ids = [submit(crowd, made) for made in prompts * 3]
    assert [tokens_of(crowd, request_id) for request_id in ids] == expected * 3
    stats = crowd.stats()
    assert (stats.refused_steps, stats.failed_steps) == (0, 1)
    assert stats.preemptions > 0
    assert stats.encodes_skipped > 0
    assert 0 < stats.encoder_rows_peak <= stats.encoder_rows_total == 24


def test_a_picture_that_the_model_refuses_ends_its_request_alone(host: Open) -> None:
    good, bad = prompt([1], ("image", 1, 4), [2]), prompt([1], ("image", 2, 4), [2, 3])
    bad.images[0] = dataclasses.replace(bad.images[0], num_tokens=3)
    opened = host()
    (expected,) = (tokens_of(opened, submit(opened, good)),)
    ids = [submit(opened, good), submit(opened, bad), submit(opened, good)]
    ends = [list(opened.stream(request_id)) for request_id in ids]
    assert [event.token_id for event in ends[0][:-1]] == expected == [event.token_id for event in ends[2][:-1]]
    assert ends[1][-1].reason == "error"
    assert "the executor refused encoder_items[" in ends[1][-1].error
    assert "3 rows for 16 patches" in ends[1][-1].error


def test_pixels_and_positions_of_another_shape_are_refused(host: Open) -> None:
    made = prompt([1], ("image", 1, 4), [2])
    opened = host()
    assert (opened.num_position_axes, opened.encoder_patch_dim) == (3, 3)
    image = made.images[0]
    wrong = array.array("d", [0.0] * 6)
    changes = [
        ({"pixels": memoryview(wrong).cast("B").cast("d", (2, 3))}, "pixels have the format 'd'"),
        ({"pixels": array.array("f", [0.0] * 6)}, "pixels have the format 'f' and 1 axes"),
        ({"grid": (2, 8)}, r"grid is \(2, 8\)"),
        ({"grid": (1, 2, 10)}, r"images\[0\]\.pixels has the shape \[16, 3\]"),
        ({"first_token": 2**40}, "first_token is 1099511627776, which does not fit 32 bits"),
        ({"first_token": 3}, r"images\[0\] has tokens 3 \.\.\. 6"),
    ]
    for change, line in changes:
        with pytest.raises(InvalidError, match=line):
            submit(opened, dataclasses.replace(made, images=[dataclasses.replace(image, **change)]))
    with pytest.raises(InvalidError, match=r"positions must be \[6, 3\]"):
        submit(opened, dataclasses.replace(made, positions=[[0, 0, 0]]))
    with pytest.raises(InvalidError, match="this model takes none"):
        submit(host(model="null:axes=3", max_encoder_rows=0), made)


def test_the_trace_marks_steps_that_encode(host: Open, tmp_path: Path) -> None:
    import json

    trace = tmp_path / "trace.json"
    opened = host(trace_file=trace)
    tokens_of(opened, submit(opened, prompt([1], ("image", 1, 4), [2]), max_tokens=3))
    opened.close()
    events = json.loads(trace.read_text())
    steps = [event["args"]["images_encoded"] for event in events if event["name"] == "step"]
    assert steps == [1, 0, 0]
    used = [event["args"]["used"] for event in events if event["name"] == "encoder rows"]
    assert len(used) == 3 and used[-1] == 0
