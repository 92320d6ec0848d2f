"""Delta nets inside a captured graph: replays of decodes that verify drafts, against the reference, states included."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.conformance.batches import GroupRig, Request, Shape, build_step, live_rows

from trunnion.contract import GroupTensors
from trunnion.interfaces.attention import RecurrentSpec, StepInputs
from trunnion.reference.recurrent import ReferenceRecurrentGroup
from trunnion_cuda.capture import CudaCapture
from trunnion_cuda.hardware import CudaHardware

DEVICE, HOST = torch.device("cuda", 0), torch.device("cpu")
NUM_REQS, QUERY_LEN = 3, 2
SPEC = RecurrentSpec(num_k_heads=1, num_v_heads=2, head_k_dim=8, head_v_dim=6, conv_kernel_size=4, dtype=torch.float32)


def _step(seed: int, *contexts: int) -> tuple[Shape, StepInputs]:
    requests = tuple(Request(context, QUERY_LEN) for context in contexts)
    shape = Shape("verify", requests, num_decodes=len(requests), decode_query_len=QUERY_LEN)
    return shape, build_step(SPEC, shape, 4, 64, seed)


@torch.inference_mode()
def test_replays_start_from_the_accepted_state() -> None:
    """Full, with a new request, with fewer, with none; state 0 is nobody's, and stays as it is."""
    tested = GroupRig(CudaHardware().group_class(SPEC)[0], SPEC, DEVICE)
    truth = GroupRig(ReferenceRecurrentGroup, SPEC, HOST)
    shapes = {"state_indices": (NUM_REQS, QUERY_LEN), "has_initial_state": (NUM_REQS,), "num_accepted": (NUM_REQS,)}
    device = {name: torch.zeros(shape, dtype=torch.int32, device=DEVICE) for name, shape in shapes.items()}
    rows = NUM_REQS * QUERY_LEN
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(SPEC.conv_dim, SPEC.conv_kernel_size, generator=generator)
    inputs = [torch.zeros(rows, size, device=DEVICE) for size in (SPEC.conv_dim, SPEC.num_v_heads, SPEC.num_v_heads)]

    def stage(step: StepInputs) -> None:
        for name, target in device.items():
            target.zero_()
            target[: step.counts.num_reqs].copy_(getattr(step.host.groups[0], name))
        moved = dataclasses.replace(step.host, groups=(GroupTensors(**device),))
        tested.group.plan(StepInputs(step.counts, step.host, moved, in_full_graph=True))

    stage(_step(0)[1])
    capture, arguments = CudaCapture(DEVICE), (1, *inputs, weight.to(DEVICE), None)
    tested.group.run(*arguments)
    capture.begin()
    out = tested.group.run(*arguments)
    graph = capture.end()
    for seed, contexts in enumerate(((5, 0, 9), (4, 4), (7, 1, 2), ()), start=1):
        shape, step = _step(seed, *contexts)
        live = live_rows(SPEC, shape, step, 4)
        for state in truth.caches[1].values():
            state.fill_(torch.nan)
            state[live] = torch.randn(len(live), *state.shape[1:], generator=generator)
        tested.fill_like(truth)
        values = [torch.randn(rows, x.shape[1], generator=generator) for x in inputs]
        values[1:] = [-values[1].abs(), values[2].sigmoid()]
        for target, value in zip(inputs, values, strict=True):
            target.copy_(value)
        stage(step)
        graph.replay()
        truth.group.plan(step)
        count = shape.num_tokens
        expected = truth.group.run(1, *(value[:count] for value in values), weight, None)
        torch.testing.assert_close(out.cpu()[:count], expected, rtol=1e-4, atol=1e-4)
        for name, state in truth.caches[1].items():
            torch.testing.assert_close(tested.caches[1][name].cpu(), state, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize(("change", "text"), [({"conv_kernel_size": 5}, "4 taps"), ({"head_k_dim": 512}, "256 feat")])
def test_what_the_kernels_cannot_take_is_said(change: dict[str, int], text: str) -> None:
    found, reason = CudaHardware().group_class(dataclasses.replace(SPEC, **change))
    assert issubclass(found, ReferenceRecurrentGroup) and reason is not None and text in reason
