"""Patches of images against transformers' Pillow processor, to the bit, and the images that are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as reference_smart_resize

from trunnion.errors import ConfigError, ImageError, UnsupportedError
from trunnion.vision.patches import PatchSettings, load_image, patchify, read_patch_settings, smart_resize

PUBLISHED = {
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2_5_VLProcessor",
}
"""What Qwen2.5-VL-3B-Instruct publishes."""


def picture(width: int, height: int, mode: str = "RGB") -> Image.Image:
    rng = np.random.default_rng(width * 1000 + height)
    channels = len(Image.new(mode, (1, 1)).getbands())
    shape = (height, width) if channels == 1 else (height, width, channels)
    return Image.fromarray(rng.integers(0, 256, shape, np.uint8), mode)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "LA"])
@pytest.mark.parametrize(("width", "height"), [(1, 1), (63, 100), (200, 56), (31, 700), (112, 84)])
def test_patches_equal_transformers(width: int, height: int, mode: str) -> None:
    image = picture(width, height, mode)
    expected = Qwen2VLImageProcessorPil(**PUBLISHED)(image, return_tensors="np")
    pixels, grid = patchify(image, PatchSettings.from_hf(PUBLISHED))
    assert pixels.dtype == np.float32 and list(grid) == expected["image_grid_thw"][0].tolist()
    np.testing.assert_array_equal(pixels, expected["pixel_values"])


SETTINGS: dict[str, dict[str, Any]] = {
    "small": {"min_pixels": 100, "max_pixels": 1000, "patch_size": 4, "merge_size": 2},
    "size": {"size": {"shortest_edge": 64, "longest_edge": 900}, "patch_size": 3, "merge_size": 3},
    "bilinear": {"resample": 2, "temporal_patch_size": 1, "size": {"shortest_edge": 64, "longest_edge": 4096}},
    "not-normalised": {"do_normalize": False, "max_pixels": 3136},
    "not-rescaled": {"do_rescale": False, "max_pixels": 3136},
    "factor": {"rescale_factor": 0.01, "image_mean": [0.5, 0.4, 0.3], "image_std": [1, 2, 3], "max_pixels": 3136},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_do_what_they_do_in_transformers(name: str) -> None:
    config = SETTINGS[name]
    expected = Qwen2VLImageProcessorPil(**json.loads(json.dumps(config)))(picture(57, 43), return_tensors="np")
    settings = PatchSettings.from_hf(config)
    pixels, grid = patchify(picture(57, 43), settings)
    assert list(grid) == expected["image_grid_thw"][0].tolist() and pixels.shape[1] == settings.patch_dim
    np.testing.assert_array_equal(pixels, expected["pixel_values"])


def test_sizes_equal_transformers() -> None:
    for height in (1, 7, 27, 28, 29, 63, 500, 1000, 5000):
        for width in (1, 13, 14, 42, 97, 1001, 6000):
            if max(height, width) <= 200 * min(height, width):
                for bounds in ((3136, 12845056), (784, 784), (50000, 60000)):
                    expected = reference_smart_resize(height, width, 28, *bounds)
                    assert smart_resize(height, width, 28, *bounds) == expected


def test_settings_are_read_from_either_file(tmp_path: Path) -> None:
    nested = {"processor_class": "Qwen2_5_VLProcessor", "image_processor": PUBLISHED | {"patch_size": 7}}
    (tmp_path / "processor_config.json").write_text(json.dumps(nested))
    assert read_patch_settings(tmp_path).patch_size == 7
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PUBLISHED))
    assert read_patch_settings(tmp_path) == PatchSettings(max_pixels=12845056)


def test_a_folder_without_settings_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not say how images are processed; expected preprocessor_config"):
        read_patch_settings(tmp_path)


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        ({"image_processor_type": "CLIPImageProcessor"}, UnsupportedError, "'CLIPImageProcessor' is not supported"),
        ({"do_center_crop": True}, UnsupportedError, "do_center_crop True is not supported"),
        ({"patch_size": 0}, ConfigError, "patch_size must be like 14, got 0"),
        ({"patch_size": "14"}, ConfigError, "patch_size must be like 14, got '14'"),
        ({"do_resize": 1}, ConfigError, "do_resize must be like True, got 1"),
        ({"image_std": [1, 2]}, ConfigError, "image_std must be like"),
        ({"image_std": [1, 0, 1]}, ConfigError, "image_std must be like 0.5, got 0"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_settings_are_named(config: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        PatchSettings.from_hf(config)


def test_a_picture_is_turned_as_its_exif_says(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(40, 20).save(tmp_path / "turned.png", exif=exif)
    assert load_image(tmp_path / "turned.png").size == (20, 40)


@pytest.mark.parametrize("content", [None, b"", b"not a picture", b"\x89PNG\r\n\x1a\n broken"], ids=repr)
def test_a_file_that_is_no_picture_is_named(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ImageError, match=r"image '.*image\.png' cannot be read") as caught:
        load_image(path)
    assert "\n" not in str(caught.value)


def test_a_picture_out_of_shape_is_refused() -> None:
    with pytest.raises(ImageError, match="the image is 201 x 1: one side is 201 times the other, the limit is 200"):
        patchify(picture(201, 1), PatchSettings())
    with pytest.raises(ImageError, match="the image is 30 x 28, and do_resize is off: expected multiples of 28"):
        patchify(picture(30, 28), PatchSettings(do_resize=False))


def test_without_pillow_the_extra_is_named() -> None:
    code = (
        "import importlib.util, pathlib\n"
        "importlib.util.find_spec = lambda name, package=None: None\n"
        "import trunnion.vision.patches as patches\n"
        "patches.load_image(pathlib.Path('x.png'))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "images need Pillow, which is not installed: pip install 'trunnion[images]'" in result.stderr
