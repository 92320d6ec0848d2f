"""How groups write their caches: one launch for both tensors of a layer, by this package's kernel where it runs."""

from __future__ import annotations

import pytest
import torch
from tests.conformance.batches import SHAPES, GroupRig, build_step, to_device

from trunnion.interfaces.attention import AttentionSpec, MLASpec
from trunnion_cuda import environment
from trunnion_cuda.cache_writes import cache_write, write_by_operators
from trunnion_cuda.hardware import CudaHardware
from trunnion_cuda.kernels.cache_write import write_cache

DEVICE = torch.device("cuda", 0)
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
SPECS = {
    "keys-values": AttentionSpec(num_qo_heads=4, num_kv_heads=2, head_dim=64, scale=0.3, dtype=BF16),
    "latents": MLASpec(num_qo_heads=16, kv_lora_rank=512, rope_head_dim=64, scale=0.05, dtype=BF16),
}


def test_the_kernel_writes_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_write(BF16) is write_cache
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    assert cache_write(BF16) is write_cache
    assert cache_write(FP8) is write_by_operators, "no conversion to float8 before compute capability 8.9"
    monkeypatch.setattr(environment, "find_spec", lambda name: None)
    assert cache_write(BF16) is write_by_operators


@pytest.mark.parametrize("name", SPECS)
def test_a_layer_is_written_by_one_launch(name: str) -> None:
    launches = pytest.importorskip("cuda_simulator").simulation().triton_launches
    spec = SPECS[name]
    rig = GroupRig(CudaHardware().group_class(spec)[0], spec, DEVICE)
    step = to_device(build_step(spec, SHAPES[0], rig.block_size, rig.num_blocks, 0), DEVICE)
    rig.group.plan(step)
    rows = step.counts.num_tokens
    if isinstance(spec, MLASpec):
        heads, rank, rope = spec.num_qo_heads, spec.kv_lora_rank, spec.rope_head_dim
        shapes: tuple[tuple[int, ...], ...] = ((rows, heads, rank), (rows, heads, rope), (rows, rank), (rows, rope))
    else:
        shapes = (rows, spec.num_qo_heads, spec.head_dim), *[(rows, spec.num_kv_heads, spec.head_dim)] * 2
    before = launches["_write_kernel"]
    rig.group.run(0, *(torch.zeros(shape, dtype=BF16, device=DEVICE) for shape in shapes))
    assert launches["_write_kernel"] == before + 1
