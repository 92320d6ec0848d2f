"""A vision-language model through the C++ host against transformers: the same tokens however its images are cut."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from transformers import Qwen2_5_VLForConditionalGeneration

from trunnion.vision.prompt import VisionPrompt
from trunnion_host.serving import HostConfig, Image, InvalidError, SamplingParams, ServingHost

from .tiny_models import save_model
from .tiny_vision import ask, generate, save_picture, save_vision_model

NUM_TOKENS = 12


@pytest.fixture(scope="module")
def library(build: Path) -> Path:
    (found,) = (build / "trunnion-host").glob("_host.abi3.so")
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Qwen2_5_VLForConditionalGeneration]:
    folder = tmp_path_factory.mktemp("vision") / "model"
    return folder, save_vision_model(folder)


@dataclasses.dataclass
class Case:
    """A prompt and its true answer."""

    prompt: VisionPrompt
    expected: list[int]


@pytest.fixture(scope="module")
def cases(
    model: tuple[Path, Qwen2_5_VLForConditionalGeneration], tmp_path_factory: pytest.TempPathFactory
) -> list[Case]:
    """One image, two images, another image with the first one's text, no image."""
    folder, reference = model
    pictures = tmp_path_factory.mktemp("pictures")
    first = save_picture(pictures / "first.png", 33, 24, 1)
    second = save_picture(pictures / "second.png", 24, 16, 2)
    third = save_picture(pictures / "third.png", 33, 24, 3)
    prompts = [
        ask(folder, "what?", [first]),
        ask(folder, "which?", [second, first]),
        ask(folder, "what?", [third]),
        ask(folder, "what?", []),
    ]
    return [Case(prompt, generate(reference, prompt, NUM_TOKENS)) for prompt in prompts]


def config_of(folder: Path, **changes: int | bool) -> HostConfig:
    limits = {
        "max_num_tokens": 64,
        "max_num_seqs": 4,
        "max_model_len": 96,
        "block_size": 8,
        "max_encoder_rows": 24,
    }
    return HostConfig(model=str(folder), exit_on_fatal=False, **{**limits, **changes})  # type: ignore[arg-type]


def submit(host: ServingHost, prompt: VisionPrompt) -> int:
    return host.submit(
        prompt.token_ids,
        SamplingParams(max_tokens=NUM_TOKENS),
        images=[
            Image(pixels=image.pixels, grid=image.grid, first_token=image.first_token, num_tokens=image.num_tokens)
            for image in prompt.images
        ],
        positions=prompt.positions.tolist() if prompt.images else None,
        position_delta=prompt.position_delta,
    )


def tokens_of(host: ServingHost, request_id: int) -> list[int]:
    events = list(host.stream(request_id))
    assert events[-1].reason == "length", events[-1].error
    return [event.token_id for event in events[:-1]]


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
def test_answers_are_those_of_transformers(
    model: tuple[Path, object], library: Path, cases: list[Case], overlap: bool
) -> None:
    assert len({tuple(case.expected) for case in cases}) == len(cases), "each prompt has an answer of its own"
    assert [len(case.prompt.images) for case in cases] == [1, 2, 1, 0]
    with ServingHost(config_of(model[0], overlap=overlap), library=library) as host:
        for _ in range(2):
            ids = [submit(host, case.prompt) for case in cases]
            assert [tokens_of(host, request_id) for request_id in ids] == [case.expected for case in cases]
        stats = host.stats()
        assert stats.encodes_skipped > 0
        assert (stats.refused_steps, stats.failed_steps, stats.encoder_rows_used, stats.blocks_used) == (0, 0, 0, 0)


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
def test_an_image_may_be_cut_at_every_offset(
    model: tuple[Path, object], library: Path, cases: list[Case], overlap: bool
) -> None:
    one, two = cases[0], cases[1]
    spans = {offset for image in two.prompt.images for offset in range(1, image.num_tokens)}
    cut: set[int] = set()
    # One request at a time: its chunks end at the multiples of the step's size.
    for chunk in range(1, 12):
        for image in two.prompt.images:
            end = image.first_token + image.num_tokens
            cut |= {at - image.first_token for at in range(0, end, chunk) if at > image.first_token}
        limits = {"max_num_tokens": chunk, "max_num_seqs": 1, "prefix_caching": False, "overlap": overlap}
        with ServingHost(config_of(model[0], **limits), library=library) as host:
            assert tokens_of(host, submit(host, two.prompt)) == two.expected
            assert tokens_of(host, submit(host, one.prompt)) == one.expected
            assert host.stats().images_encoded == 3
    assert cut == spans


def test_steady_decodes_are_replays(model: tuple[Path, object], library: Path, cases: list[Case]) -> None:
    with ServingHost(config_of(model[0]), library=library) as host:
        ids = [submit(host, case.prompt) for case in cases]
        assert [tokens_of(host, request_id) for request_id in ids] == [case.expected for case in cases]
        stats = host.stats()
        assert (stats.eager_steps, stats.replays) == (0, stats.steps), stats.eager


def test_images_for_another_model_are_refused(library: Path, cases: list[Case], tmp_path: Path) -> None:
    save_model("llama", tmp_path)
    config = dataclasses.replace(config_of(tmp_path), max_encoder_rows=0)
    prompt = dataclasses.replace(cases[0].prompt, token_ids=[1] * len(cases[0].prompt.token_ids))
    with ServingHost(config, library=library) as host, pytest.raises(InvalidError, match="and this model takes none"):
        submit(host, prompt)


def test_two_ranks_encode_what_one_does(model: tuple[Path, object], library: Path, cases: list[Case]) -> None:
    config = dataclasses.replace(config_of(model[0], max_num_tokens=11), tp_size=2, threads=1)
    with ServingHost(config, library=library) as host:
        ids = [submit(host, case.prompt) for case in cases]
        assert [tokens_of(host, request_id) for request_id in ids] == [case.expected for case in cases]
