"""One rank of `test_collectives.py`: sums and gathers at once and in a graph, and what the first sees when others go.

Arguments: rank, size, where the ranks meet.
"""

from __future__ import annotations

import sys

import torch

from trunnion_ascend.capture import NpuCapture
from trunnion_ascend.hardware import AscendHardware


def of_rank(rank: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """The same numbers in every process."""
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(rank)) * 100).to(dtype)


def main(rank: int, size: int, meeting: str) -> None:
    hardware = AscendHardware()
    device = hardware.initialize(rank)
    assert torch.npu.current_device() == rank and torch.npu.device_count() == size
    group = hardware.collectives(rank, size, meeting)
    group.join()
    for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.int64):
        for shape in ((1,), (7, 5), (0, 3), (3, 1000)):
            parts = [of_rank(other, dtype, *shape) for other in range(size)]
            wide = dtype if not dtype.is_floating_point else torch.float32
            expected = sum(part.to(wide) for part in parts).to(dtype)  # type: ignore[union-attr]
            assert torch.equal(group.all_reduce(parts[rank].to(device)).cpu(), expected)
            for dim in range(len(shape)):
                assert torch.equal(group.all_gather(parts[rank].to(device), dim).cpu(), torch.cat(parts, dim))
    held, capture = torch.zeros(4, 3, device=device), NpuCapture(device)
    capture.begin()
    summed, gathered = group.all_reduce(held.clone()), group.all_gather(held, 1)
    graph = capture.end()
    for replay in range(3):
        parts = [of_rank(10 * replay + other, torch.float32, 4, 3) for other in range(size)]
        held.copy_(parts[rank])
        graph.replay()
        assert torch.equal(summed.cpu(), sum(parts)) and torch.equal(gathered.cpu(), torch.cat(parts, 1))  # type: ignore[arg-type]
    try:
        torch.npu.set_device((rank + 1) % size)
    except RuntimeError as error:
        assert "the others are other processes'" in str(error)
    else:
        raise AssertionError("a process took another's device")
    if rank:
        return
    try:
        group.all_reduce(torch.zeros(1, device=device))
        torch.npu.synchronize()
    except RuntimeError as error:
        assert "a rank is gone" in str(error), error
    else:
        raise AssertionError("nobody noticed that the others are gone")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
