"""Qwen2.5-VL configuration in the field names of the published `config.json`, flat or with a `text_config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trunnion.errors import ConfigError
from trunnion.hf_config import text_config
from trunnion.rope import read_mrope
from trunnion_models.fields import attention_heads, read_fields, require
from trunnion_models.qwen2.config import Qwen2Config, upper_windows

MROPE_SECTION = (16, 24, 24)
"""Of a config that names none."""


@dataclass(frozen=True, kw_only=True)
class Qwen2_5_VLVisionConfig:
    """The vision tower; numbers of a patch grid count patches, `window_size` and `patch_size` pixels."""

    depth: int = 32
    hidden_size: int = 3584
    intermediate_size: int = 3420
    num_heads: int = 16
    in_channels: int = 3
    patch_size: int = 14
    temporal_patch_size: int = 2
    spatial_merge_size: int = 2
    window_size: int = 112
    out_hidden_size: int = 3584
    fullatt_block_indexes: tuple[int, ...] = (7, 15, 23, 31)
    """Blocks whose attention sees the whole image; the others see windows."""
    rope_theta: float = 10000.0

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Qwen2_5_VLVisionConfig:
        """Read a `vision_config`; ConfigError or UnsupportedError names the field."""
        require(config, "hidden_act", "silu", ["silu"])
        given = config.get("fullatt_block_indexes")
        full = cls.fullatt_block_indexes if given is None else tuple(given)
        rope = config.get("rope_parameters") or {}
        fields = read_fields(cls, {**config, "rope_theta": rope.get("rope_theta")}, fullatt_block_indexes=full)
        found = cls(**fields)
        if found.hidden_size % (4 * found.num_heads):
            raise ConfigError(
                f"vision_config: hidden_size {found.hidden_size} is not a multiple of 4 x num_heads {found.num_heads}"
            )
        merged = found.patch_size * found.spatial_merge_size
        if found.window_size < merged:
            raise ConfigError(f"vision_config: window_size {found.window_size} is below one merged patch, {merged}")
        return found


@dataclass(frozen=True, kw_only=True)
class Qwen2_5_VLConfig(Qwen2Config):
    """The fields of the text side, and the vision tower's in `vision`."""

    vision: Qwen2_5_VLVisionConfig

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Qwen2_5_VLConfig:
        """Read a `config.json`; ConfigError or UnsupportedError names the field.

        The head is tied if the outer flag or the inner one says so, as in transformers: before 5.0 the flag was saved
        with the text's fields.
        """
        vision = config.get("vision_config")
        if not isinstance(vision, Mapping):
            raise ConfigError(f"config of qwen2_5_vl: vision_config must be a dictionary, got {vision!r}")
        text = {"max_position_embeddings": 32768, "max_window_layers": 80, "rms_norm_eps": 1e-5, **text_config(config)}
        require(text, "hidden_act", "silu", ["silu"])
        text["tie_word_embeddings"] = any(
            place.get("tie_word_embeddings") for place in (config, config.get("text_config") or {})
        )
        heads = attention_heads(text)
        found = cls(
            **read_fields(
                cls,
                text,
                rope=read_mrope(text, heads["head_dim"], MROPE_SECTION, default_theta=1000000.0),
                windows=upper_windows(text),
                vision=Qwen2_5_VLVisionConfig.from_hf(vision),
                **heads,
            )
        )
        if found.vision.out_hidden_size != found.hidden_size:
            raise ConfigError(
                f"config of qwen2_5_vl: the vision tower's out_hidden_size {found.vision.out_hidden_size} is not the "
                f"text's hidden_size {found.hidden_size}"
            )
        return found
