"""The modules of FlashInfer that tests run on the simulated device, compiled before the first test and then kept.

Few, for one dtype and head size: what they leave to arguments is what tests vary. Compiling takes minutes, once for
each version of FlashInfer, torch and nvcc; ninja sees what has changed. Tests that need others run nightly.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

HEAD_DIM = 64
LATENT_DIM, ROPE_DIM = 512, 64
DTYPE = torch.bfloat16
MOST_MODULES = 4
"""Compiled with every change."""


def prepare_modules() -> None:
    """Compile what is not compiled, one file at a time, and load it."""
    wanted = modules()
    assert len(wanted) <= MOST_MODULES, f"{len(wanted)} modules to compile; every change may have {MOST_MODULES}"
    for load in wanted:
        load()


def prepare_nightly_modules() -> None:
    """The same for those that only tests marked nightly need."""
    for load in nightly_modules():
        load()


def modules() -> list[Callable[[], object]]:
    """Decode on CUDA cores; prefill, without and with window and soft cap; latent attention."""
    # Read by FlashInfer when it is imported: `install` has set where it compiles, and for what.
    from flashinfer.decode import get_batch_decode_module
    from flashinfer.jit import gen_batch_mla_module
    from flashinfer.prefill import get_batch_prefill_module

    dtypes = (DTYPE, DTYPE, DTYPE, torch.int32)
    no_positions, no_fp16_scores, no_scales, no_profiler = 0, False, False, False

    def decode() -> object:
        return get_batch_decode_module(*dtypes, HEAD_DIM, HEAD_DIM, no_positions, False, False)

    def prefill(has_window: bool, has_soft_cap: bool) -> object:
        shape = (*dtypes, HEAD_DIM, HEAD_DIM, no_positions)
        return get_batch_prefill_module("fa2", *shape, has_window, has_soft_cap, no_fp16_scores, no_scales)

    def latent() -> object:
        return gen_batch_mla_module("fa2", *dtypes, LATENT_DIM, ROPE_DIM, no_profiler).build_and_load()

    return [decode, lambda: prefill(False, False), lambda: prefill(True, True), latent]


def nightly_modules() -> list[Callable[[], object]]:
    """Decode and prefill over caches in float8, with sinks without and with window; with a window alone; decode with
    window and soft cap, prefill with a soft cap alone."""
    import flashinfer
    from flashinfer.decode import get_batch_decode_module
    from flashinfer.prefill import get_batch_prefill_module

    wide, narrow = (
        (DTYPE, cached, DTYPE, torch.int32, HEAD_DIM, HEAD_DIM, 0) for cached in (DTYPE, torch.float8_e4m3fn)
    )

    def sinks(window_left: int) -> object:
        # Compiled when the wrapper is made.
        return flashinfer.BatchAttentionWithAttentionSinkWrapper(
            torch.empty(1, dtype=torch.uint8, device="cuda"),
            backend="fa2",
            q_data_type=DTYPE,
            kv_data_type=DTYPE,
            head_dim_qk=HEAD_DIM,
            head_dim_vo=HEAD_DIM,
            window_left=window_left,
        )

    return [
        lambda: get_batch_decode_module(*narrow, False, False),
        lambda: get_batch_prefill_module("fa2", *narrow, False, False, False, False),
        lambda: get_batch_decode_module(*wide, True, False),
        lambda: get_batch_prefill_module("fa2", *wide, True, False, False, False),
        lambda: get_batch_decode_module(*wide, True, True),
        lambda: get_batch_prefill_module("fa2", *wide, False, True, False, False),
        lambda: sinks(-1),
        lambda: sinks(5),
    ]
