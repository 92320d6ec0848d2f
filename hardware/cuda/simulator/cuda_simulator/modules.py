"""The modules of FlashInfer that tests run on the simulated device, compiled before the first test and then kept.

Three, for one dtype and head size: what they leave to arguments is what tests vary. Compiling takes minutes, once for
each version of FlashInfer, torch and nvcc; ninja sees what has changed.
"""

from __future__ import annotations

import torch

HEAD_DIM = 64
DTYPE = torch.bfloat16


def prepare_modules() -> None:
    """Compile what is not compiled, one file at a time, and load it."""
    # Read by FlashInfer when it is imported: `install` has set where it compiles, and for what.
    from flashinfer.decode import get_batch_decode_module
    from flashinfer.prefill import get_batch_prefill_module

    shape = (DTYPE, DTYPE, DTYPE, torch.int32, HEAD_DIM, HEAD_DIM)
    no_positions, no_fp16_scores, no_scales = 0, False, False
    get_batch_decode_module(*shape, no_positions, False, False)
    for has_window, has_soft_cap in ((False, False), (True, True)):
        get_batch_prefill_module("fa2", *shape, no_positions, has_window, has_soft_cap, no_fp16_scores, no_scales)
