"""What the operators would take as it is, and read past its end or as something else; and shapes they are not for."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch
from tests.conformance.batches import GroupRig, Request, Shape, build_step

from trunnion.interfaces.attention import AttentionSpec, EncoderSpec, MLASpec
from trunnion_ascend.attention import FusedAttentionGroup
from trunnion_ascend.capabilities import why_not_fused, why_not_fused_encoder, why_not_fused_mla
from trunnion_ascend.encoder import FusedEncoderGroup
from trunnion_ascend.hardware import AscendHardware
from trunnion_ascend.mla import FusedMLAGroup
from trunnion_ascend.soc import soc_of

DEVICE = torch.device("npu", 0)
DTYPE = torch.bfloat16
SPEC = AttentionSpec(num_qo_heads=4, num_kv_heads=2, head_dim=64, scale=0.3, dtype=DTYPE)
LATENT = MLASpec(num_qo_heads=16, kv_lora_rank=512, rope_head_dim=64, scale=0.05, dtype=DTYPE)
ENCODER = EncoderSpec(num_heads=3, head_dim=64, scale=0.3, dtype=DTYPE)
A2, P310 = soc_of("Ascend910B3"), soc_of("Ascend310P3")


@pytest.fixture(autouse=True)
def _initialized() -> None:
    AscendHardware().initialize(0)


def _zeros(*shape: int, dtype: torch.dtype = DTYPE) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "message"),
    [
        ("k", (2, 3, 64), DTYPE, "do not have the heads"),
        ("v", (2, 1, 64), DTYPE, "do not have the heads"),
        ("q", (2, 4, 32), DTYPE, "do not have the heads"),
        ("q", (2, 4, 64), torch.float16, "are not all torch.bfloat16"),
        ("out", (2, 4, 64), torch.float32, "is not like q"),
        ("sinks", (4,), torch.float32, "^sinks for"),
    ],
)
def test_arguments_that_are_not_the_groups(name: str, shape: tuple[int, ...], dtype: torch.dtype, message: str) -> None:
    group = GroupRig(FusedAttentionGroup, SPEC, DEVICE, 16).group
    arguments = {"q": _zeros(2, 4, 64), "k": _zeros(2, 2, 64), "v": _zeros(2, 2, 64), name: _zeros(*shape, dtype=dtype)}
    with pytest.raises(ValueError, match=message):
        group.run(0, **arguments)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("shapes", "dtype", "message"),
    [
        ([(8, 16, 3, 64)], DTYPE, r"expected \[num_blocks, block_size, 2, 64\]"),
        ([(8, 16, 2, 64)], torch.float16, "is torch.float16, expected torch.bfloat16"),
        ([(8, 16, 2, 64), (8, 32, 2, 64)], DTYPE, r"blocks of \[16, 32\] tokens"),
        ([(8, 24, 2, 64)], DTYPE, "block_size 24 is not for .*; choices: multiples of 16 up to 1024"),
        ([(2, 2048, 2, 64)], DTYPE, "block_size 2048 is not for .*; choices: multiples of 16 up to 1024"),
    ],
    ids=["kv-heads", "dtype", "sizes", "multiple", "largest"],
)
def test_caches_that_are_not_the_groups(shapes: list[tuple[int, ...]], dtype: torch.dtype, message: str) -> None:
    group = FusedAttentionGroup(SPEC, len(shapes), DEVICE)
    caches = [_zeros(*shape, dtype=dtype) for shape in shapes]
    with pytest.raises(ValueError, match=message):
        group.bind_kv_cache(0, [{"k_cache": cache, "v_cache": cache} for cache in caches])


@pytest.mark.parametrize(
    ("widths", "block_size", "message"),
    [
        ((512, 32), 16, r"rope_cache .* expected \[num_blocks, block_size, 64\]"),
        ((576, 64), 16, r"latent_cache .* expected \[num_blocks, block_size, 512\]"),
        ((512, 64), 32, "block_size 32 is not for latents in .*; choices: 16 or 128"),
    ],
)
def test_latent_caches_that_are_not_the_groups(widths: tuple[int, int], block_size: int, message: str) -> None:
    group = FusedMLAGroup(LATENT, 1, DEVICE)
    latent, rope = (_zeros(4, block_size, width) for width in widths)
    with pytest.raises(ValueError, match=message):
        group.bind_kv_cache(0, [{"latent_cache": latent, "rope_cache": rope}])


def test_latents_that_are_not_the_groups() -> None:
    group = GroupRig(FusedMLAGroup, LATENT, DEVICE, 16).group
    latents = (_zeros(2, 512), _zeros(2, 64))
    with pytest.raises(ValueError, match=r"q_rope .* does not have the heads"):
        group.run(0, _zeros(2, 16, 512), _zeros(2, 8, 64), *latents)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="out has strides"):
        out = _zeros(2, 512, 16).mT
        group.run(0, _zeros(2, 16, 512), _zeros(2, 16, 64), *latents, out=out)  # type: ignore[attr-defined]


def test_decodes_of_latents_that_are_longer_than_a_run() -> None:
    rig = GroupRig(FusedMLAGroup, LATENT, DEVICE, 16)
    shape = Shape("", (Request(3, 17),), num_decodes=1, decode_query_len=17)
    step = dataclasses.replace(build_step(LATENT, shape, 16, 64, 0), in_full_graph=True)
    with pytest.raises(ValueError, match="decodes of 17 tokens are longer than the 16 of a run: lower"):
        rig.group.plan(step)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": torch.float32}, "computes in bfloat16 in layout TND, not in float32"),
        ({"dtype": torch.float16}, "computes in bfloat16 in layout TND, not in float16"),
        ({"head_dim": 80}, "takes head_dim 64 or 128, not 80"),
        ({"num_qo_heads": 5}, "shares a KV head among up to 64 query heads, evenly; not 2 among 5"),
        ({"num_qo_heads": 130, "num_kv_heads": 2}, "evenly; not 2 among 130"),
        ({"num_qo_heads": 1024, "num_kv_heads": 1024}, "rows of up to 65535 features, not 65536"),
        ({"soft_cap": 2.0}, "has no soft cap; this one is 2.0"),
        ({"cache_dtype": torch.float16}, "in the model's dtype, not in float16"),
    ],
    ids=str,
)
def test_shapes_that_the_operator_does_not_take(changes: dict[str, object], reason: str) -> None:
    """Each with its reason, and to a group that stands in a graph all the same."""
    spec = dataclasses.replace(SPEC, **changes)
    found, why = AscendHardware().group_class(spec)
    assert not issubclass(found, FusedAttentionGroup) and found.why_not_captured(spec) is None
    assert why == why_not_fused(spec, A2) and why is not None and re.search(reason, why)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": torch.float32}, "computes in bfloat16 in layout TND, not in float32"),
        ({"kv_lora_rank": 256}, r"takes latents of 512 \+ 64 features, not 256 \+ 64"),
        ({"num_qo_heads": 24}, "takes latents with 1, 2, 4, 8, 16, 32, 64, 128 query heads, not 24"),
    ],
    ids=str,
)
def test_latent_shapes_that_the_operator_does_not_take(changes: dict[str, object], reason: str) -> None:
    spec = dataclasses.replace(LATENT, **changes)
    found, why = AscendHardware().group_class(spec)
    assert not issubclass(found, FusedMLAGroup) and found.why_not_captured(spec) is None
    assert why == why_not_fused_mla(spec, A2) and why is not None and re.search(reason, why)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": torch.float16}, "computes in bfloat16 in layout TND, not in float16"),
        ({"head_dim": 32}, "takes head_dim 64 or 128, not 32"),
    ],
    ids=str,
)
def test_shapes_of_encoders_that_the_operator_does_not_take(changes: dict[str, object], reason: str) -> None:
    spec = dataclasses.replace(ENCODER, **changes)
    found, why = AscendHardware().group_class(spec)
    assert not issubclass(found, FusedEncoderGroup)
    assert why == why_not_fused_encoder(spec, A2) and why is not None and re.search(reason, why)
    assert AscendHardware().group_class(ENCODER) == (FusedEncoderGroup, None)


def test_chips_without_the_operator() -> None:
    assert why_not_fused(SPEC, A2) is None and why_not_fused_mla(LATENT, A2) is None
    whys = (why_not_fused(SPEC, P310), why_not_fused_mla(LATENT, P310), why_not_fused_encoder(ENCODER, P310))
    for why in whys:
        assert why == "npu_fused_infer_attention_score_v2 is not for Atlas 300I (310P)"
