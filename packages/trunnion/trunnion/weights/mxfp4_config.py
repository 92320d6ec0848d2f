"""Reads the `quantization_config` of MXFP4, as gpt-oss is published."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trunnion.interfaces.quantization import MXFP4
from trunnion.weights.quantization_rules import QuantizationConfig, Rule


def read_mxfp4(found: Mapping[str, Any]) -> QuantizationConfig:
    """Nothing but names: what is quantised lies in blocks, with scales beside them (`MXFP4Source`)."""
    patterns = [_pattern(name) for name in found.get("modules_to_not_convert") or ()]
    return QuantizationConfig(
        method="mxfp4",
        rules=(Rule(scheme=MXFP4(), targets=("Linear",)),),
        ignore=lambda module: any(pattern.match(module) for pattern in patterns),
        plain_is_unquantised=True,
    )


def _pattern(name: str) -> re.Pattern[str]:
    """Of a module and what lies in it; `*` stands for a part of a name."""
    return re.compile(re.escape(name).replace(r"\*", r"[^.]+") + r"(?:\.|$)")
