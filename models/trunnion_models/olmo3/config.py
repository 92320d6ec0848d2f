"""OLMo 3 configuration in the field names of the published `config.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trunnion.errors import UnsupportedError
from trunnion.rope import RopeParameters, read_rope
from trunnion_models.fields import attention_heads, layer_types, num_layers, read_fields, require, windows_by_type
from trunnion_models.olmo2.config import DEFAULTS, Olmo2Config

LAYER_TYPES = ("full_attention", "sliding_attention")
THETA = 500000.0


class Olmo3Config(Olmo2Config):
    """As OLMo 2, with three of four layers sliding, and a rope for each layer type."""

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Olmo3Config:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        require(config, "hidden_act", "silu", ["silu"])
        config = {**DEFAULTS, "sliding_window": 4096, **config}
        default = [LAYER_TYPES[bool((index + 1) % 4)] for index in range(num_layers(config))]
        types = layer_types(config, default, LAYER_TYPES)
        derived = {
            "layer_types": types,
            "windows": windows_by_type(config, types),
            "ropes": _ropes(config, types),
        }
        return cls(**read_fields(cls, config, **derived, **attention_heads(config)))


def _ropes(config: Mapping[str, Any], types: Sequence[str]) -> dict[str, RopeParameters]:
    """By layer type. A `rope_scaling` is that of the full layers only."""
    given, theta = config.get("rope_parameters") or {}, config.get("rope_theta")
    if not all(isinstance(rope, Mapping) for rope in given.values()):
        raise UnsupportedError(f"olmo3: rope_parameters {given!r} are not by layer type: {', '.join(LAYER_TYPES)}")
    ropes = {kind: dict(given.get(kind, {})) for kind in LAYER_TYPES}
    ropes["full_attention"] |= config.get("rope_scaling") or {}
    if theta not in (None, THETA) and not all("rope_theta" in rope for rope in ropes.values()):
        # Before transformers 5 it was that of all layers, since then it is that of the full ones.
        raise UnsupportedError(
            f"olmo3: rope_theta {theta!r} says nothing certain of sliding layers unless it is {THETA}; "
            "give rope_parameters by layer type"
        )
    place = {"max_position_embeddings": config["max_position_embeddings"], "rope_parameters": ropes}
    return {kind: read_rope(place, kind, default_theta=THETA) for kind in dict.fromkeys(types)}
