"""The best server of a bundle that Python makes: grpc.aio, uvloop, batches of what is queued, one compute thread.

It serves the default signature of a bundle whose only step is the module, and leaves out what the C++ server has
beside: other signatures, priorities, timeouts, reload. Requests are checked as far as numpy must be protected.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import uvloop
from tritonclient.grpc import service_pb2, service_pb2_grpc

import trunnion_bundle
from trunnion_bundle.requests import NUMPY
from trunnion_bundle.runner import padded
from trunnion_bundle.tensors import Tensor

MOST_BYTES = 64 << 20


@dataclass
class Waiting:
    """A request in the queue."""

    rows: int
    inputs: list[np.ndarray]
    answer: asyncio.Future[list[np.ndarray]]


class Batcher:
    """Merges what is queued whenever the compute thread is free; never waits."""

    def __init__(self, compute: Callable[[Sequence[np.ndarray], int], list[np.ndarray]], largest: int) -> None:
        self.compute = compute
        self.largest = largest
        self.queue: deque[Waiting] = deque()
        self.arrived = asyncio.Event()
        self.thread = ThreadPoolExecutor(1)

    async def ask(self, inputs: list[np.ndarray], rows: int) -> list[np.ndarray]:
        waiting = Waiting(rows, inputs, asyncio.get_running_loop().create_future())
        self.queue.append(waiting)
        self.arrived.set()
        return await waiting.answer

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self.arrived.wait()
            batch, rows = [self.queue.popleft()], 0
            rows = batch[0].rows
            while self.queue and rows + self.queue[0].rows <= self.largest:
                batch.append(self.queue.popleft())
                rows += batch[-1].rows
            if not self.queue:
                self.arrived.clear()
            columns = list(zip(*(waiting.inputs for waiting in batch), strict=True))
            inputs = [column[0] if len(batch) == 1 else np.concatenate(column) for column in columns]
            try:
                outputs = await loop.run_in_executor(self.thread, self.compute, inputs, rows)
            except Exception as error:
                for waiting in batch:
                    waiting.answer.set_exception(error)
                continue
            first = 0
            for waiting in batch:
                waiting.answer.set_result([array[first : first + waiting.rows] for array in outputs])
                first += waiting.rows


class Protocol(service_pb2_grpc.GRPCInferenceServiceServicer):
    """ModelInfer with raw contents."""

    def __init__(self, folder: Path) -> None:
        self.runner = trunnion_bundle.load(folder)
        bundle = self.runner.bundle
        self.signature = bundle.signatures[bundle.default_signature]
        self.module = bundle.modules[self.signature.module]
        self.sizes = self.signature.batching.allowed_sizes
        self.batcher = Batcher(self.compute, self.sizes[-1])

    def compute(self, inputs: Sequence[np.ndarray], rows: int) -> list[np.ndarray]:
        size = next(size for size in self.sizes if size >= rows)
        given = [padded(array, tensor, size) for array, tensor in zip(inputs, self.module.inputs, strict=True)]
        return list(self.runner._engine.run(self.signature.module, given))

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        by_name = {tensor.name: index for index, tensor in enumerate(request.inputs)}
        inputs = []
        for tensor in self.signature.inputs:
            index = by_name[tensor.name]
            data = np.frombuffer(request.raw_input_contents[index], NUMPY[tensor.dtype])
            inputs.append(check(data.reshape(request.inputs[index].shape), tensor))
        outputs = await self.batcher.ask(inputs, len(inputs[0]))
        answer = service_pb2.ModelInferResponse(model_name=request.model_name, id=request.id)
        for tensor, array in zip(self.signature.outputs, outputs, strict=True):
            answer.outputs.add(name=tensor.name, datatype=tensor.dtype, shape=array.shape)
            answer.raw_output_contents.append(array.tobytes())
        return answer


def check(array: np.ndarray, tensor: Tensor) -> np.ndarray:
    """`array`, whose indices lie in their tables."""
    if bounds := tensor.index_range:
        below = np.asarray(bounds.below)
        if (array < bounds.min).any() or (array >= below).any():
            raise ValueError(f"{tensor.name}: an index is outside of its table")
    return array


async def serve(folder: Path) -> None:
    protocol = Protocol(folder)
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", MOST_BYTES)])
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(protocol, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    running = asyncio.create_task(protocol.batcher.run())
    print(json.dumps({"grpc_port": port}), flush=True)
    await asyncio.gather(server.wait_for_termination(), running)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a bundle")
    folder = parser.parse_args().folder
    uvloop.run(serve(folder))


if __name__ == "__main__":
    main()
