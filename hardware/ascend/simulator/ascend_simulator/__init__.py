"""A simulation of an Ascend NPU for tests on machines without one; it knows nothing of trunnion.

The real torch_npu runs, with its real schemas, its allocator, its graphs and its calls of operators; what it links with
and opens, CANN, is a library of this package (`cann/`). What it simulates:

* device memory that is host memory, known to be the device's: an operator given any other address, or one that was
  given back, fails; fresh memory is NaN;
* streams that are queues, and events between them: work runs at once where its events let it, or, within
  `simulation().late()` and `simulation().held(stream)`, not before somebody waits for it, and then only what that wait
  needs;
* captures (`aclmdlRI*`) as lists of tasks that do not run while they are captured; task groups, and updates that take
  their place when the update's stream comes to them; external events; what a capture refuses, with CANN's codes;
* collectives (sum and gather), at once and in graphs, which block the host until every rank has come to them;
* operators by rules (`operators/`), which compute on the CPU what a public text says of them. An operator without a
  rule fails by its name.

What it does not prove:

* no instruction of an NPU runs: numerics of kernels, races, alignment and speed are not seen;
* rules were written from documents, and what hardware does beside them is not known here; limits on shapes, dtypes
  and formats that kernels have are checked only where a rule says so;
* a rule computes in float32 where a document says nothing, and rounds once;
* calls are made at once by the thread that asks (`TASK_QUEUE_ENABLE=0`), and by one thread at a time;
* streams of one capture replay as one sequence, in the order of the calls: no races between them;
* host and device are one address space, and each call copies its host arguments as CANN does;
* HCCL's algorithms, links and speed: ranks are processes of one machine, which meet at a socket;
* profiling, virtual memory, several devices in one process: refused or absent.
"""

from __future__ import annotations

from ascend_simulator.install import install, is_needed, simulation

__all__ = ["install", "is_needed", "simulation"]
