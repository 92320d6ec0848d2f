"""Prompts with images: placeholders and positions against transformers, spans, digests, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from trunnion.errors import ConfigError, ImageError, UnsupportedError
from trunnion.vision.patches import Grid
from trunnion.vision.positions import mrope_positions
from trunnion.vision.prompt import VisionPrompt, load_vision, user_message

SPECIAL = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
PROCESSOR = {"patch_size": 4, "temporal_patch_size": 2, "merge_size": 2, "min_pixels": 64, "max_pixels": 1024}
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "vision_config": {"patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2},
}


def write_model(folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    backend = Tokenizer(models.BPE(vocab={chr(code): code for code in range(256)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    token = backend.token_to_id("<|image_pad|>")
    (folder / "config.json").write_text(json.dumps(CONFIG | {"image_token_id": token} | changes))
    return folder


def picture(width: int, height: int) -> Image.Image:
    rng = np.random.default_rng(width)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def reference_positions(prompt: VisionPrompt, image_token: int) -> tuple[np.ndarray, int]:
    """As transformers counts them."""
    config = SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2, tokens_per_second=2))
    model = SimpleNamespace(
        config=config,
        get_vision_position_ids=lambda *args, **kwargs: Qwen2_5_VLModel.get_vision_position_ids(None, *args, **kwargs),
    )
    ids = torch.tensor([prompt.token_ids])
    grids = torch.tensor([image.grid for image in prompt.images]) if prompt.images else None
    types = (ids == image_token).int()
    positions, deltas = Qwen2_5_VLModel.get_rope_index(model, ids, types, grids)
    return positions[:, 0].T.numpy(), int(deltas[0, 0])


CHATS: dict[str, list[list[tuple[int, int]]]] = {
    "text": [[]],
    "one": [[(16, 16)]],
    "wide": [[(64, 8)]],
    "tall": [[(8, 48)]],
    "two": [[(24, 16), (8, 32)]],
    "turns": [[(17, 9)], [], [(9, 33), (40, 16)]],
}


@pytest.mark.parametrize("name", CHATS)
def test_a_chat_equals_transformers(name: str, folder: Path, tmp_path: Path) -> None:
    processor = load_vision(folder)
    messages, sizes = [], []
    for turn, images in enumerate(CHATS[name]):
        paths = []
        for width, height in images:
            paths.append(tmp_path / f"{turn}-{width}.png")
            picture(width, height).save(paths[-1])
            sizes.append((width, height))
        messages += [user_message(f"question {turn}", paths), {"role": "assistant", "content": "yes"}]
    prompt = processor.encode_chat(messages[:-1])

    text = processor.tokenizer.chat_template.render(messages[:-1])
    for width, height in sizes:
        expected = Qwen2VLImageProcessorPil(**PROCESSOR)(picture(width, height), return_tensors="np")
        image = prompt.images[sizes.index((width, height))]
        np.testing.assert_array_equal(image.pixels, expected["pixel_values"])
        count = int(expected["image_grid_thw"][0].prod()) // 4
        assert image.num_tokens == count
        # As transformers' processor expands its text, image by image.
        text = text.replace("<|image_pad|>", "<|placeholder|>" * count, 1)
    text = text.replace("<|placeholder|>", "<|image_pad|>")
    assert prompt.token_ids == processor.tokenizer.encode(text, add_special_tokens=False)

    positions, delta = reference_positions(prompt, processor.image_token_id)
    np.testing.assert_array_equal(prompt.positions, positions)
    assert prompt.positions.dtype == np.int32 and prompt.position_delta == delta
    for image in prompt.images:
        span = prompt.token_ids[image.first_token : image.first_token + image.num_tokens]
        assert set(span) == {processor.image_token_id}
    assert sum(image.num_tokens for image in prompt.images) == prompt.token_ids.count(processor.image_token_id)


@pytest.mark.parametrize("spans", [[(3, (1, 4, 4))], [(0, (1, 2, 2))], [(1, (1, 2, 8)), (5, (1, 6, 2))]], ids=str)
def test_positions_never_run_ahead_of_tokens(spans: list[tuple[int, Grid]]) -> None:
    positions, delta = mrope_positions(12, spans, 2)
    assert (positions <= np.arange(12)[:, None]).all() and delta <= 0


def test_spans_that_overlap_are_refused() -> None:
    with pytest.raises(ValueError, match=r"tokens 2 \.\.\. 5 overlap others or go past 12 tokens"):
        mrope_positions(12, [(0, (1, 4, 4)), (2, (1, 4, 4))], 2)
    with pytest.raises(ValueError, match=r"tokens 9 \.\.\. 12 overlap others or go past 12 tokens"):
        mrope_positions(12, [(9, (1, 4, 4))], 2)


def test_digests_tell_images_apart(folder: Path) -> None:
    processor = load_vision(folder)
    token = processor.image_token_id
    images = processor.expand([token, 1, token, 2, token], [picture(16, 16), picture(16, 16), picture(17, 16)]).images
    assert images[0].digest == images[1].digest != images[2].digest


def test_a_placeholder_in_the_users_text_is_refused(folder: Path, tmp_path: Path) -> None:
    picture(16, 16).save(tmp_path / "a.png")
    with pytest.raises(ConfigError, match=r"2 image placeholders \(token 258\) for 1 images"):
        load_vision(folder).encode_chat([user_message("what is <|image_pad|>?", [tmp_path / "a.png"])])


def test_a_template_without_images_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages[0]['role'] }}")
    picture(16, 16).save(tmp_path / "a.png")
    with pytest.raises(ConfigError, match="0 image placeholders"):
        load_vision(folder).encode_chat([user_message("what?", [tmp_path / "a.png"])])


def test_the_template_of_older_processors_is_read(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    assert load_vision(folder).encode_chat([user_message("hi", [])]).token_ids


def test_an_entry_without_a_file_is_named(folder: Path) -> None:
    with pytest.raises(ImageError, match="an image entry must name a file"):
        load_vision(folder).encode_chat([{"role": "user", "content": [{"type": "image", "url": "x"}]}])


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"vision_config": None}, UnsupportedError, "takes no images: qwen2_5_vl has no vision tower"),
        (
            {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "image_token_id": None},
            UnsupportedError,
            "takes no images: mistral3 is run without its vision tower",
        ),
        ({"image_token_id": None}, ConfigError, "image_token_id must be a token id, got None"),
        ({"vision_config": {"patch_size": 14}}, ConfigError, "patch_size is 14, the image processor's is 4"),
        (
            {"vision_config": CONFIG["vision_config"] | {"spatial_merge_size": 1}},
            ConfigError,
            "spatial_merge_size is 1, the image processor's is 2",
        ),
    ],
    ids=["text-model", "text-beside-a-tower", "no-token", "patch-size", "merge-size"],
)
def test_a_model_that_cannot_take_images_is_named(
    changes: dict[str, Any], error: type[Exception], words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        load_vision(write_model(tmp_path / "other", **changes))
