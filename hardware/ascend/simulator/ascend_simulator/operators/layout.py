"""Moving tensors between layouts of memory."""

from __future__ import annotations

from ascend_simulator.formats import FRACTAL_NZ, to_fractal
from ascend_simulator.rules import Raw, rule


@rule("aclnnNpuFormatCast", source="ops-math/conversion/npu_format_cast/docs/aclnnNpuFormatCast.md")
def format_cast(source: Raw, target: Raw) -> None:
    """The same elements in the target's layout."""
    matrix = source.view()
    if target.format == FRACTAL_NZ:
        target.storage.copy_(to_fractal(matrix).reshape(-1))
    else:
        target.view().copy_(matrix)
