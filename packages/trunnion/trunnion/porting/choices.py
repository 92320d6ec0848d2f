"""What a scaffold takes from a configuration and a structure: each choice a line of a template depends on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trunnion import hf_config
from trunnion.porting.structure import Structure
from trunnion.porting.vocabulary import (
    ACTIVATIONS,
    ATTENTION,
    BOOKKEEPING,
    FIELD_NAMES,
    KINDS,
    MLP,
    ROPE_FIELDS,
    TOWERS,
)

QKV_BIAS_FIELDS = ("attention_bias", "qkv_bias", "use_qkv_bias")
"""Which of them says whether q, k and v have biases; the first one means the output as well."""
TEXT_FIELDS = ("vocab_size", "tie_word_embeddings", "head_dim", "mlp_bias", "layer_types")
MOE_FIELDS = ("moe_intermediate_size", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor")


@dataclass(frozen=True, kw_only=True)
class ExpertChoices:
    """Of layers with experts; sizes are expressions of `config`."""

    intermediate_size: str
    renormalize: str
    has_correction_bias: bool
    shared: str | None
    """Width of the experts that every token passes; None: there are none."""
    shared_gate: bool


@dataclass(kw_only=True)
class Choices:
    """Named as the templates name them."""

    family: str
    architecture: str
    prefix: str
    """What classes are called, without their role."""
    structure: Structure
    config: Mapping[str, Any]
    """Of the decoder, in a scaffold's field names."""
    is_nested: bool
    """Whether it lies in `text_config`."""
    field_names: dict[str, str] = field(default_factory=dict)
    """Field that a scaffold needs -> its published name, where that is another."""
    default_head_dim: int | None = None
    """Where tensors have another head size than `hidden_size / num_attention_heads`, and no field says so."""
    window: str | None = None
    """`layers`: by `layer_types`; `all`: every layer has `sliding_window`; None: there is none."""
    ropes_by_type: bool = False
    activation: str = "SiluAndMul"
    qkv_bias: str = "False"
    """An expression of `config`, as the others."""
    o_bias: str = "False"
    mlp_bias: str = "False"
    norm: str = "RMSNorm"
    norm_has_bias: bool = False
    norm_layout: str = "before"
    """Norms `before` attention and MLP, `after` them, or `both`."""
    qk_norm: str | None = None
    """`head`: each head's; `projection`: over all heads."""
    experts: ExpertChoices | None = None
    unread: dict[str, Any] = field(default_factory=dict)
    """Fields that the scaffold does not read, with their values."""
    doubts: list[str] = field(default_factory=list)
    """What was guessed against or without evidence."""
    unwritten: dict[str, list[str]] = field(default_factory=dict)
    """Part of a model (`attention`, `mlp`, `layer`, `model`) -> tensors in it that nothing takes, without a layer's
    number."""


def choose(family: str, config: Mapping[str, Any], structure: Structure) -> Choices:
    """Everything that can be told; what cannot is in `doubts`."""
    architecture = config["architectures"][0]
    decoder = dict(hf_config.text_config(config))
    names = _field_names(decoder)
    made = Choices(
        family=family,
        architecture=architecture,
        prefix=re.sub(r"(For[A-Z]\w*|Model|LMHeadModel)$", "", architecture) or architecture,
        structure=structure,
        config={**decoder, **{own: decoder[published] for own, published in names.items()}},
        is_nested="text_config" in config,
        field_names=names,
    )
    _choose_attention(made)
    _choose_norms(made)
    _choose_mlp(made)
    _choose_windows(made)
    if structure.sparse_layers:
        _choose_experts(made)
    made.unread = _unread(made, decoder)
    made.unwritten = _unwritten(structure)
    tensors = [name for names in made.unwritten.values() for name in names]
    made.doubts += [
        f"probably {what}" for pattern, what in KINDS.items() if any(re.search(pattern, name) for name in tensors)
    ]
    return made


def _unwritten(structure: Structure) -> dict[str, list[str]]:
    found: dict[str, dict[str, None]] = {}
    for name in structure.unknown:
        inside = re.fullmatch(rf"{re.escape(structure.layers_path)}\.\d+\.(.+)", name)
        if inside is None:
            if not TOWERS.search(name):
                found.setdefault("model", {})[name] = None
            continue
        first = inside[1].partition(".")[0]
        part = "attention" if first in ATTENTION else "mlp" if first in MLP else "layer"
        found.setdefault(part, {})[inside[1]] = None
    return {part: list(names) for part, names in found.items()}


def _field_names(decoder: Mapping[str, Any]) -> dict[str, str]:
    """Needed field -> published name, where only that is there."""
    found = {}
    for own, names in FIELD_NAMES.items():
        published = next((name for name in names if name in decoder), own)
        if published != own:
            found[own] = published
    return found


def _choose_attention(made: Choices) -> None:
    tensors, config = made.structure.inner, made.config
    fused = made.structure.is_fused
    made.qkv_bias = _bias(made, "self_attn.qkv_proj" if fused else "self_attn.q_proj", *QKV_BIAS_FIELDS)
    made.o_bias = _bias(made, "self_attn.o_proj", QKV_BIAS_FIELDS[0])
    heads, size = config.get("num_attention_heads"), config.get("hidden_size")
    o_proj = tensors.get("self_attn.o_proj.weight", ())
    if len(o_proj) == 2 and heads and size and config.get("head_dim") is None and o_proj[1] != size:
        made.default_head_dim = o_proj[1] // heads
    q_norm = tensors.get("self_attn.q_norm.weight")
    if q_norm is not None:
        head_dim = config.get("head_dim") or made.default_head_dim or (size // heads if size and heads else None)
        made.qk_norm = "projection" if q_norm and q_norm[-1] != head_dim else "head"
        if not q_norm:
            made.doubts.append("q_norm and k_norm: taken as each head's; an index tells no shapes")
    if fused:
        made.doubts.append("qkv_proj: rows are all queries, all keys, all values; some interleave them by head")


def _choose_norms(made: Choices) -> None:
    norms = made.structure.norms
    made.norm_has_bias = made.structure.has("input_layernorm.bias")
    made.norm = "LayerNorm" if made.norm_has_bias else "RMSNorm"
    if len(norms) == 4:
        made.norm_layout = "both"
    elif "input_layernorm" not in norms and len(norms) == 2:
        made.norm_layout = "after"
    elif len(norms) != 2:
        named = ", ".join(norms) or "none"
        made.doubts.append(f"norms of a layer: {named}; taken as one before attention and one before the MLP")


def _choose_mlp(made: Choices) -> None:
    made.mlp_bias = _bias(made, "mlp.gate_up_proj" if made.structure.gate_up_is_fused else "mlp.down_proj", "mlp_bias")
    act = made.config.get("hidden_act", "silu")
    made.activation = ACTIVATIONS.get(act, "SiluAndMul")
    if act not in ACTIVATIONS:
        made.doubts.append(
            f"hidden_act {act!r}: trunnion.layers.activation has no gated layer of it; silu stands there"
        )


def _choose_windows(made: Choices) -> None:
    config = made.config
    ropes = config.get("rope_parameters") or config.get("rope_scaling") or {}
    made.ropes_by_type = any(isinstance(rope, Mapping) for rope in ropes.values())
    made.doubts += [
        f"rope: {name} {value!r} is not read, and may change the result"
        for rope in (ropes.values() if made.ropes_by_type else [ropes])
        for name, value in rope.items()
        if name not in ROPE_FIELDS and value is not None
    ]
    if config.get("layer_types") is not None:
        made.window = "layers"
    elif config.get("sliding_window") and config.get("use_sliding_window", True):
        made.window = "all"


def _choose_experts(made: Choices) -> None:
    tensors, config = made.structure.inner, made.config
    size = config.get("hidden_size")
    if made.structure.is_stacked:
        down = tensors.get("mlp.experts.down_proj", ())
        width = next((side for side in down[1:] if side != size), size) if down else None
    else:
        width = (tensors.get("mlp.experts.gate_proj.weight") or (None,))[0]
    shared = tensors.get("mlp.shared_expert.down_proj.weight")
    made.experts = ExpertChoices(
        intermediate_size=_named_size(made, width, ("moe_intermediate_size", "intermediate_size")),
        renormalize="config.norm_topk_prob" if "norm_topk_prob" in config else "True",
        has_correction_bias=made.structure.has("mlp.gate.e_score_correction_bias"),
        shared=None
        if shared is None
        else _named_size(made, shared[1] if shared else None, ("shared_expert_intermediate_size", "intermediate_size")),
        shared_gate=made.structure.has("mlp.shared_expert_gate.weight"),
    )
    if "norm_topk_prob" not in config:
        made.doubts.append("experts: weights of the chosen ones are taken to sum to 1 (no norm_topk_prob)")


def _named_size(made: Choices, value: int | None, names: tuple[str, ...]) -> str:
    """The field that has `value`, as an expression; else the number. None: the first field that is there."""
    for name in names:
        if name in made.config and value in (None, made.config[name]):
            return f"config.{name}"
    count, each = made.config.get("n_shared_experts"), made.config.get("moe_intermediate_size")
    if count and each and count * each == value:
        return "config.n_shared_experts * config.moe_intermediate_size"
    return str(value)


def _bias(made: Choices, module: str, *names: str) -> str:
    """Whether `module` has a bias: one of the fields `names`, if it says what the tensors say; else True or False."""
    has = made.structure.has(f"{module}.bias")
    return next((f"config.{name}" for name in names if made.config.get(name) is has), str(has))


def _unread(made: Choices, decoder: Mapping[str, Any]) -> dict[str, Any]:
    own = {*made.field_names.values(), *FIELD_NAMES, *TEXT_FIELDS}
    if made.window is not None:
        own.add("sliding_window")
    own |= {name for name in QKV_BIAS_FIELDS if made.qkv_bias == f"config.{name}"}
    if made.experts is not None:
        own |= {*MOE_FIELDS, "n_shared_experts", "shared_expert_intermediate_size"}
    return {
        name: value
        for name, value in decoder.items()
        if name not in own
        and name not in BOOKKEEPING
        and not name.endswith("dropout")
        and value is not None
        and value is not False
    }
