"""Matrix cases this package does not run yet, each with its reason. A listed case that passes fails the matrix."""

from __future__ import annotations

FLOAT8 = "no chip that is known here has float8, and CANN casts none there: refused at load (float8.py)"
CONVOLUTION = (
    "transformers' short convolutions are Conv2D, which CANN compiles when it runs: simulated it compiles nothing, and "
    "nobody has seen it on a chip"
)

UNSUPPORTED: dict[str, str] = dict.fromkeys(
    (
        "llama-fp8-blocks",
        "llama-fp8-static",
        "llama-fp8-rows",
        "deepseek_v2-fp8-blocks",
        "deepseek_v3-fp8-blocks",
        "qwen3_5-fp8-blocks",
        "llama-fp8-cache",
    ),
    FLOAT8,
) | dict.fromkeys(("adapter-olmo_hybrid", "adapter-bamba", "adapter-jamba"), CONVOLUTION)
"""`<card>` or `<card>-<dtype>` -> reason"""

REFUSED: dict[str, str] = dict.fromkeys(
    (
        "fp8-cache",
        "wide-fp8-cache-bf16",
        "block_fp8_linear",
        "block_fp8_experts",
        "w8a8_linear-fp8",
        "w8a8_experts-fp8",
    ),
    FLOAT8,
)
"""How ids of cases of the conformance suite begin that raise UnsupportedError -> reason"""
