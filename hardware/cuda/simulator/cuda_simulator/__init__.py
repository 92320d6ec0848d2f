"""A simulation of a CUDA device for tests on machines without one; it knows nothing of trunnion.

What it simulates:

* tensors of device type `cuda` on a torch without CUDA (`device.cpp`): host memory, the CPU's kernels, errors for mixed
  devices, fresh memory that is NaN, and private pools in which freed memory goes to the next tensor;
* `torch.cuda` as far as runners use it (`torch_cuda.py`): streams, events, and graphs that note operators and launches
  with the addresses of their capture, hold memory from outside weakly, and refuse whatever waits (`capture.py`);
* a CUDA runtime under the host code of FlashInfer (`runtime.cpp`): its real wrappers, its real `plan` in C++ and its
  real launches run, and a launch computes attention from the buffers and scalars that it carries (`launches.py`);
* Triton's launches (`triton_launches.py`): kernels run in its interpreter, on the memory that their arguments point to,
  unless a session chooses a device without Triton.

What it does not prove:

* no instruction of a device runs: numerics of kernels, races, shared memory, alignment and speed are not seen;
* all streams are one queue, in which work is done at once, or, within `simulation().queue.late()`, when somebody waits;
  operators that are not copies, launches or replays wait for it: no races between streams, nothing overtakes;
* operators run while they are captured (Triton's kernels do not, as on a device); what they leave in the pool is
  poisoned before the first replay;
* host and device are one address space: a kernel that reads host memory works here and faults on a device;
* the simulated kernels were written from FlashInfer's sources of one version; another version is refused by its pin.
"""

from __future__ import annotations

from cuda_simulator.install import install, is_needed
from cuda_simulator.torch_cuda import SimulatedFault, simulation

__all__ = ["SimulatedFault", "install", "is_needed", "simulation"]
