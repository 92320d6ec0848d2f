"""Reads the `quantization_config` of AWQ and of GPTQ: weights alone in 4 or 8 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trunnion.errors import UnsupportedError
from trunnion.interfaces.quantization import GroupedInt, IntLayout
from trunnion.weights.quantization_rules import QuantizationConfig, Rule, choose, lies_in

GROUP_SIZES = (-1, 32, 64, 128, 256, 512, 1024)
LAYOUTS = {"gptq": IntLayout.GPTQ, "gptq_v2": IntLayout.GPTQ_V2}
"""`checkpoint_format` -> how it stores zero points."""


def read_awq(found: Mapping[str, Any]) -> QuantizationConfig:
    """As AutoAWQ writes it, also in its own file, where bits and groups have other names.

    Raises:
        UnsupportedError: what is not read, with what is.
    """
    bits, group_size = found.get("bits", found.get("w_bit")), found.get("group_size", found.get("q_group_size"))
    choose("awq", "bits", bits, (4,))
    choose("awq", "group_size", group_size, GROUP_SIZES)
    choose("awq", "version", str(found.get("version", "gemm")).lower(), ("gemm",))
    choose("awq", "zero_point", found.get("zero_point", True), (True,))
    scheme = GroupedInt(bits=4, group_size=_group_size(group_size), has_zero_points=True, layout=IntLayout.AWQ)
    ignored = tuple(found.get("modules_to_not_convert") or ())
    return _config("awq", scheme, ignored)


def read_gptq(found: Mapping[str, Any]) -> QuantizationConfig:
    """As AutoGPTQ and GPTQModel write it; no `checkpoint_format` is the first.

    Raises:
        UnsupportedError: what is not read, with what is.
    """
    choose("gptq", "bits", found.get("bits"), (4, 8))
    choose("gptq", "group_size", found.get("group_size"), GROUP_SIZES)
    form = found.get("checkpoint_format") or "gptq"
    choose("gptq", "checkpoint_format", "marlin" if found.get("is_marlin_format") else form, tuple(LAYOUTS))
    for pattern in found.get("dynamic") or {}:
        if not pattern.startswith("-:"):
            raise UnsupportedError(
                f"gptq: dynamic settings for {pattern!r} are not supported; "
                "choices: patterns that leave modules out (-:)"
            )
    group_size = _group_size(found["group_size"])
    scheme = GroupedInt(
        bits=found["bits"],
        group_size=group_size,
        has_zero_points=True,
        # Of one group for all features there is no order.
        is_ordered=bool(found.get("desc_act")) and group_size is not None,
        layout=LAYOUTS[form],
    )
    return _config("gptq", scheme, ())


def _config(method: str, scheme: GroupedInt, ignored: tuple[str, ...]) -> QuantizationConfig:
    return QuantizationConfig(
        method=method,
        rules=(Rule(scheme=scheme, targets=("Linear",)),),
        ignore=lambda module: any(lies_in(name, module) for name in ignored),
        plain_is_unquantised=True,
    )


def _group_size(value: int) -> int | None:
    return None if value == -1 else value
