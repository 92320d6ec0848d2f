"""`--image` and `/image`: what the host is given for them, and what is refused; a real model answers about a PNG."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.host.tiny_vision import ask, generate, save_picture, save_vision_model

from trunnion.cli.main import run
from trunnion.cli.serving import open_serving_host

Cli = Callable[..., Any]
HAS_LIBRARY = find_spec("trunnion_host") is not None and find_spec("trunnion_host._host") is not None


@pytest.fixture(scope="module")
def vision_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("vision") / "model"
    return folder, save_vision_model(folder)


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    return [save_picture(tmp_path / "one.png", 33, 24, 1), save_picture(tmp_path / "two.png", 16, 16, 2)]


def test_images_come_before_the_text_of_every_prompt(
    cli: Cli, vision_model: tuple[Path, Any], pictures: list[Path]
) -> None:
    folder, _ = vision_model
    arguments = [part for path in pictures for part in ("--image", str(path))]
    outcome = cli("generate", "--model", str(folder), *arguments, "what?", "why?")
    assert outcome.code == 0
    for request, text in zip(outcome.host.seen, ("what?", "why?"), strict=True):
        expected = ask(folder, text, pictures)
        assert request.prompt_ids == expected.token_ids
        assert [image.digest for image in request.vision.images] == [image.digest for image in expected.images]
        np.testing.assert_array_equal(request.vision.positions, expected.positions)
    assert outcome.host.options.limits.max_encoder_rows == sum(image.num_tokens for image in expected.images)
    asked = cli("generate", "--model", str(folder), "--encoder-rows", "40", *arguments, "what?")
    assert asked.host.options.limits.max_encoder_rows == 40
    text_only = cli("generate", "--model", str(folder), "what?")
    assert (text_only.host.options.limits.max_encoder_rows, text_only.host.seen[0].vision) == (0, None)


def test_images_of_a_conversation(
    cli: Cli, vision_model: tuple[Path, Any], pictures: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder, _ = vision_model
    no_picture = tmp_path / "text.png"
    no_picture.write_text("no picture")
    lines = ["hello", f"/image {pictures[0]}", "what?", "/image", f"/image {no_picture}", "why?", "/reset", "hi"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    outcome = cli("chat", "--model", str(folder))
    assert outcome.code == 0
    assert [0 if request.vision is None else len(request.vision.images) for request in outcome.host.seen] == [
        0,
        1,
        1,
        0,
    ]
    what, why = outcome.host.seen[1:3]
    assert why.prompt_ids[: len(what.prompt_ids)] == what.prompt_ids
    assert "/image needs a file: /image FILE" in outcome.err
    assert "cannot be read" in outcome.err
    # 2048 pixels in squares of 8 x 8.
    assert outcome.host.options.limits.max_encoder_rows == 32


def test_a_model_without_vision_refuses_images(
    cli: Cli, model: Path, pictures: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = cli("generate", "--model", str(model), "--image", str(pictures[0]), "what?")
    assert (outcome.code, outcome.host) == (2, None)
    assert outcome.err == f"trunnion: {model} takes no images: llama has no vision tower\n"
    outcome = cli("generate", "--model", str(model), "--encoder-rows", "8", "what?")
    assert outcome.err == "trunnion: --encoder-rows 8 is for models with a vision tower\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"/image {pictures[0]}\nhello\n"))
    outcome = cli("chat", "--model", str(model))
    assert (outcome.code, outcome.out) == (0, "ok\n")
    assert "takes no images" in outcome.err


def test_text_beside_a_tower_that_is_not_run(
    cli: Cli, model: Path, pictures: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "vision_config": {}}
    (model / "config.json").write_text(json.dumps(config | {"text_config": {"max_position_embeddings": 512}}))
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
    outcome = cli("chat", "--model", str(model))
    assert (outcome.code, outcome.out, outcome.host.options.limits.max_encoder_rows) == (0, "ok\n", 0)
    outcome = cli("generate", "--model", str(model), "--image", str(pictures[0]), "what?")
    assert outcome.err == f"trunnion: {model} takes no images: mistral3 is run without its vision tower\n"
    outcome = cli("generate", "--model", str(model), "--encoder-rows", "8", "what?")
    assert outcome.err == "trunnion: --encoder-rows 8 is for models with a vision tower\n"


def test_mistakes_are_named(cli: Cli, vision_model: tuple[Path, Any], pictures: list[Path]) -> None:
    folder, _ = vision_model
    cases = [
        (["--raw", "--image", str(pictures[0])], "--image needs the model's chat template, which --raw leaves out"),
        (["--image", "nowhere.png"], "image 'nowhere.png' cannot be read: [Errno 2] No such file or directory"),
        (["--encoder-rows", "0"], "--encoder-rows must be at least 1, got 0"),
    ]
    for arguments, line in cases:
        outcome = cli("generate", "--model", str(folder), *arguments, "what?")
        assert (outcome.code, outcome.host) == (2, None)
        assert line in outcome.err and outcome.err.count("\n") == 1


@pytest.mark.skipif(not HAS_LIBRARY, reason="trunnion-host is not installed")
def test_an_answer_about_a_picture_is_that_of_transformers(
    vision_model: tuple[Path, Any], pictures: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, reference = vision_model
    expected = [generate(reference, ask(folder, text, pictures), 10) for text in ("what?", "why?")]
    arguments = [part for path in pictures for part in ("--image", str(path))]
    common = ["--model", str(folder), *arguments, "--json", "--stats", "--temperature", "0", "--max-tokens", "10"]
    code = run(["generate", *common, "--max-num-tokens", "7", "what?", "why?"], open_host=open_serving_host)
    out, err = capsys.readouterr()
    assert code == 0, err
    assert [json.loads(line)["token_ids"] for line in out.splitlines()] == expected
    figures = dict(line.split(maxsplit=1) for line in err.splitlines() if len(line.split()) == 2)
    assert (figures["encoder_rows_used"], figures["eager_steps"]) == ("0", "0")
    assert int(figures["images_encoded"]) + int(figures["encodes_skipped"]) == 4
    # Fewer rows than both pictures need, and a picture that no pool of this size can take.
    rows = str(max(image.num_tokens for image in ask(folder, "", pictures).images))
    assert run(["generate", *common, "--encoder-rows", rows, "what?"], open_host=open_serving_host) == 0
    assert json.loads(capsys.readouterr().out)["token_ids"] == expected[0]
    assert run(["generate", *common, "--encoder-rows", "3", "what?"], open_host=open_serving_host) == 2
    assert "rows of the encoder pool, max_encoder_rows is 3" in capsys.readouterr().err
