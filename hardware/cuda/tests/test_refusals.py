"""What FlashInfer would take as it is, and read past its end or as something else; and shapes it has no kernel for."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch
from tests.conformance.batches import SHAPES, GroupRig, build_step, to_device

from trunnion.interfaces.attention import AttentionSpec, MLASpec
from trunnion.reference.captured import CapturedMLAGroup
from trunnion_cuda.attention import FlashInferAttentionGroup
from trunnion_cuda.capabilities import why_not_flashinfer, why_not_flashinfer_mla
from trunnion_cuda.hardware import CudaHardware
from trunnion_cuda.mla import FlashInferMLAGroup
from trunnion_cuda.triton_mla import TritonMLAGroup

DEVICE = torch.device("cuda", 0)
DTYPE = torch.bfloat16
SPEC = AttentionSpec(num_qo_heads=4, num_kv_heads=2, head_dim=64, scale=0.3, dtype=DTYPE)
LATENT = MLASpec(num_qo_heads=16, kv_lora_rank=512, rope_head_dim=64, scale=0.05, dtype=DTYPE)


def _zeros(*shape: int, dtype: torch.dtype = DTYPE) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": _zeros(2, 3, 64), "v": _zeros(2, 3, 64)}, "do not have the heads"),
        ({"v": _zeros(2, 1, 64)}, "do not have the heads"),
        ({"q": _zeros(2, 4, 32)}, "do not have the heads"),
        ({"q": _zeros(2, 4, 64, dtype=torch.float16)}, "are not all torch.bfloat16"),
        ({"out": _zeros(2, 4, 64, dtype=torch.float32)}, "is not like q"),
        ({"out": _zeros(2, 4, 128)[..., :64]}, "is not like q"),
        ({"sinks": _zeros(4, dtype=torch.float32)}, "^sinks for"),
    ],
    ids=["kv-heads", "v-heads", "head-dim", "dtype", "out-dtype", "out-strides", "sinks"],
)
def test_arguments_that_are_not_the_groups(changes: dict[str, torch.Tensor], message: str) -> None:
    group = GroupRig(FlashInferAttentionGroup, SPEC, DEVICE).group
    arguments = {"q": _zeros(2, 4, 64), "k": _zeros(2, 2, 64), "v": _zeros(2, 2, 64)} | changes
    with pytest.raises(ValueError, match=message):
        group.run(0, **arguments)


@pytest.mark.parametrize(
    ("shapes", "dtype", "message"),
    [
        ([(8, 4, 3, 64)], DTYPE, r"expected \[num_blocks, block_size, 2, 64\]"),
        ([(8, 4, 2, 64)], torch.float16, "is torch.float16, expected torch.bfloat16"),
        ([(8, 4, 2, 64), (8, 2, 2, 64)], DTYPE, r"blocks of \[2, 4\] tokens"),
    ],
    ids=["kv-heads", "dtype", "block-size"],
)
def test_caches_that_are_not_the_groups(shapes: list[tuple[int, ...]], dtype: torch.dtype, message: str) -> None:
    group = FlashInferAttentionGroup(SPEC, len(shapes), DEVICE)
    caches = [_zeros(*shape, dtype=dtype) for shape in shapes]
    with pytest.raises(ValueError, match=message):
        group.bind_kv_cache(0, [{"k_cache": cache, "v_cache": cache} for cache in caches])


def test_indices_of_another_dtype() -> None:
    rig = GroupRig(FlashInferAttentionGroup, SPEC, DEVICE)
    step = to_device(build_step(SPEC, SHAPES[0], rig.block_size, rig.num_blocks, 0), DEVICE)
    group = step.device.groups[0]
    wrong = dataclasses.replace(group, kv_indices=group.kv_indices.long())
    step.device = dataclasses.replace(step.device, groups=(wrong,))
    with pytest.raises(ValueError, match=r"kv_indices is torch\.int64, expected torch\.int32"):
        rig.group.plan(step)


def test_latents_that_are_not_the_groups() -> None:
    group = GroupRig(FlashInferMLAGroup, LATENT, DEVICE).group
    latents = (_zeros(2, 512), _zeros(2, 64))
    with pytest.raises(ValueError, match=r"q_rope .* does not have the heads"):
        group.run(0, _zeros(2, 16, 512), _zeros(2, 8, 64), *latents)
    with pytest.raises(ValueError, match="q_rope has strides"):
        group.run(0, _zeros(2, 16, 512), _zeros(2, 64, 16).mT, *latents)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": torch.float32}, "computes in bfloat16 and float16, not in float32"),
        ({"head_dim": 80}, "no kernel for head_dim 80; it has 64, 128, 256"),
        ({"num_qo_heads": 5}, "5 query heads cannot share 2 KV heads evenly"),
        ({"has_sinks": True, "soft_cap": 2.0}, "with sinks have no soft cap"),
        ({"has_sinks": True, "cache_dtype": torch.float8_e4m3fn}, "sinks with a cache in float8_e4m3fn"),
        ({"cache_dtype": torch.float8_e5m2}, "are float8_e4m3fn here, not float8_e5m2"),
    ],
    ids=str,
)
def test_shapes_without_a_kernel(changes: dict[str, object], reason: str) -> None:
    """Each with its reason, and to a group that stands in a graph all the same."""
    spec = dataclasses.replace(SPEC, **changes)
    why = why_not_flashinfer(spec)
    found, _ = CudaHardware().group_class(spec)
    assert found is not FlashInferAttentionGroup and found.why_not_captured(spec) is None
    assert why is not None and re.search(reason, why)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": torch.float32}, "computes in bfloat16 and float16, not in float32"),
        ({"kv_lora_rank": 256}, r"has 512 \+ 64 features, not 256 \+ 64"),
        ({"num_qo_heads": 24}, "drops keys with 24 query heads"),
    ],
    ids=str,
)
def test_latent_shapes_without_a_kernel(changes: dict[str, object], reason: str) -> None:
    """Each with its reason, and to this package's own kernel."""
    spec = dataclasses.replace(LATENT, **changes)
    why = why_not_flashinfer_mla(spec)
    assert why is not None and re.search(reason, why)
    assert CudaHardware().group_class(spec) == (TritonMLAGroup, None)


@pytest.mark.parametrize("changes", [{"kv_lora_rank": 640}, {"rope_head_dim": 192}], ids=str)
def test_latents_that_no_kernel_here_takes(changes: dict[str, int]) -> None:
    found, why = CudaHardware().group_class(dataclasses.replace(LATENT, **changes))
    assert found is CapturedMLAGroup
    assert why is not None and "FlashInfer's latent attention has 512 + 64" in why and "more than 512 + 128" in why
