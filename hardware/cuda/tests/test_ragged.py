"""Prompts without cached tokens are read from the rows of the step, and only those."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.conformance.batches import SHAPES, GroupRig, Request, Shape, build_step, to_device
from tests.conformance.test_executor import batch_of, run
from tests.conformance.tiny_llama import write_tiny_llama

from trunnion.config import ExecutorConfig
from trunnion.contract import Limits
from trunnion.interfaces.attention import AttentionSpec
from trunnion.runner.model_executor import ModelExecutor
from trunnion_cuda.attention import FlashInferAttentionGroup
from trunnion_cuda.hardware import CudaHardware

DEVICE = torch.device("cuda", 0)
SPEC = AttentionSpec(num_qo_heads=8, num_kv_heads=2, head_dim=64, scale=0.3, dtype=torch.bfloat16)
"""Whose decodes run on tensor cores too: on CUDA cores those with a window would be one more module to compile."""
PATHS = {
    "prefill": "ragged",
    "prefill-ragged": "ragged",
    "chunk": "paged",
    "verify": "paged",
    "mixed": "paged",
    "chunk-short": "paged",
    "decode": None,
    "decode-and-prompts": "ragged",
    "prompt-short": "paged",
}
"""What runs the requests of a shape that are not single-token decodes."""
MORE = (
    Shape("decode-and-prompts", (Request(9, 1), Request(0, 5), Request(0, 2)), num_decodes=1),
    Shape("prompt-short", (Request(0, 4, unwritten=1), Request(0, 2))),
)


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("window", [None, 3])
def test_only_prompts_without_cached_tokens(name: str, window: int | None) -> None:
    spec = dataclasses.replace(SPEC, window=window, soft_cap=window)
    shape = next(shape for shape in (*SHAPES, *MORE) if shape.name == name)
    rig = GroupRig(FlashInferAttentionGroup, spec, DEVICE)
    rig.group.plan(to_device(build_step(spec, shape, rig.block_size, rig.num_blocks, 0), DEVICE))
    assert dict(rig.group.prefills) == ({PATHS[name]: 1} if PATHS[name] else {})


def test_pieces_take_either_path(tmp_path) -> None:
    """The path is chosen when a step is planned, not when its pieces are captured."""
    limits = Limits(max_num_tokens=16, max_num_seqs=4, max_model_len=32, max_logits_rows=4, block_size=4)
    folder = write_tiny_llama(tmp_path, head_dim=SPEC.head_dim)
    config = ExecutorConfig(model=folder, hardware="cuda", limits=limits, dtype="bfloat16")
    executor = ModelExecutor.create(config, CudaHardware())
    executor.allocate_kv_cache([40])
    executor.warm_up()
    group = executor._runner.groups[0]
    group.prefills.clear()
    run(executor, batch_of(5, 3))
    run(executor, batch_of(5, 3, contexts=(0, 4)))
    assert dict(group.prefills) == {"ragged": 1, "paged": 1}
    assert not executor.counters.eager
