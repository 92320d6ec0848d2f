"""What a `config.json` comes to, layer by layer: here, and in transformers' own modules of the same file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PretrainedConfig,
)

from trunnion import registry
from trunnion.config import BuildContext
from trunnion.hf_config import checkpoint_dtype, eos_token_ids
from trunnion.interfaces.attention import AttentionSpec, MLASpec, RecurrentSpec
from trunnion.layers.group_layer import GroupLayer
from trunnion.layers.vocab_embedding import ParallelLMHead, VocabParallelEmbedding
from trunnion.reference import ReferenceHardware

LENGTH = 8
"""Tokens of the longest request: below any rope's first length, so that both take LongRoPE's short factors."""
POSITION = 3
"""Where the ropes are compared."""
WINDOW_FROM_CONFIG = ("Mistral", "Mixtral", "Ministral3", "Phi3")
"""Beginnings of the names of attention classes with the window of the config, whatever the layer's type."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer's attention in numbers; what a kind has not is left at its default."""

    kind: str
    heads: int
    kv_heads: int
    head_dim: int
    """Of a value; of a latent, its rank."""
    scale: float = 0.0
    window: int | None = None
    soft_cap: float | None = None
    rope: tuple[float, ...] = ()
    """Cosines, then sines, at `POSITION`; empty where nothing is rotated."""


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A model in numbers."""

    layers: tuple[Layer, ...]
    num_parameters: int
    """Of the decoder and its head, once if they are tied, and of the tower of a model that takes images here."""
    tied: bool
    dtype: torch.dtype | None
    eos: tuple[int, ...]
    vocab_size: int


def resolve_here(config: Mapping[str, Any]) -> Resolved:
    """By this repository; UnsupportedError or ConfigError where it refuses."""
    ctx = BuildContext(hardware=ReferenceHardware(), dtype=torch.float32, max_model_len=LENGTH)
    model_class = registry.model_class(config)
    read: Any = model_class.config_class.from_hf(config)
    with torch.device("meta"):
        model: Any = model_class(read, ctx)
    places = (config, config.get("text_config", {}))
    has_dtype = any(place.get(name) is not None for place in places for name in ("dtype", "torch_dtype"))
    return Resolved(
        layers=tuple(_layers_here(model)),
        num_parameters=_count(model.parameters()) - _num_padding(model),
        tied=read.tie_word_embeddings,
        dtype=checkpoint_dtype(config) if has_dtype else None,
        eos=eos_token_ids(config),
        vocab_size=read.vocab_size,
    )


def _layers_here(model: nn.Module) -> Iterator[Layer]:
    for name, module in model.named_modules():
        if not isinstance(module, GroupLayer):
            continue
        spec, rope = module.spec, getattr(model.get_submodule(name.rpartition(".")[0]), "rotary_emb", None)
        table = () if rope is None else _rounded(rope.cos_sin_cache[POSITION])
        if isinstance(spec, RecurrentSpec):
            yield Layer(kind="recurrent", heads=spec.num_v_heads, kv_heads=spec.num_k_heads, head_dim=spec.head_v_dim)
        elif isinstance(spec, MLASpec):
            sizes = {"heads": spec.num_qo_heads, "kv_heads": 1, "head_dim": spec.kv_lora_rank}
            yield Layer(kind="latent", scale=round(spec.scale, 7), rope=table, **sizes)
        else:
            assert isinstance(spec, AttentionSpec)
            sizes = {"heads": spec.num_qo_heads, "kv_heads": spec.num_kv_heads, "head_dim": spec.head_dim}
            rest = {"window": spec.window, "soft_cap": spec.soft_cap, "rope": table}
            yield Layer(kind="attention", scale=round(spec.scale, 7), **sizes, **rest)


def _num_padding(model: nn.Module) -> int:
    """Values in rows beyond the vocabulary; a tied head has those of the embedding."""
    padding = {
        module.weight: (module.shard.num_rows - module.shard.num_valid) * module.hidden_size
        for module in model.modules()
        if isinstance(module, VocabParallelEmbedding | ParallelLMHead)
    }
    return sum(padding.values())


def resolve_there(config: Mapping[str, Any], folder: Path) -> Resolved:
    """By transformers, from a `config.json` in `folder`; whatever it raises where it refuses."""
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    (folder / "config.json").write_text(json.dumps(plain))
    found = AutoConfig.from_pretrained(folder)
    # Building a model may change its configuration.
    dtype = found.get_text_config().dtype or found.dtype
    # By the file's contents: a text may stand under the name of the model that sees.
    factory = AutoModelForImageTextToText if type(found) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING else None
    with torch.device("meta"):
        model: Any = (factory or AutoModelForCausalLM).from_config(found)
    text, decoder, head = found.get_text_config(), model.get_decoder(), model.get_output_embeddings().weight
    tied = getattr(text, "tie_word_embeddings", found.tie_word_embeddings)
    eos = text.eos_token_id if text.eos_token_id is not None else found.eos_token_id
    corrections = [buffer for name, buffer in decoder.named_buffers() if "correction_bias" in name]
    with_tower = registry.takes_images(config)
    counted = model.parameters() if with_tower else [*decoder.parameters(), *([] if tied else [head])]
    return Resolved(
        layers=tuple(_layers_there(decoder, text)),
        num_parameters=_count([*counted, *corrections]),
        tied=tied,
        dtype=dtype,
        eos=() if eos is None else tuple(eos) if isinstance(eos, list) else (eos,),
        vocab_size=text.vocab_size,
    )


def _layers_there(decoder: Any, config: PretrainedConfig) -> Iterator[Layer]:
    with torch.device("cpu"):
        rotary = type(decoder.rotary_emb)(config)
    given = getattr(config, "layer_types", None)
    for index, layer in enumerate(decoder.layers):
        attention = getattr(layer, "self_attn", None)
        if attention is None:
            net = layer.linear_attn
            yield Layer(kind="recurrent", heads=net.num_v_heads, kv_heads=net.num_k_heads, head_dim=net.head_v_dim)
            continue
        kind = given[index] if given else "full_attention"
        table = _rotation(rotary, kind) if _rotates(attention) else ()
        scale = round(attention.scaling, 7)
        if hasattr(attention, "kv_lora_rank"):
            sizes = {"heads": attention.num_heads, "kv_heads": 1, "head_dim": attention.kv_lora_rank}
            yield Layer(kind="latent", scale=scale, rope=table, **sizes)
            continue
        heads = config.num_attention_heads
        yield Layer(
            kind="attention",
            heads=heads,
            kv_heads=heads // attention.num_key_value_groups,
            head_dim=attention.head_dim,
            scale=scale,
            window=_window(attention, config, kind if given else None),
            soft_cap=getattr(attention, "attn_logit_softcapping", None),
            rope=table,
        )


def _window(attention: Any, config: PretrainedConfig, kind: str | None) -> int | None:
    place = attention
    if type(attention).__name__.startswith(WINDOW_FROM_CONFIG):
        place = config
    elif kind == "full_attention":
        return None
    window: int | None = getattr(place, "sliding_window", None)
    return window


def _rotates(attention: Any) -> bool:
    if type(attention).__name__.startswith("Cohere2"):
        return attention.sliding_window is not None
    if type(attention).__name__.startswith("Exaone4"):
        return attention.sliding_window is None or bool(attention.is_sliding)
    return bool(getattr(attention, "use_rope", True))


def _rotation(rotary: Any, kind: str) -> tuple[float, ...]:
    prefix = "" if hasattr(rotary, "inv_freq") else f"{kind}_"
    angles = POSITION * getattr(rotary, f"{prefix}inv_freq").float()
    scale = getattr(rotary, f"{prefix}attention_scaling")
    return _rounded(torch.cat((angles.cos() * scale, angles.sin() * scale)))


def _rounded(values: torch.Tensor) -> tuple[float, ...]:
    return tuple(round(value, 5) for value in values.tolist())


def _count(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)
