"""The declarative map from a checkpoint's tensor names to a model's parameters and their parts.

All patterns match whole path parts: `gate_proj` never matches `gate_projections` (a substring rule would).
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Rules = tuple[tuple[str, str], ...]

COMMON_PREFIXES: Rules = (
    (r"^_orig_mod", ""),
    (r"^model\.language_model", "model"),
    (r"^language_model\.model", "model"),
    (r"^language_model\.lm_head", "lm_head"),
    (r"^(embed_tokens|layers|norm)", r"model.\1"),
)
"""torch.compile leftovers, decoders saved inside a multimodal model, and decoders saved without their head."""

COMMON_IGNORE: Rules = ((r"rotary_emb\.inv_freq", "computed from the config's rope"),)
"""Tensors that old exporters left in; every family's `ignore` starts with these."""

KV_SCALES: Rules = (
    (r"(?:attn\.)?([kv])_scale", r"attn.\1_scale"),
    (r"([kv])_proj\.(?:[kv]_scale|output_scale)", r"attn.\1_scale"),
)
"""(pattern, replacement): where the scales of an fp8 cache stand below `self_attn`, by vLLM, ModelOpt and
compressed-tensors, and the parameter of `Attention` each of them is."""

SCALE_NAMES: Mapping[str, str] = {"weight_scale_inv": "weight_scale", "activation_scale": "input_scale"}
"""transformers' names for the scales of FP8 without blocks (Ministral 3) -> AutoFP8's, which are those of layers."""

COMMON_REFUSE: Rules = (
    (
        r"lora_[AB]|lora_embedding_[AB]|base_layer|modules_to_save|base_model\.model",
        "left by PEFT: merge the adapter with merge_and_unload() and save again",
    ),
)

COMMON_TIED: Mapping[str, str] = {"lm_head.weight": "model.embed_tokens.weight"}


STACK_SUFFIXES: Mapping[str, str] = {"bias": "_bias", "blocks": ""}
"""What stands behind the name of a stack of experts -> behind that of the parameter."""


class Target(NamedTuple):
    """A part of a parameter. Part "" is the whole; `*.gate_up` and `*.down` are all experts stacked in dimension 0;
    `q+k+v` are several parts, the rows of one after those of the other."""

    param: str
    part: str = ""
    transposed: bool | None = None
    """Of a stack: whether each expert lies transposed; None: the name does not say."""
    interleaved: bool = False
    """Of a stack of several parts: whether their rows take turns; else one part's follow the other's."""


class Ignored(NamedTuple):
    """A checkpoint tensor that is left out on purpose."""

    reason: str


class Refused(NamedTuple):
    """A checkpoint tensor that says the checkpoint is of a kind that cannot be loaded."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class ExpertRule:
    """Names of one block of experts. Its parameters are `<block>.w13` (parts `<e>.gate`, `<e>.up`) and `<block>.w2`
    (parts `<e>.down`); both layouts that exist are understood: one tensor per expert
    (`<block>.<e>.gate_proj.weight`) and stacked (`<block>.gate_up_proj` [E, 2I, H] or transposed).
    What else an expert has (`<block>.<e>.gate_proj.weight_scale`) goes to `<block>.w13_weight_scale`, a stack of biases
    (`<block>.gate_up_proj_bias` [E, 2I]) to `<block>.w13_bias`, and one of MXFP4 (`<block>.gate_up_proj_blocks`, which
    is never transposed) to `<block>.w13`."""

    block: str = "mlp.experts"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    stacked_gate_up: str = "gate_up_proj"
    stacked_down: str = "down_proj"
    stacked_transposed: bool | None = None
    """Whether stacks are [E, H, 2I] and [E, I, H], where the names are of checkpoints that do it one way only; None:
    shapes tell, and a stack that fits both ways is refused."""
    stacked_interleaved: bool = False
    """Whether rows of gate and up take turns in stacks (gpt-oss)."""

    def resolve(self, name: str) -> Target | None:
        """The target of `name`, or None if it is not a tensor of this block."""
        match = _whole(rf"{re.escape(self.block)}\.(.+)").search(name)
        if match is None:
            return None
        block, leaf = name[: match.start(1) - 1], match.group(1)
        stacked = {self.stacked_gate_up: ("w13", "*.gate_up"), self.stacked_down: ("w2", "*.down")}
        if leaf in stacked:
            param, part = stacked[leaf]
            return Target(f"{block}.{param}", part, self.stacked_transposed, self.stacked_interleaved)
        stack, _, suffix = leaf.rpartition("_")
        if stack in stacked and suffix in STACK_SUFFIXES:
            param, part = stacked[stack]
            return Target(f"{block}.{param}{STACK_SUFFIXES[suffix]}", part, False, self.stacked_interleaved)
        single = re.fullmatch(r"(\d+)\.([^.]+)\.(\w+)", leaf)
        if single is None:
            return None
        parts = {self.gate: ("w13", "gate"), self.up: ("w13", "up"), self.down: ("w2", "down")}
        if single.group(2) not in parts:
            return None
        param, part = parts[single.group(2)]
        suffix = "" if single.group(3) == "weight" else f"_{single.group(3)}"
        return Target(f"{block}.{param}{suffix}", f"{int(single.group(1))}.{part}")

    def checkpoint_name(self, target: Target) -> str | None:
        """The name that fills `target`, for messages: per expert, unless the block's names are those of stacks."""
        match = _whole(rf"{re.escape(self.block)}\.(w13|w2)(?:_(\w+))?$").search(target.param)
        if match is None or "." not in target.part:
            return None
        expert, part = target.part.split(".", 1)
        leaf = {"gate": self.gate, "up": self.up, "down": self.down}.get(part)
        if leaf is None:
            return None
        if self.stacked_transposed is not None:
            stack = self.stacked_down if part == "down" else self.stacked_gate_up
            suffix = f"_{match.group(2)}" if match.group(2) else ""
            return f"{target.param[: match.start(1) - 1]}.{stack}{suffix}"
        return f"{target.param[: match.start(1) - 1]}.{expert}.{leaf}.{match.group(2) or 'weight'}"


@dataclass(frozen=True, kw_only=True)
class WeightMap:
    """How a family's checkpoint names become parameter names; used in the order of the fields from `refuse` down."""

    refuse: Rules = COMMON_REFUSE
    """(pattern, reason): the whole checkpoint is refused."""
    ignore: Rules = COMMON_IGNORE
    """(pattern, reason): the tensor is known and not used. Matched on the checkpoint's name and on the renamed one.
    `<field>` in a pattern, here and in `rename`, stands for a field of the configuration, such as
    `<num_hidden_layers>` for the layer of a head that drafts: see `for_config`."""
    prefixes: Rules = COMMON_PREFIXES
    """(pattern, replacement), applied in order: where the decoder sits in the checkpoint."""
    rename: Rules = ()
    """(pattern, replacement), applied in order: family-specific names."""
    experts: tuple[ExpertRule, ...] = ()
    fuse: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Fused module -> part -> module in the checkpoint, e.g. `{"qkv_proj": {"q": "q_proj", ...}}`. A module of the
    checkpoint that is several parts is cut as by `cut`: `{"in_proj_qkvz": {"q+k+v": "in_proj_qkv", ...}}`."""
    cut: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Module that is one in the checkpoint as well -> its parts in the order of their rows there, e.g.
    `{"qkv_proj": ("q", "k", "v")}`: each rank takes its share of each part."""
    tied: Mapping[str, str] = field(default_factory=lambda: dict(COMMON_TIED))
    """Parameter -> the parameter it may share; optional in the checkpoint when the model shares it."""

    def for_config(self, config: object) -> WeightMap:
        """The map of a model with `config`, whose fields the patterns of `ignore` and `rename` may name."""

        def value(match: re.Match[str]) -> str:
            return re.escape(str(getattr(config, match.group(1))))

        ignore, rename = (
            tuple((re.sub(r"<(\w+)>", value, pattern), to) for pattern, to in rules)
            for rules in (self.ignore, self.rename)
        )
        return dataclasses.replace(self, ignore=ignore, rename=rename)

    def resolve(self, name: str) -> list[Target] | Ignored | Refused:
        """Where the checkpoint tensor `name` goes. Does not know which parameters exist."""
        for pattern, reason in self.refuse:
            if _whole(pattern).search(name):
                return Refused(reason)
        renamed = self.renamed(name)
        for pattern, reason in self.ignore:
            if _whole(pattern).search(name) or _whole(pattern).search(renamed):
                return Ignored(reason)
        scale = kv_scale(renamed)
        if scale is not None:
            return [Target(scale)]
        for rule in self.experts:
            target = rule.resolve(renamed)
            if target is not None:
                return [target]
        for fused, parts in self.fuse.items():
            for part, module in parts.items():
                found = _whole(re.escape(module))
                if found.search(renamed):
                    return [Target(found.sub(fused, renamed), part)]
        for module, names in self.cut.items():
            if _whole(re.escape(module)).search(renamed):
                return [Target(renamed, "+".join(names))]
        return [Target(renamed)]

    def renamed(self, name: str) -> str:
        """`name` after `prefixes` and `rename`."""
        for pattern, replacement in (*self.prefixes, *self.rename):
            name = _whole(pattern).sub(replacement, name)
        return ".".join(part for part in name.split(".") if part)

    def checkpoint_name(self, target: Target) -> str:
        """The usual checkpoint name of `target` (before `rename`), for messages."""
        for rule in self.experts:
            name = rule.checkpoint_name(target)
            if name is not None:
                return name
        for fused, parts in self.fuse.items():
            pattern = _whole(re.escape(fused))
            if pattern.search(target.param):
                for part, module in parts.items():
                    if target.part in (part, *part.split("+")):
                        return pattern.sub(module, target.param)
        for module, names in self.cut.items():
            if target.part in (*names, "+".join(names)) and _whole(re.escape(module)).search(target.param):
                return target.param
        return target.param if not target.part else f"{target.param}[{target.part}]"


def kv_scale(name: str) -> str | None:
    """The parameter that the scale of an fp8 cache becomes; None if `name` is not one."""
    for pattern, replacement in KV_SCALES:
        match = re.fullmatch(rf"(.*\.self_attn)\.{pattern}", name)
        if match is not None:
            return re.sub(rf"(?<=\.self_attn)\.{pattern}$", rf".{replacement}", name)
    return None


@functools.cache
def _whole(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(?:^|(?<=\.))(?:{pattern})(?=\.|$)")
