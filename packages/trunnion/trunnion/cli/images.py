"""Images on the command line: a conversation that shows some becomes what the host submits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trunnion import registry
from trunnion.hf_config import read_config
from trunnion.text.chat_template import Message
from trunnion.text.model_text import ModelText

if TYPE_CHECKING:
    from trunnion.vision.prompt import VisionProcessor, VisionPrompt


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """Tokens, and what belongs to them when images do."""

    token_ids: list[int]
    vision: VisionPrompt | None = None

    @property
    def num_encoder_rows(self) -> int:
        """Placeholder tokens of all images."""
        return 0 if self.vision is None else sum(image.num_tokens for image in self.vision.images)


class Prompts:
    """Makes prompts of conversations; a model folder's image processor is read when the first image comes."""

    def __init__(self, text: ModelText, port: Path | None = None) -> None:
        self._text = text
        self._port = port

    @cached_property
    def _processor(self) -> VisionProcessor:
        from trunnion.vision.prompt import load_vision

        return load_vision(self._text.path, self._text.tokenizer, self._port)

    def encode(self, messages: Sequence[Message]) -> Prompt:
        """A conversation up to where the model's answer begins.

        Raises:
            UnsupportedError: there are images, and the model takes none, or Pillow is not installed.
            ConfigError, ImageError: a file of the model, or an image, cannot be used.
        """
        if not any(_shows_images(message) for message in messages):
            return Prompt(token_ids=self._text.tokenizer.encode_chat(messages))
        vision = self._processor.encode_chat(messages)
        return Prompt(token_ids=vision.token_ids, vision=vision)

    def load(self, path: str | Path) -> Any:
        """A picture, read now and shown later.

        Raises:
            UnsupportedError, ConfigError, ImageError: as `encode`.
        """
        from trunnion.vision.patches import load_image

        # Of a model that takes none it is the model that is at fault, whatever the file is.
        _ = self._processor
        return load_image(Path(path).expanduser())

    def largest_image(self) -> int:
        """Tokens of the largest image that the model's processor makes; 0 for a model that takes none."""
        if not takes_images(self._text.path, self._port):
            return 0
        settings = self._processor.settings
        return settings.max_pixels // (settings.patch_size * settings.merge_size) ** 2


def takes_images(path: Path, port: Path | None = None) -> bool:
    """Whether the model has a vision tower, and is run with it; `port` may hold its family."""
    config = read_config(path) if path.is_dir() else {}
    return isinstance(config.get("vision_config"), Mapping) and registry.takes_images(config, port=port)


def user_message(text: str, images: Sequence[Any]) -> Message:
    """What a user says, after the images that it is about: pictures, or paths of files."""
    if not images:
        return {"role": "user", "content": text}
    content: list[dict[str, Any]] = [{"type": "image", "image": image} for image in images]
    return {"role": "user", "content": [*content, {"type": "text", "text": text}]}


def _shows_images(message: Message) -> bool:
    return isinstance(message.get("content"), list)
