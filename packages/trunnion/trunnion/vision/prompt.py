"""A conversation with images as the tokens, positions, patches and spans that a host submits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trunnion import registry
from trunnion.errors import ConfigError, ImageError, UnsupportedError
from trunnion.hf_config import read_config
from trunnion.text.chat_template import Message
from trunnion.text.tokenizer import TextTokenizer, load_folder_tokenizer
from trunnion.vision.patches import Grid, PatchSettings, load_image, patchify, read_patch_settings
from trunnion.vision.positions import mrope_positions

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, kw_only=True)
class PromptImage:
    """One image of a prompt. Its token `first_token + i` takes row i of what the encoder makes of it."""

    pixels: npt.NDArray[np.float32]
    """[num_patches, patch_dim]"""
    grid: Grid
    """Patches along time, height and width."""
    first_token: int
    num_tokens: int
    """Placeholder tokens in the prompt: the rows it takes of an encoder pool."""
    digest: bytes
    """SHA-256 of patches and grid: equal for equal images, for the keys of a prefix cache."""


@dataclass(frozen=True, kw_only=True)
class VisionPrompt:
    """What a request with images starts from; without images it is an ordinary prompt with a delta of 0."""

    token_ids: list[int]
    positions: npt.NDArray[np.int32]
    """[num_tokens, 3]: time, height, width of each token."""
    position_delta: int
    """Token i >= num_tokens, which the model makes, is at position i + delta on all three axes; 0 or negative."""
    images: tuple[PromptImage, ...]
    """In the order of their tokens."""


class VisionProcessor:
    """Makes prompts for one model; made by `load_vision`."""

    def __init__(self, tokenizer: TextTokenizer, settings: PatchSettings, image_token_id: int) -> None:
        self.tokenizer = tokenizer
        self.settings = settings
        self.image_token_id = image_token_id

    def encode_chat(self, messages: Sequence[Message]) -> VisionPrompt:
        """A conversation up to where the model's answer begins.

        A message's `content` is text, or a list of `{"type": "text", "text": ...}` and `{"type": "image", "image": X}`,
        X the path of a file or an open Pillow image.

        Raises:
            ImageError: a file is no picture, or an entry names none.
            ConfigError: the chat template refuses the messages, or makes more or fewer placeholders than images.
            UnsupportedError: Pillow is not installed.
        """
        plain, images = _take_images(messages)
        ids = self.tokenizer.encode_chat(plain)
        return self.expand(ids, [image if not isinstance(image, Path) else load_image(image) for image in images])

    def expand(self, ids: Sequence[int], images: Sequence[Image]) -> VisionPrompt:
        """Tokens with one placeholder per image -> the prompt, each placeholder as often as its image has tokens.

        Raises:
            ConfigError: not as many placeholders as images.
            ImageError: as `patchify`.
        """
        found = sum(id == self.image_token_id for id in ids)
        if found != len(images):
            raise ConfigError(
                f"the prompt has {found} image placeholders (token {self.image_token_id}) for {len(images)} images"
            )
        tokens: list[int] = []
        items: list[PromptImage] = []
        waiting = iter(images)
        for id in ids:
            if id != self.image_token_id:
                tokens.append(id)
                continue
            pixels, grid = patchify(next(waiting), self.settings)
            count = len(pixels) // self.settings.merge_size**2
            items.append(
                PromptImage(
                    pixels=pixels, grid=grid, first_token=len(tokens), num_tokens=count, digest=_digest(pixels, grid)
                )
            )
            tokens += [id] * count
        spans = [(item.first_token, item.grid) for item in items]
        positions, delta = mrope_positions(len(tokens), spans, self.settings.merge_size)
        return VisionPrompt(token_ids=tokens, positions=positions, position_delta=delta, images=tuple(items))


def load_vision(folder: Path, tokenizer: TextTokenizer | None = None, port: Path | None = None) -> VisionProcessor:
    """What a model folder says of images; `tokenizer` is the folder's, if it is loaded already, `port` the folder of a
    family that is not installed.

    Raises:
        UnsupportedError: the model takes no images.
        ConfigError: a file is missing or unreadable, or the two files disagree.
    """
    config = read_config(folder) if folder.is_dir() else {}
    vision, token = config.get("vision_config"), config.get("image_token_id")
    kind = config.get("model_type", "this kind of model")
    if not isinstance(vision, Mapping):
        raise UnsupportedError(f"{folder} takes no images: {kind} has no vision tower")
    if not registry.takes_images(config, port=port):
        raise UnsupportedError(f"{folder} takes no images: {kind} is run without its vision tower")
    if not isinstance(token, int) or isinstance(token, bool) or token < 0:
        raise ConfigError(f"config.json: image_token_id must be a token id, got {token!r}")
    settings = read_patch_settings(folder)
    pairs = (("patch_size", 14), ("temporal_patch_size", 2), ("spatial_merge_size", 2))
    for name, default in pairs:
        wanted, given = vision.get(name, default), getattr(settings, name.removeprefix("spatial_"))
        if wanted != given:
            raise ConfigError(f"{folder}: the model's {name} is {wanted!r}, the image processor's is {given!r}")
    return VisionProcessor(load_folder_tokenizer(folder) if tokenizer is None else tokenizer, settings, token)


def user_message(text: str, images: Sequence[str | Path]) -> Message:
    """One question about some images: the images first, then the text."""
    content: list[dict[str, Any]] = [{"type": "image", "image": str(path)} for path in images]
    return {"role": "user", "content": [*content, {"type": "text", "text": text}]}


def _take_images(messages: Sequence[Message]) -> tuple[list[Message], list[Path | Image]]:
    """The messages as a template may see them, without what the images are, and the images in order."""
    plain: list[Message] = []
    images: list[Path | Image] = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            for part in content:
                if isinstance(part, Mapping) and part.get("type") == "image":
                    images.append(_image_of(part))
            content = [{"type": "image"} if part.get("type") == "image" else part for part in content]
            message = {**message, "content": content}
        plain.append(message)
    return plain, images


def _image_of(part: Mapping[str, Any]) -> Path | Image:
    image = part.get("image")
    if isinstance(image, str | Path):
        return Path(image).expanduser()
    if hasattr(image, "convert"):
        return image  # type: ignore[return-value]
    raise ImageError(f"an image entry must name a file: {{'type': 'image', 'image': PATH}}, got {image!r}")


def _digest(pixels: npt.NDArray[np.float32], grid: Grid) -> bytes:
    return hashlib.sha256(np.asarray(grid, "<i8").tobytes() + pixels.tobytes()).digest()
