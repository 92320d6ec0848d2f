"""Renders a port's files from the templates, for what was chosen."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from trunnion.porting.choices import QKV_BIAS_FIELDS, Choices
from trunnion.porting.vocabulary import ACTIVATIONS, TOWERS

FILES = {
    "__init__.py": "init.py.jinja",
    "config.py": "config.py.jinja",
    "model.py": "model.py.jinja",
    "weights.py": "weights.py.jinja",
    "card.py": "card.py.jinja",
}
"""File of a port -> its template."""
TO_WRITE = "To write:"
"""What comments begin with that a porter looks for."""
_PARTS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
_TINY = {"vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 64}
_TINY_HEADS, _TINY_EXPERTS = 4, 6


def render(made: Choices) -> dict[str, str]:
    """File name -> its text."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["literal"] = _literal
    values = _values(made)
    return {name: environment.get_template(template).render(values) for name, template in FILES.items()}


def class_of(made: Choices, part: str) -> str:
    """The class of `model.py` that is a part of a model, as `Choices.unwritten` names them."""
    mlp = "SparseMoeBlock" if made.experts is not None else "DecoderLayer"
    role = {"attention": "Attention", "mlp": mlp, "layer": "DecoderLayer", "model": "Model"}[part]
    return f"{made.prefix}{role}"


def towers(unknown: list[str]) -> list[str]:
    """Where tensors lie that belong to what stands beside a text model."""
    first = dict.fromkeys(_first_two(name) for name in unknown if TOWERS.search(_first_two(name)))
    return list(first)


def _first_two(name: str) -> str:
    parts = name.split(".")
    return parts[1] if parts[0] == "model" and len(parts) > 1 else parts[0]


def _values(made: Choices) -> dict[str, Any]:
    structure = made.structure
    dense = sorted(set(range(structure.num_layers)) - structure.sparse_layers) if structure.sparse_layers else []
    has_dense = not structure.sparse_layers or bool(dense)
    beside = towers(structure.unknown)
    shared = made.experts is not None and made.experts.shared is not None
    norms = structure.norms if made.norm_layout != "before" else ("input_layernorm", "post_attention_layernorm")
    imports = {made.norm, *(["RMSNorm"] if made.qk_norm == "head" else [])}
    activations = [name for name, layer in ACTIVATIONS.items() if layer == made.activation]
    return {
        "made": made,
        "shared_gate": made.experts is not None and made.experts.shared_gate,
        "dense_layers": tuple(dense),
        "has_dense_mlp": has_dense or shared,
        "norms": norms,
        "norm_imports": ", ".join(sorted(imports)),
        "head_bias": "lm_head.bias" in structure.outer,
        "tied": "lm_head.weight" not in structure.outer,
        "activations": activations,
        "fields": _fields(made, has_dense),
        "field_readers": _field_readers(made),
        "towers": rf"(model\.)?({'|'.join(re.escape(name) for name in beside)})" if beside else "",
        "renames": _renames(structure.renamed),
        "expert_names": _expert_names(made),
        "fuse": _fuse(made, has_dense),
        "cut": _cut(made),
        "card": _card(made),
        "to_write": _to_write(made),
    }


def _to_write(made: Choices) -> dict[str, list[str]]:
    """Role of a class in `model.py` -> the lines of a comment that lists what it does not take."""
    found: dict[str, list[str]] = {}
    for part, names in made.unwritten.items():
        text = f"{TO_WRITE} nothing takes {', '.join(names)}"
        lines = textwrap.wrap(text, 110, break_long_words=False, break_on_hyphens=False)
        found.setdefault(class_of(made, part).removeprefix(made.prefix), []).extend(lines)
    return found


def _fields(made: Choices, has_dense: bool) -> list[tuple[str, str]]:
    """Of the dataclass, with their types."""
    experts = [] if made.experts is None else [str(value) for value in vars(made.experts).values()]
    text = " ".join([made.qkv_bias, made.o_bias, made.mlp_bias, *experts])
    fields = dict.fromkeys(
        ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"],
        "int",
    )
    if has_dense or "config.intermediate_size" in text:
        fields["intermediate_size"] = "int"
    fields["max_position_embeddings"] = "int"
    fields["rms_norm_eps"] = "float"
    for name in (*QKV_BIAS_FIELDS, "mlp_bias", "norm_topk_prob"):
        if f"config.{name}" in text:
            fields[name] = "bool"
    if made.experts is not None:
        fields |= {"num_experts": "int", "num_experts_per_tok": "int"}
        for name in ("moe_intermediate_size", "shared_expert_intermediate_size", "n_shared_experts"):
            if f"config.{name}" in text:
                fields[name] = "int"
        fields |= {name: "int" for name in ("n_group", "topk_group") if "n_group" in made.config}
        fields |= {"routed_scaling_factor": "float"} if "routed_scaling_factor" in made.config else {}
    if made.ropes_by_type:
        fields |= {"ropes": "Mapping[str, RopeParameters]", "layer_types": "tuple[str, ...]"}
    else:
        fields["rope"] = "RopeParameters"
    if made.window:
        fields["windows"] = "tuple[int | None, ...]"
    return list(fields.items())


def _field_readers(made: Choices) -> str:
    names = ["attention_heads", "read_fields", "require"]
    names += {"layers": ["layer_types", "num_layers", "window_by_layer"], "all": ["num_layers"]}.get(
        made.window or "", []
    )
    return ", ".join(sorted(names))


def _renames(renamed: Mapping[str, str]) -> list[tuple[str, str]]:
    """Whole modules first: what lies in one is named after it."""
    ordered = sorted(renamed.items(), key=lambda rule: (rule[1].count("."), rule[0].startswith(("self_attn", "mlp"))))
    return [(("^" if name.startswith("^") else "") + re.escape(name.removeprefix("^")), own) for name, own in ordered]


def _expert_names(made: Choices) -> str:
    names = made.structure.expert_names
    others = [f'{_PARTS[own]}="{name}"' for own, name in names.items() if own in _PARTS and own != name]
    return "".join(f", {other}" for other in others)


def _fuse(made: Choices, has_dense: bool) -> dict[str, dict[str, str]]:
    fuse = {}
    if not made.structure.is_fused:
        fuse["qkv_proj"] = {"q": "q_proj", "k": "k_proj", "v": "v_proj"}
    shared = made.experts is not None and made.experts.shared is not None
    if (has_dense and not made.structure.gate_up_is_fused) or (shared and not _shared_is_fused(made)):
        fuse["gate_up_proj"] = {"gate": "gate_proj", "up": "up_proj"}
    return fuse


def _cut(made: Choices) -> dict[str, tuple[str, ...]]:
    cut: dict[str, tuple[str, ...]] = {}
    if made.structure.is_fused:
        cut["qkv_proj"] = ("q", "k", "v")
    if made.structure.gate_up_is_fused or _shared_is_fused(made):
        cut["gate_up_proj"] = ("gate", "up")
    return cut


def _shared_is_fused(made: Choices) -> bool:
    return made.structure.has("mlp.shared_expert.gate_up_proj.weight")


def _card(made: Choices) -> dict[str, Any]:
    """The configuration made small, in its published names."""
    published = {name: made.field_names.get(name, name) for name in made.config}
    card = {"model_type": made.config.get("model_type", made.family)}
    heads, kv_heads = made.config.get("num_attention_heads"), made.config.get("num_key_value_heads")
    tiny: dict[str, Any] = dict(_TINY)
    tiny["num_attention_heads"] = _TINY_HEADS
    tiny["num_key_value_heads"] = _TINY_HEADS if heads == kv_heads or kv_heads is None else _TINY_HEADS // 2
    tiny |= {"max_position_embeddings": 64, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48}
    tiny |= {"num_experts": _TINY_EXPERTS, "num_experts_per_tok": 2, "sliding_window": 7}
    for name, value in tiny.items():
        if made.config.get(name) is not None:
            card[published[name]] = value
    for name in ("rms_norm_eps", "tie_word_embeddings", "hidden_act", "attention_bias", "mlp_bias", "norm_topk_prob"):
        if made.config.get(name) is not None:
            card[published[name]] = made.config[name]
    if made.config.get("layer_types") is not None:
        card["layer_types"] = list(dict.fromkeys(made.config["layer_types"]))[:2]
        card[published["num_hidden_layers"]] = len(card["layer_types"])
    return card


def _literal(value: Any) -> str:
    """A Python literal with double quotes."""
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(item)}" for key, item in value.items()) + "}"
    return repr(value)
