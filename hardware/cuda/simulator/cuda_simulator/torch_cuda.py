"""Stand-ins for what `torch.cuda` offers: one device, one queue for all streams, events, and graphs of `capture`."""

from __future__ import annotations

import ctypes
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._device import _device_constructors

from cuda_simulator.capture import Pool, Recording, SimulatedFault
from cuda_simulator.queue import Queue

DEVICE_NAME = "simulated"
CAPABILITY = (9, 0)
MEMORY_BYTES = 80 << 30


class Simulation:
    """The state of the one simulated device."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.pools: dict[tuple[int, int], Pool] = {}
        self.recording: Recording | None = None
        self.replays = 0
        self.interprets_triton = False
        self.triton_launches: Counter[str] = Counter()
        """Kernel -> launches that were not replays."""
        self._noted: list[Any] | None = None
        self.current = SimulatedStream(is_default=True)
        self.queue = Queue(library)
        self.keep: Any = None
        """What native code calls, kept alive."""

    def pool(self, handle: tuple[int, int] | None) -> tuple[tuple[int, int], Pool]:
        """The pool of a handle; a new one for None."""
        handle = handle or (0, len(self.pools) + 1)
        if handle not in self.pools:
            self.pools[handle] = Pool(self.library)
        return handle, self.pools[handle]

    def launch(self, call: Callable[[], None], *, in_capture: bool = True) -> None:
        """Run a kernel's stand-in in its turn, and note it if a graph is captured, in which a slow one need not run."""
        if self.recording is not None:
            self.recording.add(call)
            if not in_capture:
                return
        self.queue.add(call)

    @contextmanager
    def noted_launches(self) -> Iterator[list[Any]]:
        """FlashInfer's attention launches within this context, in order, each a `launches.AttentionLaunch`."""
        self._noted = []
        try:
            yield self._noted
        finally:
            self._noted = None

    def note(self, launch: Any) -> None:
        """Remember a launch of attention, if somebody asks."""
        if self._noted is not None:
            self._noted.append(launch)

    def wait(self, what: str, mark: int | None = None) -> None:
        """Have the device catch up, which a capture refuses."""
        self.refuse_in_capture(what)
        self.queue.wait(mark)

    def refuse_in_capture(self, what: str) -> None:
        if self.recording is not None:
            raise SimulatedFault(f"{what} is not allowed while a graph is captured")


class SimulatedStream:
    """All streams are one queue."""

    _ids = itertools.count(1)

    def __init__(self, device: Any = None, priority: int = 0, *, is_default: bool = False) -> None:
        self.cuda_stream = 0
        self.stream_id = 0 if is_default else next(self._ids)
        self.device_index = 0
        self.device = torch.device("cuda", 0)

    def wait_stream(self, other: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        event = event or SimulatedEvent()
        event.record()
        return event

    def query(self) -> bool:
        queue = simulation().queue
        return queue.done == queue.launched

    def synchronize(self) -> None:
        simulation().wait("synchronising a stream")


class SimulatedEvent:
    """A mark in the queue, in which each piece of work takes a millisecond."""

    def __init__(self, **options: Any) -> None:
        self._mark = 0

    def record(self, stream: Any = None) -> None:
        self._mark = simulation().queue.launched

    def wait(self, stream: Any = None) -> None: ...

    def query(self) -> bool:
        return simulation().queue.done >= self._mark

    def synchronize(self) -> None:
        simulation().wait("synchronising an event", self._mark)

    def elapsed_time(self, end: SimulatedEvent) -> float:
        return float(end._mark - self._mark)


class SimulatedGraph:
    """`torch.cuda.CUDAGraph` over a `Recording`."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._recording: Recording | None = None
        self._handle: tuple[int, int] | None = None

    def capture_begin(self, pool: tuple[int, int] | None = None, capture_error_mode: str = "global") -> None:
        found = simulation()
        found.refuse_in_capture("a second capture")
        if found.current.stream_id == 0:
            raise SimulatedFault("a capture needs a stream that is not the default stream")
        self._handle, memory = found.pool(pool)
        self._recording = found.recording = Recording(memory)
        memory.use(True)
        self._recording.__enter__()

    def capture_end(self) -> None:
        found, recording = simulation(), self._recording
        assert recording is not None and found.recording is recording, "capture_begin comes before capture_end"
        recording.__exit__(None, None, None)
        recording.pool.use(False)
        found.recording = None

    def pool(self) -> tuple[int, int] | None:
        return self._handle

    def reset(self) -> None:
        self._recording = None

    def replay(self) -> None:
        """Run again what was noted, in its turn.

        Raises:
            SimulatedFault: nothing was captured, or the graph outlives memory it works on.
        """
        found, recording = simulation(), self._recording
        if recording is None:
            raise SimulatedFault("replay of a graph that was not captured")
        found.refuse_in_capture("a replay")
        recording.check_alive()
        found.replays += 1

        def run() -> None:
            recording.pool.forget_capture()
            for call in recording.calls:
                call()

        found.queue.add(run)


class _SameDevice(nullcontext[None]):
    """`torch.cuda.device`, of which there is one."""

    def __init__(self, device: Any) -> None:
        super().__init__()


_simulations: list[Simulation] = []


def simulation() -> Simulation:
    """The simulated device of this process; LookupError if none is installed."""
    if not _simulations:
        raise LookupError("no simulated cuda device is installed in this process")
    return _simulations[0]


def install(library: ctypes.CDLL) -> Simulation:
    """Put the stand-ins in place of torch's functions, for the rest of the process."""
    library.sim_pool_high_water.restype = ctypes.c_int64
    library.sim_pool_owns.restype = ctypes.c_int64
    library.sim_allocations.restype = ctypes.c_int64
    found = Simulation(library)
    _simulations.append(found)
    properties = SimpleNamespace(
        name=DEVICE_NAME,
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        multi_processor_count=132,
        total_memory=MEMORY_BYTES,
        shared_memory_per_block_optin=227 * 1024,
        L2_cache_size=50 << 20,
        warp_size=32,
    )

    @contextmanager
    def stream(wanted: SimulatedStream | None) -> Any:
        before = found.current
        found.current = wanted or before
        try:
            yield
        finally:
            found.current = before

    stand_ins: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "device": _SameDevice,
        "get_device_capability": lambda device=None: CAPABILITY,
        "get_device_name": lambda device=None: properties.name,
        "get_device_properties": lambda device=None: properties,
        "mem_get_info": lambda device=None: (MEMORY_BYTES, MEMORY_BYTES),
        "empty_cache": lambda: None,
        "synchronize": lambda device=None: found.wait("torch.cuda.synchronize"),
        "current_stream": lambda device=None: found.current,
        "default_stream": lambda device=None: SimulatedStream(is_default=True),
        "stream": stream,
        "Stream": SimulatedStream,
        "Event": SimulatedEvent,
        "CUDAGraph": SimulatedGraph,
        "graph_pool_handle": lambda: found.pool(None)[0],
        "is_current_stream_capturing": lambda: found.recording is not None,
        "manual_seed_all": lambda seed: None,
        "manual_seed": lambda seed: None,
    }
    for name, stand_in in stand_ins.items():
        setattr(torch.cuda, name, stand_in)
    _allow_pinned_memory()
    return found


class _PinnedMemory:
    """Remembers which host memory was asked for as pinned; it is memory like any other."""

    def __init__(self) -> None:
        self._storages: dict[int, StorageWeakRef] = {}

    def note(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        self._storages = {key: reference for key, reference in self._storages.items() if not reference.expired()}
        self._storages[storage._cdata] = StorageWeakRef(storage)
        return tensor

    def holds(self, tensor: torch.Tensor) -> bool:
        found = self._storages.get(tensor.untyped_storage()._cdata)
        return found is not None and not found.expired()


def _allow_pinned_memory() -> None:
    """Host memory is host memory here: asking for pinned memory gives some."""
    pinned = _PinnedMemory()

    def unpinned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def made(*args: Any, **options: Any) -> torch.Tensor:
            wanted = options.pop("pin_memory", None)
            return pinned.note(make(*args, **options)) if wanted else make(*args, **options)

        return made

    # torch remembers which functions take a default device: the original ones.
    _device_constructors()
    for name in ("empty", "zeros", "ones", "full", "tensor", "arange"):
        setattr(torch, name, unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda self, device=None: pinned.note(self)  # type: ignore[method-assign]
    torch.Tensor.is_pinned = lambda self, device=None: pinned.holds(self)  # type: ignore[method-assign]
