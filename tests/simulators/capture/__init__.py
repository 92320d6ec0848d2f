"""A simulation of device graphs on the CPU: what a capture records, where its memory lies, and what it refuses.

It stands in for a device that has graphs. It knows nothing of trunnion and is made of torch operators alone.

What it holds code to, as a device graph would:

* addresses, shapes and host values are those of the capture, for ever;
* a tensor made in a capture lives in a pool; it starts as poison, and once it is dead its memory is given to others;
* tensors made elsewhere are not kept alive: a graph that outlives one of them fails when it is replayed;
* a capture refuses whatever waits for the device or whose shapes depend on values;
* allocations, replays and waits are counted from outside.

What it does not prove:

* operators run while they are captured (a device only notes them). The pool is poisoned before every step, so that a
  graph that relies on values of its capture gives NaN, but Python that looked at such a value was not stopped unless
  it asked through a call that `SimulatedCapture` refuses; inside operators written in Python that is only what reaches
  another operator (`item`, but not `tolist`);
* host and device are one address space: a kernel that reads host memory works here and faults on a device;
* streams are one queue: no races between streams, no events, no partial overlap. `SimulatedStream` runs late, not
  concurrently, and only what is launched through it or copied between host and device is late;
* what a real driver refuses beyond that list, how its allocator splits blocks, and every number about speed.
"""

from __future__ import annotations

from capture.graph import SimulatedCapture, SimulatedGraph
from capture.memory import SimulatedPool
from capture.monitor import DelayedTransfers, DeviceMonitor
from capture.refusals import SimulatedFault
from capture.stream import SimulatedStream

__all__ = [
    "DelayedTransfers",
    "DeviceMonitor",
    "SimulatedCapture",
    "SimulatedFault",
    "SimulatedGraph",
    "SimulatedPool",
    "SimulatedStream",
]
