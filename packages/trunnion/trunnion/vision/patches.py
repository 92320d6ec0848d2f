"""An image as a vision tower takes it: resized to whole patches, normalised, cut into rows of `patch_dim` numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from trunnion.errors import ConfigError, ImageError, UnsupportedError
from trunnion.hf_config import read_json_object

if TYPE_CHECKING:
    from PIL.Image import Image, Resampling

Grid = tuple[int, int, int]
"""Patches of an image along time, height and width."""

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
"""Where the settings are: the first by themselves, the second under `image_processor`."""
PROCESSOR_TYPES = ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast", "Qwen2_5_VLImageProcessor")
MAX_ASPECT_RATIO = 200
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
_NOT_APPLIED = {"do_center_crop": False, "do_pad": False}
"""Settings that would change the patches and are not implemented, with the value that asks for nothing."""


@dataclass(frozen=True, kw_only=True)
class PatchSettings:
    """The fields of `preprocessor_config.json` that shape the patches; defaults are those of Qwen2-VL's processor."""

    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280
    patch_size: int = 14
    temporal_patch_size: int = 2
    merge_size: int = 2
    """Patches along each side of the square that becomes one token."""
    do_resize: bool = True
    resample: int = 3
    """Pillow's number of the filter; 3 is bicubic."""
    do_rescale: bool = True
    rescale_factor: float = 1 / 255
    do_normalize: bool = True
    image_mean: tuple[float, ...] = _CLIP_MEAN
    image_std: tuple[float, ...] = _CLIP_STD

    @property
    def patch_dim(self) -> int:
        """Numbers of a patch: channels x time x height x width."""
        return 3 * self.temporal_patch_size * self.patch_size**2

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> PatchSettings:
        """Read an image processor's settings, `min_pixels` or the newer `size` included.

        Raises:
            ConfigError: a field of another type or out of range.
            UnsupportedError: another processor, or a step that is not implemented.
        """
        kind = config.get("image_processor_type", PROCESSOR_TYPES[0])
        if kind not in PROCESSOR_TYPES:
            raise UnsupportedError(f"image processor {kind!r} is not supported; choices: {', '.join(PROCESSOR_TYPES)}")
        for name, off in _NOT_APPLIED.items():
            if config.get(name) not in (None, off):
                raise UnsupportedError(f"image processor: {name} {config[name]!r} is not supported; choices: {off!r}")
        size = config.get("size") or {}
        given = {
            "min_pixels": size.get("shortest_edge", size.get("min_pixels")),
            "max_pixels": size.get("longest_edge", size.get("max_pixels")),
            **{key: value for key, value in config.items() if value is not None},
        }
        defaults = cls()
        values = {
            name: _like(name, given[name], getattr(defaults, name))
            for name in cls.__dataclass_fields__
            if given.get(name) is not None
        }
        return cls(**values)


def read_patch_settings(folder: Path) -> PatchSettings:
    """The image processor's settings of a model folder.

    Raises:
        ConfigError: the folder has none, or they cannot be read.
        UnsupportedError: as `PatchSettings.from_hf`.
    """
    for name in PROCESSOR_FILES:
        path = folder / name
        if path.is_file():
            content = read_json_object(path)
            settings = content.get("image_processor", content if name == PROCESSOR_FILES[0] else None)
            if isinstance(settings, Mapping):
                return PatchSettings.from_hf(settings)
    raise ConfigError(f"{folder} does not say how images are processed; expected {' or '.join(PROCESSOR_FILES)}")


def load_image(path: Path) -> Image:
    """The picture in a file, turned as its EXIF says, in RGB.

    Raises:
        UnsupportedError: Pillow is not installed.
        ImageError: not a picture that Pillow reads, by name.
    """
    _check_pillow()
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            return in_rgb(ImageOps.exif_transpose(image))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ImageError(f"image {str(path)!r} cannot be read: {' '.join(str(error).split())}") from None


def in_rgb(image: Image) -> Image:
    """The picture in RGB, what is transparent in it on white."""
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image.convert("RGB")
    from PIL import Image as images

    image = image.convert("RGBA")
    return images.alpha_composite(images.new("RGBA", image.size, (255, 255, 255, 255)), image).convert("RGB")


def patchify(image: Image, settings: PatchSettings) -> tuple[npt.NDArray[np.float32], Grid]:
    """Resize, rescale, normalise and cut: -> patches [t * h * w, patch_dim] float32 and their grid (t, h, w).

    Patches come in squares of `merge_size`, squares row by row; a patch holds its channels, each for every frame (the
    picture repeated), each row by row. The arithmetic is that of transformers' Pillow processor, to the bit.

    Raises:
        ImageError: the picture is more than 200 times as long as it is wide, or has no whole patches and may not be
            resized.
    """
    pixels = np.asarray(_resized(in_rgb(image), settings)).transpose(2, 0, 1)  # [C, H, W]
    values = pixels.astype(np.float64) * settings.rescale_factor if settings.do_rescale else pixels
    values = values.astype(np.float32)
    if settings.do_normalize:
        mean, std = (np.array(rows, np.float32)[:, None, None] for rows in (settings.image_mean, settings.image_std))
        values = (values - mean) / std
    size, merge = settings.patch_size, settings.merge_size
    channels, height, width = values.shape[0], values.shape[1] // size, values.shape[2] // size
    squares = values.reshape(channels, height // merge, merge, size, width // merge, merge, size)
    squares = squares.transpose(1, 4, 2, 5, 0, 3, 6)[:, :, :, :, :, None]  # [h, w, m, m, C, 1, P, P]
    frames = np.repeat(squares, settings.temporal_patch_size, axis=5)
    return frames.reshape(height * width, settings.patch_dim), (1, height, width)


def smart_resize(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Height and width as multiples of `factor` within the bounds on their product, near the same shape.

    Raises:
        ImageError: one side is more than 200 times the other.
    """
    ratio = max(height, width) / min(height, width)
    if ratio > MAX_ASPECT_RATIO:
        raise ImageError(
            f"the image is {width} x {height}: one side is {ratio:.0f} times the other, the limit is {MAX_ASPECT_RATIO}"
        )
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    if new_height * new_width > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        new_height = max(factor, math.floor(height / shrink / factor) * factor)
        new_width = max(factor, math.floor(width / shrink / factor) * factor)
    elif new_height * new_width < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        new_height = math.ceil(height * grow / factor) * factor
        new_width = math.ceil(width * grow / factor) * factor
    return new_height, new_width


def _resized(image: Image, settings: PatchSettings) -> Image:
    factor = settings.patch_size * settings.merge_size
    if not settings.do_resize:
        if image.height % factor or image.width % factor:
            raise ImageError(
                f"the image is {image.width} x {image.height}, and do_resize is off: expected multiples of {factor}"
            )
        return image
    height, width = smart_resize(image.height, image.width, factor, settings.min_pixels, settings.max_pixels)
    return image.resize((width, height), resample=cast("Resampling", settings.resample))


def _check_pillow() -> None:
    if find_spec("PIL") is None:
        raise UnsupportedError("images need Pillow, which is not installed: pip install 'trunnion[images]'")


def _like(name: str, value: Any, default: Any) -> Any:
    """`value` if it is of the default's type and, where it is a number, positive."""
    problem = ConfigError(f"image processor: {name} must be like {default!r}, got {value!r}")
    if isinstance(default, tuple):
        if not isinstance(value, list | tuple) or len(value) != len(default):
            raise problem
        return tuple(float(_like(name, item, 0.5)) for item in value)
    if isinstance(default, bool) != isinstance(value, bool):
        raise problem
    wanted = (int, float) if isinstance(default, float) else type(default)
    if not isinstance(value, wanted) or (not isinstance(value, bool) and name != "resample" and value <= 0):
        raise problem
    return value
