"""What tells of quantisation beside `config.json`: files that hold its settings, and names of files and tensors that
belong to formats which are not read, and are refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trunnion.errors import UnsupportedError
from trunnion.hf_config import read_json_object
from trunnion.weights.quantization_config import settings_of

SETTINGS_FILES: dict[str, str] = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
"""Files that hold a `quantization_config`, as uploads of 2023 have them, and what they are if they do not say so."""
SIDE_FILES: dict[str, str] = {
    "quant_model_description.json": "Ascend msmodelslim",
    "hf_quant_config.json": "NVIDIA ModelOpt",
}
"""Files that say a checkpoint is quantised even when `config.json` does not."""

NAME_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"\.(qweight|qzeros|g_idx)$", "GPTQ or AWQ"),
    (r"\.weight_packed$", "compressed-tensors"),
    (r"\.weight_scale_inv$", "block FP8"),
    (r"\.weight_scale(_2)?$", "compressed-tensors, FP8 or ModelOpt"),
    (r"_blocks$", "MXFP4"),
    (r"\.(SCB|weight\.absmax|weight\.quant_map)$", "bitsandbytes"),
    (r"\.(scales|biases)$", "MLX or AWQ"),
    (r"\.(kv_scale|input_scale)$|(?<!k_proj)(?<!v_proj)\.output_scale$", "FP8 scales"),
)


def with_settings_file(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with the `quantization_config` of a file beside it, unless it has one itself.

    Raises:
        UnsupportedError: both have one, and they differ.
    """
    for name, method in SETTINGS_FILES.items():
        if not (folder / name).is_file():
            continue
        settings = {"quant_method": method, **read_json_object(folder / name)}
        _, own = settings_of(config)
        if own is None:
            return {**config, "quantization_config": settings}
        for key in ("bits", "group_size", "desc_act"):
            if isinstance(own, Mapping) and key in own and key in settings and own[key] != settings[key]:
                raise UnsupportedError(
                    f"quantised checkpoint: {key} is {own[key]!r} in {folder / 'config.json'} and {settings[key]!r} in "
                    f"{name}; remove the one that is wrong"
                )
    return dict(config)


def refuse_quantized_folder(folder: Path) -> None:
    """UnsupportedError if a side file in `folder` says the weights are quantised."""
    for name, method in SIDE_FILES.items():
        if (folder / name).is_file():
            raise UnsupportedError(
                f"quantised checkpoint: {folder} holds {name} ({method}); "
                "supported: unquantised weights, and what config.json names fp8, compressed-tensors, awq, gptq or mxfp4"
            )


def refuse_quantized_names(description: str, names: Iterable[str]) -> None:
    """UnsupportedError if a tensor's name belongs to a quantisation format that the config did not mention."""
    for name in names:
        for pattern, method in NAME_PATTERNS:
            if re.search(pattern, name):
                raise UnsupportedError(
                    f"quantised checkpoint: {description} holds {name!r} ({method}) though its config names no "
                    "quantisation: put its quantization_config back"
                )
