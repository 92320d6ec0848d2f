"""Every group of the package under test against the reference group: outputs, what it writes, what it leaves alone."""

from __future__ import annotations

import pytest
import torch

from trunnion.contract import CacheKind
from trunnion.interfaces.attention import AttentionSpec, Group, GroupSpec, MLASpec, RecurrentSpec, Rotation
from trunnion.interfaces.hardware import Hardware
from trunnion.layers.rotary_embedding import rotate
from trunnion.reference import ReferenceHardware

from .batches import SHAPES, GroupRig, Shape, block_size_for, build_step, live_rows, same_tensors, to_device

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}

KV_SCALES = ((0.5, 0.125), (0.03, 0.007))
"""Of the keys and values of each layer's cache in float8; with the last, some of what is stored is cut."""


def _attention(
    heads: int, kv_heads: int, dtype: torch.dtype = torch.float32, head_dim: int = 16, **options: object
) -> AttentionSpec:
    return AttentionSpec(
        num_qo_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, scale=0.3, dtype=dtype, **options
    )  # type: ignore[arg-type]


def _wide(heads: int, kv_heads: int, **options: object) -> AttentionSpec:
    """Shapes that vendors' attention kernels take."""
    return _attention(heads, kv_heads, torch.bfloat16, head_dim=64, **options)


SPECS: dict[str, GroupSpec] = {
    "mha": _attention(4, 4),
    "gqa": _attention(6, 2),
    "mqa": _attention(3, 1),
    "gqa-bf16": _attention(4, 2, torch.bfloat16),
    "window-1": _attention(4, 2, window=1),
    "window-3": _attention(4, 2, window=3),
    "window-10": _attention(4, 2, window=10),
    "window-longer": _attention(4, 2, window=500),
    "soft-cap": _attention(4, 2, soft_cap=2.0),
    "sinks": _attention(4, 2, has_sinks=True),
    "sinks-window": _attention(4, 2, has_sinks=True, window=5),
    "soft-cap-window-bf16": _attention(4, 1, torch.bfloat16, soft_cap=2.0, window=6),
    "fp8-cache": _attention(4, 2, cache_dtype=torch.float8_e4m3fn),
    "fp8-cache-sinks-window-bf16": _attention(
        4, 2, torch.bfloat16, has_sinks=True, window=5, cache_dtype=torch.float8_e4m3fn
    ),
    "wide-bf16": _wide(4, 2),
    "wide-grouped-bf16": _wide(8, 2),
    "wide-soft-cap-window-bf16": _wide(8, 2, soft_cap=2.0, window=6),
    "mla": MLASpec(num_qo_heads=3, kv_lora_rank=16, rope_head_dim=8, scale=0.2, dtype=torch.float32),
    "mla-bf16": MLASpec(num_qo_heads=2, kv_lora_rank=32, rope_head_dim=8, scale=0.2, dtype=torch.bfloat16),
    "wide-sinks-window-bf16": _wide(8, 2, has_sinks=True, window=5),
    "wide-fp8-cache-bf16": _wide(8, 2, cache_dtype=torch.float8_e4m3fn),
    "wide-mla-bf16": MLASpec(num_qo_heads=4, kv_lora_rank=512, rope_head_dim=64, scale=0.1, dtype=torch.bfloat16),
    "recurrent": RecurrentSpec(
        num_k_heads=2, num_v_heads=4, head_k_dim=8, head_v_dim=6, conv_kernel_size=4, dtype=torch.float32
    ),
    "recurrent-bf16": RecurrentSpec(
        num_k_heads=1, num_v_heads=2, head_k_dim=8, head_v_dim=8, conv_kernel_size=2, dtype=torch.bfloat16
    ),
}

NIGHTLY = {"wide-sinks-window-bf16", "wide-fp8-cache-bf16"}
"""Shapes for which vendors' libraries may compile another kernel for minutes."""


def _marks(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.nightly] if name in NIGHTLY else []


def _inputs(spec: GroupSpec, rows: int, padding: int, generator: torch.Generator) -> list[torch.Tensor | None]:
    """Arguments of `run` after the layer. Rows past the step's tokens are NaN: they must reach nothing."""

    def noise(*shape: int, dtype: torch.dtype = spec.dtype) -> torch.Tensor:
        values = torch.randn(rows + padding, *shape, generator=generator)
        values[rows:] = torch.nan
        return values.to(dtype)

    if isinstance(spec, AttentionSpec):
        kv = (spec.num_kv_heads, spec.head_dim)
        sinks = torch.randn(spec.num_qo_heads, generator=generator) if spec.has_sinks else None
        return [noise(spec.num_qo_heads, spec.head_dim), noise(*kv), noise(*kv), sinks]
    if isinstance(spec, MLASpec):
        heads = spec.num_qo_heads
        return [
            noise(heads, spec.kv_lora_rank),
            noise(heads, spec.rope_head_dim),
            noise(spec.kv_lora_rank),
            noise(spec.rope_head_dim),
        ]
    return [
        noise(spec.conv_dim),
        -noise(spec.num_v_heads, dtype=torch.float32).abs(),
        noise(spec.num_v_heads).sigmoid(),
        torch.randn(spec.conv_dim, spec.conv_kernel_size, generator=generator).to(spec.dtype),
        None,
    ]


def _rigs(hardware: Hardware, spec: GroupSpec) -> tuple[GroupRig, GroupRig]:
    device = hardware.initialize(0)
    tested, _ = hardware.group_class(spec)
    truth, _ = ReferenceHardware().group_class(spec)
    block_size = block_size_for(hardware)
    return GroupRig(tested, spec, device, block_size), GroupRig(truth, spec, torch.device("cpu"), block_size)


def _set_scales(rig: GroupRig) -> None:
    if isinstance(rig.spec, AttentionSpec) and rig.spec.cache_dtype is not None:
        for layer, scales in enumerate(KV_SCALES):
            rig.group.set_kv_scales(layer, *scales)  # type: ignore[attr-defined]


def _fill_live(rig: GroupRig, rows: torch.Tensor, generator: torch.Generator) -> None:
    """Real values in the rows that hold context; everything else stays NaN."""
    for layer in rig.caches:
        for tensor in layer.values():
            flat = tensor if rig.spec.kind is CacheKind.RECURRENT else tensor.view(-1, *tensor.shape[2:])
            flat[rows] = torch.randn(len(rows), *flat.shape[1:], generator=generator).to(tensor.dtype)


def _runs(spec: GroupSpec, shape: Shape) -> bool:
    """A recurrent group takes placeholders back by the state of a decode, so that it has them in decodes only."""
    beyond = shape.requests[shape.num_decodes :]
    return spec.kind is not CacheKind.RECURRENT or not any(request.unwritten for request in beyond)


CASES = [
    pytest.param(spec, shape, id=f"{name}-{shape.name}", marks=_marks(name))
    for name, spec in SPECS.items()
    for shape in SHAPES
    if _runs(spec, shape)
]


@pytest.mark.parametrize(("spec", "shape"), CASES)
def test_group_equals_reference(hardware: Hardware, spec: GroupSpec, shape: Shape) -> None:
    """Same outputs for the step's rows and the same caches, with NaN in every row that must not be read."""
    tested, truth = _rigs(hardware, spec)
    _set_scales(tested)
    _set_scales(truth)
    generator = torch.Generator().manual_seed(7)
    step = build_step(spec, shape, truth.block_size, truth.num_blocks, seed=len(shape.name))
    _fill_live(truth, live_rows(spec, shape, step, truth.block_size), generator)
    tested.fill_like(truth)
    truth.group.plan(step)
    tested.group.plan(to_device(step, tested.device))
    tolerance = TOLERANCE[spec.dtype]
    for layer in (0, 1):
        inputs = _inputs(spec, shape.num_tokens, shape.padding, generator)
        expected = _run(truth.group, layer, inputs)[shape.real_rows].float()
        moved = [None if value is None else value.to(tested.device) for value in inputs]
        actual = _run(tested.group, layer, moved)[shape.real_rows.to(tested.device)].float().cpu()
        assert torch.isfinite(expected).all()
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    for layer, theirs in zip(tested.caches, truth.caches, strict=True):
        own = same_tensors(layer, theirs)
        for name in theirs:
            torch.testing.assert_close(
                own[name].float().cpu(), theirs[name].float(), rtol=tolerance, atol=tolerance, equal_nan=True
            )


@pytest.mark.parametrize("spec", [pytest.param(spec, id=name, marks=_marks(name)) for name, spec in SPECS.items()])
def test_plan_serves_every_layer(hardware: Hardware, spec: GroupSpec) -> None:
    """One plan per step: running a layer does not use the plan up, and layers do not share a cache."""
    tested, _ = _rigs(hardware, spec)
    shape = SHAPES[0]
    step = build_step(spec, shape, tested.block_size, tested.num_blocks, seed=3)
    tested.group.plan(to_device(step, tested.device))
    inputs = [
        None if value is None else value.to(tested.device)
        for value in _inputs(spec, shape.num_tokens, 0, torch.Generator().manual_seed(1))
    ]
    first, second = _run(tested.group, 0, inputs), _run(tested.group, 1, inputs)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    with_other_inputs = _run(tested.group, 1, [None if value is None else value * 0.5 for value in inputs])
    assert not torch.equal(first, with_other_inputs)


def _run(group: Group, layer: int, inputs: list[torch.Tensor | None]) -> torch.Tensor:
    with torch.inference_mode():
        return group.run(layer, *inputs)  # type: ignore[attr-defined, no-any-return]


UNEVEN = [shape for shape in SHAPES if shape.padding or any(request.unwritten for request in shape.requests)]


@pytest.mark.parametrize("name", ["gqa", "wide-bf16"])
def test_a_group_rotates_as_the_layer_does(hardware: Hardware, name: str) -> None:
    """The same outputs and caches as with rows that were rotated before, by one axis or three; some features pass."""
    spec = SPECS[name]
    if not hardware.group_class(spec)[0].rotates:  # type: ignore[attr-defined]
        pytest.skip(f"groups of {hardware.name!r} do not rotate: layers do")
    for shape in UNEVEN:
        for section in ((), (2, 1, 1)):
            _check_rotation(hardware, spec, shape, section)


def _check_rotation(hardware: Hardware, spec: GroupSpec, shape: Shape, section: tuple[int, ...]) -> None:
    tested, truth = _rigs(hardware, spec)
    generator = torch.Generator().manual_seed(11)
    step = build_step(spec, shape, truth.block_size, truth.num_blocks, seed=5)
    _fill_live(truth, live_rows(spec, shape, step, truth.block_size), generator)
    tested.fill_like(truth)
    truth.group.plan(step)
    tested.group.plan(to_device(step, tested.device))
    q, k, v = _inputs(spec, shape.num_tokens, shape.padding, generator)[:3]
    assert q is not None and k is not None and v is not None
    axes = (3,) if section else ()
    positions = torch.randint(0, 40, (len(q), *axes), generator=generator, dtype=torch.int32)
    rotation = Rotation(positions, torch.rand(40, 8, generator=generator), False, section)
    expected = _run(truth.group, 0, [*rotate(q, k, rotation), v])[shape.real_rows]
    moved = rotation._replace(
        positions=positions.to(tested.device), cos_sin_cache=rotation.cos_sin_cache.to(tested.device)
    )
    with torch.inference_mode():
        actual = tested.group.run(0, *(x.to(tested.device) for x in (q, k, v)), None, moved)  # type: ignore[attr-defined]
    tolerance = TOLERANCE[spec.dtype]
    actual = actual[shape.real_rows.to(tested.device)].float().cpu()
    torch.testing.assert_close(actual, expected.float(), rtol=tolerance, atol=tolerance)
    for cache in ("k_cache", "v_cache"):
        own, theirs = tested.caches[0][cache].float().cpu(), truth.caches[0][cache].float()
        torch.testing.assert_close(own, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)
