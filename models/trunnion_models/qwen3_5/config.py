"""Qwen3.5 configuration in the field names of the published `config.json`: of the text alone, or beside a tower."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from trunnion.errors import ConfigError
from trunnion.hf_config import text_config
from trunnion.rope import read_rope_of_text
from trunnion_models.fields import family, integer, read_fields, require
from trunnion_models.qwen3_next.config import DEFAULTS, GatedDeltaConfig


@dataclass(frozen=True, kw_only=True)
class Qwen3_5TextConfig(GatedDeltaConfig):
    """Of either kind of MLP. The head is tied if `text_config` says so, or the outer config where that says nothing."""

    mtp_num_hidden_layers: int = 1
    """Layers of the head that drafts; 0: there is none."""
    mtp_use_dedicated_embeddings: bool = False
    """Whether that head has embeddings of its own."""

    separate_projections: ClassVar[bool] = True
    text_type: ClassVar[str]
    """`model_type` of the text, whose fields may be `text_config` or all of the file."""
    default_kv_heads: ClassVar[int]
    """KV heads where the file does not say."""

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """Read a `config.json`, of the text alone or with a tower; ConfigError or UnsupportedError names the field."""
        if not isinstance(config.get("text_config"), Mapping) and config.get("model_type") != cls.text_type:
            raise ConfigError(
                f"config of {family(config)}: text_config must be a dictionary, got {config.get('text_config')!r}; "
                f"without one, model_type must be {cls.text_type!r}"
            )
        text = {**DEFAULTS, "num_key_value_heads": cls.default_kv_heads, **text_config(config)}
        require(text, "model_type", cls.text_type, [cls.text_type])
        require(text, "hidden_act", "silu", ["silu"])
        # transformers does not read it: the gate is always there.
        require(text, "attn_output_gate", True, [True])
        cls.check_mlp(text)
        heads = integer(text, "mtp_num_hidden_layers", cls.mtp_num_hidden_layers, zero_allowed=True)
        derived = {"rope": read_rope_of_text(text), "mtp_num_hidden_layers": heads, **cls.common_fields(text)}
        return cls(**read_fields(cls, text, **derived))

    @classmethod
    def check_mlp(cls, text: Mapping[str, Any]) -> None:
        """Refuse settings of the text's MLP that are not done here."""


@dataclass(frozen=True, kw_only=True)
class Qwen3_5Config(Qwen3_5TextConfig):
    """With a dense MLP."""

    intermediate_size: int

    text_type: ClassVar[str] = "qwen3_5_text"
    default_kv_heads: ClassVar[int] = 4

    def is_sparse(self, index: int) -> bool:
        """See `GatedDeltaConfig.is_sparse`."""
        return False
