"""Reads the `quantization_config` of compressed-tensors: integers and FP8 of 8 bits, and packed integers of 4 or 8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from trunnion.errors import UnsupportedError
from trunnion.interfaces.quantization import W8A8, Activations, BlockFP8, GroupedInt, IntLayout, Scheme
from trunnion.weights.quantization_rules import QuantizationConfig, Rule, choose, matches

BLOCK = (128, 128)
FORMATS = ("int-quantized", "float-quantized", "naive-quantized")
"""Weights of 8 bits as they are multiplied, nothing packed."""
PACKED = "pack-quantized"
BITS = (4, 8)
GROUP_SIZES = (32, 64, 128, 256, 512, 1024)
ORDERS = {None: False, "weight": False, "static": False, "group": True, "dynamic": True}
"""`actorder` -> whether the checkpoint tells the group of each feature."""


def read_compressed_tensors(found: Mapping[str, Any]) -> QuantizationConfig:
    """What llm-compressor writes.

    Raises:
        UnsupportedError: a scheme that is not read, with those that are.
    """
    groups, ignored = found.get("config_groups") or {}, tuple(found.get("ignore") or ())
    if not isinstance(groups, Mapping) or not groups:
        raise UnsupportedError("compressed-tensors: quantization_config has no config_groups")
    for key in ("sparsity_config", "transform_config"):
        wanted = found.get(key) or {}
        if wanted and wanted.get("format", "") != "dense":
            raise UnsupportedError(f"compressed-tensors: {key} is not supported; choices: none")
    rules = []
    for name, group in groups.items():
        what = f"compressed-tensors {name}"
        form = group.get("format") or found.get("format") or "naive-quantized"
        choose(what, "format", form, (*FORMATS, PACKED))
        if group.get("output_activations"):
            raise UnsupportedError(f"{what}: quantised output_activations are not supported; choices: none")
        scheme = _packed_scheme if form == PACKED else _plain_scheme
        rules.append(Rule(scheme=scheme(what, form, group), targets=tuple(group.get("targets") or ("Linear",))))
    return QuantizationConfig(
        method="compressed-tensors",
        rules=tuple(rules),
        ignore=lambda module: any(matches(pattern, module) for pattern in ignored),
        has_cache_scales=_read_cache_scheme(found.get("kv_cache_scheme")),
    )


def _plain_scheme(what: str, form: str, group: Mapping[str, Any]) -> Scheme:
    weights, inputs = group.get("weights") or {}, group.get("input_activations")
    choose(what, "weights num_bits", weights.get("num_bits"), (8,))
    kind = weights.get("type", "int")
    choose(what, "weights type", kind, ("int", "float"))
    choose(what, "weights strategy", weights.get("strategy"), ("channel", "tensor", "block"))
    if inputs is None:
        raise UnsupportedError(
            f"{what}: weights alone are quantised (W8A16) in format {form!r}; "
            f"choices: {PACKED!r}, or activations of 8 bits too"
        )
    choose(what, "input_activations num_bits", inputs.get("num_bits"), (8,))
    choose(what, "input_activations type", inputs.get("type", "int"), (kind,))
    for part, settings in (("weights", weights), ("input_activations", inputs)):
        choose(what, f"{part} symmetric", settings.get("symmetric", True), (True,))
    if weights["strategy"] == "block":
        choose(what, "weights type in blocks", kind, ("float",))
        choose(what, "weights block_structure", list(weights.get("block_structure") or ()), (list(BLOCK),))
        choose(what, "input_activations strategy", inputs.get("strategy"), ("group",))
        choose(what, "input_activations group_size", inputs.get("group_size"), (BLOCK[1],))
        choose(what, "input_activations dynamic", inputs.get("dynamic"), (True,))
        return BlockFP8(scale_name="weight_scale")
    is_dynamic = bool(inputs.get("dynamic"))
    choose(what, "input_activations strategy", inputs.get("strategy"), ("token",) if is_dynamic else ("tensor",))
    return W8A8(
        dtype=torch.int8 if kind == "int" else torch.float8_e4m3fn,
        per_row=weights["strategy"] == "channel",
        activations=Activations.TOKEN if is_dynamic else Activations.STATIC,
    )


def _packed_scheme(what: str, form: str, group: Mapping[str, Any]) -> Scheme:
    """Weights alone."""
    weights = group.get("weights") or {}
    if group.get("input_activations"):
        raise UnsupportedError(
            f"{what}: quantised input_activations in format {form!r} are not supported; choices: none"
        )
    choose(what, "weights num_bits", weights.get("num_bits"), BITS)
    choose(what, "weights type", weights.get("type", "int"), ("int",))
    strategy = weights.get("strategy") or ("channel" if weights.get("group_size") in (None, -1) else "group")
    choose(what, "weights strategy", strategy, ("channel", "group"))
    choose(what, "weights symmetric", weights.get("symmetric", True), (True, False))
    choose(what, "weights actorder", weights.get("actorder"), tuple(ORDERS))
    if strategy == "group":
        choose(what, "weights group_size", weights.get("group_size"), GROUP_SIZES)
    return GroupedInt(
        bits=weights["num_bits"],
        group_size=weights["group_size"] if strategy == "group" else None,
        has_zero_points=not weights.get("symmetric", True),
        is_ordered=strategy == "group" and ORDERS[weights.get("actorder")],
        layout=IntLayout.COMPRESSED,
    )


def _read_cache_scheme(scheme: Mapping[str, Any] | None) -> bool:
    """Whether there are scales of an fp8 cache: one for the keys and one for the values of each layer.

    Raises:
        UnsupportedError: the checkpoint was made for another kind of cache.
    """
    if not scheme:
        return False
    what = "compressed-tensors kv_cache_scheme"
    choose(what, "num_bits", scheme.get("num_bits"), (8,))
    choose(what, "type", scheme.get("type", "int"), ("float",))
    choose(what, "strategy", scheme.get("strategy") or "tensor", ("tensor",))
    choose(what, "dynamic", scheme.get("dynamic", False), (False,))
    choose(what, "symmetric", scheme.get("symmetric", True), (True,))
    return True
