"""Says what a GGUF file's metadata would be as a Hugging Face `config.json` and `generation_config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trunnion.errors import ConfigError, UnsupportedError
from trunnion.rope import inv_freq_and_scale, read_rope
from trunnion.weights.gguf_names import GGUFArchitecture

GEMMA3_27B_LAYERS = 62
"""The one Gemma 3 whose attention scale is that of `hidden_size / heads`; llama.cpp tells it by its layers too."""
GEMMA3_LOCAL_ROPE_THETA = 10000.0
GEMMA3_WINDOW_PATTERN = 6

_REFUSED_KEYS = (
    "expert_count",
    "attn_logit_softcapping",
    "attention.clamp_kqv",
    "attention.scale",
    "logit_scale",
    # An embedding model, which would load as a language model; pooling models are read from folders.
    "pooling_type",
)
_YARN_EXTRAS = ("yarn_log_multiplier", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow")
_END_TOKENS = ("eos", "eot", "eom")


@dataclass(frozen=True, kw_only=True)
class GGUFMetadata:
    """Key-value pairs of one file; keys without a prefix are the architecture's own."""

    path: Path
    architecture: str
    values: Mapping[str, Any]

    def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(f"{self.architecture}.{key}", default)

    def number(self, key: str, default: float | None = None) -> Any:
        """A number; ConfigError where it is missing or a list, as some hybrid models have it per layer."""
        value = self.get(key, default)
        if value is None:
            raise ConfigError(f"{self.path}: {self.architecture}.{key} is missing")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UnsupportedError(f"{self.path}: {self.architecture}.{key} is {value!r:.60}, expected one number")
        return value

    def heads(self) -> tuple[int, int]:
        """Query heads and KV heads."""
        heads = self.number("attention.head_count")
        return heads, self.number("attention.head_count_kv", heads)

    def head_dim(self) -> int:
        heads, _ = self.heads()
        return int(self.number("attention.key_length", self.number("embedding_length") // heads))

    def token_id(self, name: str) -> int | None:
        value = self.values.get(f"tokenizer.ggml.{name}_token_id")
        return value if isinstance(value, int) else None

    def generation_config(self) -> dict[str, Any]:
        """`eos_token_id` lists end of sequence, end of turn and end of message, as far as the file names them."""
        ends = [self.token_id(name) for name in _END_TOKENS]
        listed = list(dict.fromkeys(token for token in ends if token is not None))
        found = {"bos_token_id": self.token_id("bos"), "pad_token_id": self.token_id("padding"), "eos_token_id": listed}
        return {key: value for key, value in found.items() if value not in (None, [])}


def hf_config_from(
    metadata: GGUFMetadata,
    architecture: GGUFArchitecture,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: str,
    rope_factors: torch.Tensor | None,
) -> dict[str, Any]:
    """The `config.json` of a file whose tensors have `shapes` (by Hugging Face name).

    Raises:
        ConfigError: a key is missing or contradicts the tensors.
        UnsupportedError: experts, per-layer sizes, or a rope that cannot be expressed.
    """
    for key in _REFUSED_KEYS:
        if metadata.get(key):
            raise UnsupportedError(
                f"{metadata.path}: {metadata.architecture}.{key} {metadata.get(key)!r:.60} is not supported"
            )
    heads, kv_heads = metadata.heads()
    config = {
        "architectures": [architecture.hf_class],
        "model_type": architecture.model_type,
        "vocab_size": _vocab_size(metadata, shapes),
        "hidden_size": metadata.number("embedding_length"),
        "intermediate_size": metadata.number("feed_forward_length"),
        "num_hidden_layers": metadata.number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": metadata.head_dim(),
        "max_position_embeddings": metadata.number("context_length"),
        "rms_norm_eps": _shortest(metadata.number("attention.layer_norm_rms_epsilon")),
        "rope_theta": float(metadata.number("rope.freq_base", 10000.0)),
        "rope_scaling": _rope_scaling(metadata),
        "hidden_act": "silu",
        "attention_bias": any(name.endswith("q_proj.bias") for name in shapes),
        "mlp_bias": any(name.endswith("up_proj.bias") for name in shapes),
        "tie_word_embeddings": "lm_head.weight" not in shapes,
        "torch_dtype": dtype,
        **metadata.generation_config(),
    }
    if architecture.model_type == "gemma3_text":
        config |= _gemma3(metadata, heads)
    if rope_factors is not None:
        config["rope_scaling"] = _llama3_rope(metadata, config, rope_factors)
    return config


def _gemma3(metadata: GGUFMetadata, heads: int) -> dict[str, Any]:
    large = metadata.number("block_count") == GEMMA3_27B_LAYERS
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": metadata.number("embedding_length") // heads if large else metadata.head_dim(),
        "sliding_window": metadata.number("attention.sliding_window"),
        "sliding_window_pattern": metadata.number("attention.sliding_window_pattern", GEMMA3_WINDOW_PATTERN),
        "rope_local_base_freq": float(metadata.number("rope.freq_base_swa", GEMMA3_LOCAL_ROPE_THETA)),
        "final_logit_softcapping": metadata.get("final_logit_softcapping"),
        "attn_logit_softcapping": None,
    }


def _vocab_size(metadata: GGUFMetadata, shapes: Mapping[str, tuple[int, ...]]) -> int:
    shape = shapes.get("model.embed_tokens.weight")
    if shape is None:
        raise ConfigError(f"{metadata.path}: token_embd.weight is missing")
    tokens = metadata.values.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) > shape[0]:
        raise ConfigError(f"{metadata.path}: {len(tokens)} tokens, but token_embd.weight has {shape[0]} rows")
    return shape[0]


def _rope_scaling(metadata: GGUFMetadata) -> dict[str, Any] | None:
    rotated, head_dim = metadata.number("rope.dimension_count", metadata.head_dim()), metadata.head_dim()
    if rotated != head_dim:
        raise UnsupportedError(f"{metadata.path}: rope over {rotated} of {head_dim} features is not supported")
    kind, factor = metadata.get("rope.scaling.type", "none"), metadata.get("rope.scaling.factor")
    if kind == "none":
        # Converters before 2023-10 wrote a linear factor without its type.
        old = metadata.get("rope.scale_linear")
        return {"rope_type": "linear", "factor": float(old)} if old not in (None, 1.0) else None
    extras = [name for name in _YARN_EXTRAS if metadata.get(f"rope.scaling.{name}") is not None]
    if kind == "linear" and factor:
        return {"rope_type": "linear", "factor": float(factor)}
    if kind == "yarn" and factor and not extras:
        original = metadata.number("rope.scaling.original_context_length")
        return {"rope_type": "yarn", "factor": float(factor), "original_max_position_embeddings": original}
    detail = f" with {', '.join(extras)}" if extras else ""
    raise UnsupportedError(f"{metadata.path}: rope scaling {kind!r}{detail} is not supported; choices: linear, yarn")


def _llama3_rope(metadata: GGUFMetadata, config: Mapping[str, Any], factors: torch.Tensor) -> dict[str, Any]:
    """Llama 3.1's rope, which the converter keeps only as divisors of the frequencies; checked against them."""
    scaling = {
        "rope_type": "llama3",
        "factor": float(factors.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    length, head_dim = config["max_position_embeddings"], config["head_dim"]
    scaled, _ = inv_freq_and_scale(read_rope({**config, "rope_scaling": scaling}), head_dim, length)
    plain, _ = inv_freq_and_scale(read_rope({**config, "rope_scaling": None}), head_dim, length)
    if factors.shape != plain.shape or not torch.allclose(plain / scaled, factors.to(plain.dtype), rtol=1e-4):
        raise UnsupportedError(f"{metadata.path}: rope_freqs.weight holds factors that are not Llama 3's")
    return scaling


def _shortest(value: float) -> float:
    """The decimal a float32 was written from: 9.999999747e-06 is 1e-05."""
    return float(f"{value:.6g}")
