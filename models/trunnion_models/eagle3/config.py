"""EAGLE-3 configuration in the field names of the published `config.json`, or as speculators nests them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trunnion.errors import ConfigError, UnsupportedError
from trunnion.rope import read_rope
from trunnion_models.fields import attention_heads, family, integer, layer_types, read_fields, require
from trunnion_models.llama.config import LlamaConfig

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True, kw_only=True)
class Eagle3Config(LlamaConfig):
    """As Llama of one layer. `vocab_size` is the target's: tokens that come in, and ids of what is drafted."""

    draft_vocab_size: int
    """Tokens that can be drafted."""
    target_hidden_size: int
    norm_before_residual: bool = False
    """The layer's residual is the normalised state; else the state as it came."""
    target_layers: tuple[int, ...] = ()
    """The target's states that are read, each by the number of layers before it; empty: see `aux_layers`."""

    @property
    def num_states(self) -> int:
        """Of the target, side by side in what is combined."""
        return len(self.target_layers) or 3

    def aux_layers(self, num_layers: int) -> tuple[int, ...]:
        """After how many of a target's `num_layers` layers lie the states that the draft reads, in this order.

        Where the configuration names none they are those of the authors (`modeling_llama_kv.py`), vLLM and SGLang.
        """
        return self.target_layers or (2, num_layers // 2, num_layers - 3)

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Eagle3Config:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        config = {"max_position_embeddings": 2048, **_flat(config)}
        if "draft_vocab_size" not in config:
            raise ConfigError(
                f"config of {family(config)}: required field 'draft_vocab_size' is missing; is it a draft of EAGLE-3?"
            )
        require(config, "hidden_act", "silu", ["silu"])
        require(config, "num_hidden_layers", 1, [1])
        require(config, "norm_before_fc", False, [False])
        require(_nested(config), "use_aux_hidden_state", True, [True])
        layer_types(config, ["full_attention"], ["full_attention"])
        config = {**config, "num_hidden_layers": 1, "tie_word_embeddings": False}
        vocab_size = integer(config, "vocab_size", 0)
        found = cls(
            **read_fields(
                cls,
                config,
                rope=read_rope(config),
                sliding_window=None,
                draft_vocab_size=integer(config, "draft_vocab_size", vocab_size),
                target_hidden_size=integer(config, "target_hidden_size", integer(config, "hidden_size", 0)),
                target_layers=_target_layers(config),
                **attention_heads(config),
            )
        )
        if found.draft_vocab_size > vocab_size:
            both = f"draft_vocab_size {found.draft_vocab_size} is above vocab_size {vocab_size}"
            raise ConfigError(f"config of {family(config)}: {both}")
        return found


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """What speculators nests (`transformer_layer_config`) beside what it does not."""
    kind = config.get("speculators_model_type")
    if kind is None:
        return dict(config)
    if kind != "eagle3":
        raise UnsupportedError(f"speculators_model_type {kind!r} is not supported; choices: 'eagle3'")
    inner = config.get("transformer_layer_config")
    if not isinstance(inner, Mapping):
        raise ConfigError(f"config of speculators: transformer_layer_config must be an object, got {inner!r}")
    require(inner, "model_type", "llama", ["llama"])
    if config.get("norm_before_residual") is None:
        # vLLM takes true for it, speculators itself false.
        raise ConfigError("config of speculators: required field 'norm_before_residual' is missing")
    return {**inner, **{name: value for name, value in config.items() if name != "transformer_layer_config"}}


def _nested(config: Mapping[str, Any]) -> Mapping[str, Any]:
    found = config.get("eagle_config")
    return found if isinstance(found, Mapping) else {}


def _target_layers(config: Mapping[str, Any]) -> tuple[int, ...]:
    """The layers that the configuration names, or none.

    Two spellings count otherwise: at the top (vLLM, speculators) i is what layer i takes; in `eagle_config` (SpecForge,
    SGLang) it is what layer i makes.
    """
    top, nested = _layer_ids(config), tuple(number + 1 for number in _layer_ids(_nested(config)))
    if top and nested and top != nested:
        raise ConfigError(
            f"config of {family(config)}: {LAYER_IDS} {list(top)} is what layers take, and what those of eagle_config "
            f"make is taken by {list(nested)}; expected the same"
        )
    return top or nested


def _layer_ids(config: Mapping[str, Any]) -> tuple[int, ...]:
    found = config.get(LAYER_IDS)
    if found is None:
        return ()
    if not isinstance(found, list) or not found or any(type(number) is not int or number < 0 for number in found):
        raise ConfigError(f"{LAYER_IDS} must be a list of layers, got {found!r}")
    return tuple(found)
