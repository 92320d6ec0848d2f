"""Recognises quantised checkpoints that are not read, by side file or tensor names, to refuse them by name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from trunnion.errors import UnsupportedError

SIDE_FILES: dict[str, str] = {
    "quantize_config.json": "GPTQ or AWQ",
    "quant_config.json": "AWQ",
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


def refuse_quantized_folder(folder: Path) -> None:
    """UnsupportedError if a side file in `folder` says the weights are quantised."""
    for name, method in SIDE_FILES.items():
        if (folder / name).is_file():
            raise UnsupportedError(
                f"quantised checkpoint: {folder} holds {name} ({method}); "
                "supported: unquantised weights, and what config.json names fp8 or compressed-tensors"
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
