"""Reads what a `config.json` says about quantisation: which scheme which of the checkpoint's modules has."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trunnion.errors import UnsupportedError
from trunnion.interfaces.quantization import W8A8, Activations, BlockFP8, Scheme

KEYS = ("quantization_config", "compression_config", "quantization")
BLOCK = (128, 128)
FORMATS = ("int-quantized", "float-quantized", "naive-quantized")
"""Of compressed-tensors: weights of 8 bits as they are multiplied, nothing packed."""
E4M3 = torch.float8_e4m3fn


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A scheme and the modules that have it."""

    scheme: Scheme
    targets: tuple[str, ...]
    """Names, `re:` patterns of names, or the class `Linear`, which stands for all."""


@dataclass(frozen=True, kw_only=True)
class QuantizationConfig:
    """The rules of a checkpoint in its own module names; the first that names a module gives its scheme."""

    method: str
    rules: tuple[Rule, ...]
    ignore: Callable[[str], bool]
    """Whether a module is left unquantised in spite of the rules."""

    def scheme_of(self, module: str) -> Scheme | None:
        """Of the module that the checkpoint calls `module`."""
        if self.ignore(module):
            return None
        for rule in self.rules:
            if any(target == "Linear" or _matches(target, module) for target in rule.targets):
                return rule.scheme
        return None


def read_quantization(config: Mapping[str, Any]) -> QuantizationConfig | None:
    """What `config.json` (or its text_config) says; None where it names no quantisation.

    Raises:
        UnsupportedError: a method or a scheme that is not read, with those that are.
    """
    for where in (config, config.get("text_config") or {}):
        for key in KEYS:
            found = where.get(key)
            if not found:
                continue
            method = found.get("quant_method") or found.get("quant_algo") if isinstance(found, Mapping) else found
            reader = READERS.get(method) if isinstance(method, str) else None
            if reader is None:
                raise UnsupportedError(
                    f"quantised checkpoint: config.json has {key} (quant_method {method!r}); "
                    f"supported: {', '.join(READERS)}"
                )
            return reader(found)
    return None


def _read_fp8(found: Mapping[str, Any]) -> QuantizationConfig:
    """Published by DeepSeek and Qwen with blocks, by AutoFP8 with one scale per tensor."""
    block, activations = found.get("weight_block_size"), found.get("activation_scheme", "dynamic")
    _choose("fp8", "fmt", found.get("fmt", "e4m3"), ("e4m3", "float8_e4m3fn"))
    _choose("fp8", "scale_fmt", found.get("scale_fmt", "float"), ("float",))
    _choose("fp8", "expert_dtype", found.get("expert_dtype", "fp8"), ("fp8",))
    if block is None:
        _choose("fp8", "activation_scheme", activations, ("dynamic", "static"))
        kind = Activations.STATIC if activations == "static" else Activations.TOKEN
        scheme: Scheme = W8A8(dtype=E4M3, per_row=False, activations=kind)
    else:
        _choose("fp8", "weight_block_size", list(block), (list(BLOCK),))
        _choose("fp8 in blocks", "activation_scheme", activations, ("dynamic",))
        scheme = BlockFP8()
    ignored = tuple(found.get("modules_to_not_convert") or found.get("ignored_layers") or ())
    # The head is quantised by none of those who publish this format, and named by few.
    ignored = ("lm_head", *ignored)
    rule = Rule(scheme=scheme, targets=("Linear",))
    return QuantizationConfig(
        method="fp8", rules=(rule,), ignore=lambda module: any(_lies_in(name, module) for name in ignored)
    )


def _read_compressed_tensors(found: Mapping[str, Any]) -> QuantizationConfig:
    groups, ignored = found.get("config_groups") or {}, tuple(found.get("ignore") or ())
    if not isinstance(groups, Mapping) or not groups:
        raise UnsupportedError("compressed-tensors: quantization_config has no config_groups")
    for key in ("sparsity_config", "transform_config"):
        wanted = found.get(key) or {}
        if wanted and wanted.get("format", "") != "dense":
            raise UnsupportedError(f"compressed-tensors: {key} is not supported; supported: weights of 8 bits alone")
    rules = []
    for name, group in groups.items():
        what = f"compressed-tensors {name}"
        _choose(what, "format", group.get("format") or found.get("format") or "naive-quantized", FORMATS)
        if group.get("output_activations"):
            raise UnsupportedError(f"{what}: quantised output_activations are not supported; choices: none")
        rules.append(Rule(scheme=_group_scheme(what, group), targets=tuple(group.get("targets") or ("Linear",))))
    return QuantizationConfig(
        method="compressed-tensors",
        rules=tuple(rules),
        ignore=lambda module: any(_matches(pattern, module) for pattern in ignored),
    )


def _group_scheme(what: str, group: Mapping[str, Any]) -> Scheme:
    weights, inputs = group.get("weights") or {}, group.get("input_activations")
    _choose(what, "weights num_bits", weights.get("num_bits"), (8,))
    kind = weights.get("type", "int")
    _choose(what, "weights type", kind, ("int", "float"))
    _choose(what, "weights strategy", weights.get("strategy"), ("channel", "tensor", "block"))
    if inputs is None:
        raise UnsupportedError(f"{what}: weights alone are quantised (W8A16); supported: activations of 8 bits too")
    _choose(what, "input_activations num_bits", inputs.get("num_bits"), (8,))
    _choose(what, "input_activations type", inputs.get("type", "int"), (kind,))
    for part, settings in (("weights", weights), ("input_activations", inputs)):
        _choose(what, f"{part} symmetric", settings.get("symmetric", True), (True,))
    if weights["strategy"] == "block":
        _choose(what, "weights type in blocks", kind, ("float",))
        _choose(what, "weights block_structure", list(weights.get("block_structure") or ()), (list(BLOCK),))
        _choose(what, "input_activations strategy", inputs.get("strategy"), ("group",))
        _choose(what, "input_activations group_size", inputs.get("group_size"), (BLOCK[1],))
        _choose(what, "input_activations dynamic", inputs.get("dynamic"), (True,))
        return BlockFP8(scale_name="weight_scale")
    is_dynamic = bool(inputs.get("dynamic"))
    _choose(what, "input_activations strategy", inputs.get("strategy"), ("token",) if is_dynamic else ("tensor",))
    return W8A8(
        dtype=torch.int8 if kind == "int" else E4M3,
        per_row=weights["strategy"] == "channel",
        activations=Activations.TOKEN if is_dynamic else Activations.STATIC,
    )


READERS: Mapping[str, Callable[[Mapping[str, Any]], QuantizationConfig]] = {
    "fp8": _read_fp8,
    "compressed-tensors": _read_compressed_tensors,
}
"""`quant_method` -> its reader; a format that is added has one here, and a scheme if no other tells it."""


def _choose(what: str, name: str, value: object, choices: Sequence[object]) -> None:
    if value not in choices:
        raise UnsupportedError(f"{what}: {name} {value!r} is not supported; choices: {', '.join(map(repr, choices))}")


def _matches(pattern: str, module: str) -> bool:
    """compressed-tensors: a whole name, or a regular expression that fits a name's beginning."""
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), module) is not None
    return pattern == module


def _lies_in(name: str, module: str) -> bool:
    """Whether `module` is `name`, lies in it, or ends with it, by whole path parts."""
    return f".{module}.".startswith(f".{name}.") or f".{module}".endswith(f".{name}")
