"""Reads what a `config.json` says about quantisation: which scheme which of the checkpoint's modules has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from trunnion.errors import UnsupportedError
from trunnion.interfaces.quantization import W8A8, Activations, BlockFP8, Scheme
from trunnion.weights.compressed_tensors_config import BLOCK, read_compressed_tensors
from trunnion.weights.mxfp4_config import read_mxfp4
from trunnion.weights.packed_int_config import read_awq, read_gptq
from trunnion.weights.quantization_rules import QuantizationConfig, Rule, choose, lies_in

KEYS = ("quantization_config", "compression_config", "quantization")
E4M3 = torch.float8_e4m3fn


def read_quantization(config: Mapping[str, Any]) -> QuantizationConfig | None:
    """What `config.json` (or its text_config) says; None where it names no quantisation.

    Raises:
        UnsupportedError: a method or a scheme that is not read, with those that are.
    """
    key, found = settings_of(config)
    if not found:
        return None
    method = found.get("quant_method") or found.get("quant_algo") if isinstance(found, Mapping) else found
    reader = READERS.get(method) if isinstance(method, str) else None
    if reader is None:
        raise UnsupportedError(
            f"quantised checkpoint: config.json has {key} (quant_method {method!r}); supported: {', '.join(READERS)}"
        )
    return reader(found)


def settings_of(config: Mapping[str, Any]) -> tuple[str, Any]:
    """What `config.json` (or its text_config) says about quantisation, and under which name; None if nothing."""
    for where in (config, config.get("text_config") or {}):
        for key in KEYS:
            if where.get(key):
                return key, where[key]
    return KEYS[0], None


def _read_fp8(found: Mapping[str, Any]) -> QuantizationConfig:
    """Published by DeepSeek and Qwen with blocks, by AutoFP8 with one scale per tensor."""
    block, activations = found.get("weight_block_size"), found.get("activation_scheme", "dynamic")
    choose("fp8", "fmt", found.get("fmt", "e4m3"), ("e4m3", "float8_e4m3fn"))
    choose("fp8", "scale_fmt", found.get("scale_fmt", "float"), ("float",))
    choose("fp8", "expert_dtype", found.get("expert_dtype", "fp8"), ("fp8",))
    if block is None:
        choose("fp8", "activation_scheme", activations, ("dynamic", "static"))
        kind = Activations.STATIC if activations == "static" else Activations.TOKEN
        scheme: Scheme = W8A8(dtype=E4M3, per_row=False, activations=kind)
    else:
        choose("fp8", "weight_block_size", list(block), (list(BLOCK),))
        choose("fp8 in blocks", "activation_scheme", activations, ("dynamic",))
        scheme = BlockFP8()
    ignored = tuple(found.get("modules_to_not_convert") or found.get("ignored_layers") or ())
    # The head is quantised by none of those who publish this format, and named by few.
    ignored = ("lm_head", *ignored)
    rule = Rule(scheme=scheme, targets=("Linear",))
    return QuantizationConfig(
        method="fp8", rules=(rule,), ignore=lambda module: any(lies_in(name, module) for name in ignored)
    )


READERS: Mapping[str, Callable[[Mapping[str, Any]], QuantizationConfig]] = {
    "fp8": _read_fp8,
    "compressed-tensors": read_compressed_tensors,
    "awq": read_awq,
    "gptq": read_gptq,
    "mxfp4": read_mxfp4,
}
"""`quant_method` -> its reader; a format that is added has one here, and a scheme if no other tells it."""
