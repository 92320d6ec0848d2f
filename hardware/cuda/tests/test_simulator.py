"""The simulated device itself: what it computes, and that it refuses what a device would."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from trunnion_cuda.hardware import CudaHardware

simulator = pytest.importorskip("cuda_simulator")
if torch.cuda.get_device_name() != "simulated":
    pytest.skip("there is a real device", allow_module_level=True)

DEVICE = torch.device("cuda", 0)


class Captured:
    """A graph of `make`, with its result."""

    def __init__(self, make) -> None:
        self.graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
            self.graph.capture_begin()
            try:
                self.result = make()
            finally:
                self.graph.capture_end()


def test_operators_give_what_the_host_gives() -> None:
    x = torch.randn(5, 8)
    moved = x.to(DEVICE)
    assert moved.device == DEVICE
    torch.testing.assert_close(torch.softmax(moved.t() @ moved, -1).cpu(), torch.softmax(x.t() @ x, -1))
    moved[1:3].zero_()
    assert moved.cpu()[1:3].abs().sum() == 0
    # Outputs that an operator resizes, of no elements before and after.
    assert moved[:0].abs().shape == (0, 8)


@pytest.mark.parametrize("has_bias", [False, True])
def test_channels_are_convolved_by_themselves(has_bias: bool) -> None:
    """By an operator that torch has for CUDA alone."""
    given = [torch.randn(2, 8, 5), torch.randn(8, 1, 4), torch.randn(8) if has_bias else None]
    moved = [None if each is None else each.to(DEVICE) for each in given]
    expected = torch.nn.functional.conv1d(*given, padding=3, groups=8)
    torch.testing.assert_close(torch.nn.functional.conv1d(*moved, padding=3, groups=8).cpu(), expected)


def test_tensors_of_two_devices_do_not_mix() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, device=DEVICE) + torch.ones(2)


def test_fresh_memory_is_poison() -> None:
    assert torch.empty(7, device=DEVICE).isnan().all()
    assert (torch.empty(7, dtype=torch.int32, device=DEVICE) == -1).all()


def test_a_replay_reads_what_lies_there_now() -> None:
    x = torch.ones(4, device=DEVICE)
    captured = Captured(lambda: (x * 2 + 1).sum(0, keepdim=True))
    x.fill_(5)
    captured.graph.replay()
    assert captured.result.item() == 44


def test_memory_of_dead_tensors_is_used_again() -> None:
    """Deep chains take no more than shallow ones."""
    x = torch.ones(1024, device=DEVICE)

    def chain(depth: int) -> torch.Tensor:
        y = x
        for _ in range(depth):
            y = y + 1
        return y

    sizes = []
    for depth in (3, 30):
        captured = Captured(lambda depth=depth: chain(depth))
        sizes.append(simulator.simulation().pools[captured.graph.pool()].high_water)
        captured.graph.replay()
        assert (captured.result == depth + 1).all()
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(lambda x: x.sum().item(), id="item"),
        pytest.param(lambda x: x.cpu(), id="to-host"),
        pytest.param(lambda x: x[x > 0], id="mask"),
        pytest.param(lambda x: x.copy_(torch.zeros(3)), id="from-host"),
        pytest.param(lambda x: torch.cuda.synchronize(), id="synchronize"),
    ],
)
def test_a_capture_refuses_what_waits(what) -> None:
    x = torch.ones(3, device=DEVICE)
    with pytest.raises(simulator.SimulatedFault, match="not allowed while a graph is captured"):
        Captured(lambda: what(x))


def test_a_graph_that_outlives_its_input_is_refused() -> None:
    inputs = [torch.ones(3, device=DEVICE)]
    captured = Captured(lambda: inputs[0] + 1)
    inputs.clear()
    with pytest.raises(simulator.SimulatedFault, match="outlives a tensor"):
        captured.graph.replay()


@triton.jit
def _add_one_kernel(x, y, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    tl.store(y + at, tl.load(x + at, mask=mask) + 1.0, mask=mask)


def _add_one(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    _add_one_kernel[(2,)](x, y, x.numel(), BLOCK=4)
    return y


def test_a_triton_kernel_works_on_the_device() -> None:
    x = torch.arange(7.0).to(DEVICE)
    assert _add_one(x, torch.empty_like(x)).tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_a_triton_kernel_is_replayed_on_what_lies_there_now() -> None:
    """Its arguments are addresses: in the capture nothing ran, and what comes before and after it is in order."""
    x = torch.arange(7.0).to(DEVICE)
    captured = Captured(lambda: _add_one(x * 10, torch.empty_like(x)) * 2)
    x.fill_(3)
    captured.graph.replay()
    assert captured.result.tolist() == [62] * 7


def test_a_triton_kernel_does_not_read_the_host() -> None:
    with pytest.raises(simulator.SimulatedFault, match="_add_one_kernel is given a pointer to cpu memory"):
        _add_one(torch.ones(7), torch.empty(7, device=DEVICE))


def test_a_graph_that_outlives_a_triton_argument_is_refused() -> None:
    kept = [torch.ones(7, device=DEVICE)]
    captured = Captured(lambda: _add_one(kept[0], torch.empty(7, device=DEVICE)))
    kept.clear()
    with pytest.raises(simulator.SimulatedFault, match="outlives a tensor"):
        captured.graph.replay()


def test_captures_expand_to_the_packages_kernels() -> None:
    """A recorded operator of a package is the launches of its own kernel, not the operators of the reference."""
    CudaHardware().initialize(0)
    x = torch.randn(3, 32).to(DEVICE)
    before = simulator.simulation().triton_launches.total()
    captured = Captured(lambda: torch.ops.trunnion.rms_norm(x, torch.ones(32, device=DEVICE), 1e-6, False))
    assert simulator.simulation().triton_launches.total() == before + 1
    assert captured.result.shape == (3, 32)
