"""What a client can do wrong is INVALID_ARGUMENT with the input's name, and the server lives."""

from __future__ import annotations

import random
import re
import struct
import urllib.error
import urllib.request
from collections.abc import Callable

import grpc
import numpy as np
import pytest
from serving import Server
from tritonclient.grpc import service_pb2, service_pb2_grpc

Request = service_pb2.ModelInferRequest
HUGE = 2**62


def request(rows: int = 2) -> Request:
    message = Request(model_name="sim")
    message.inputs.add(name="x", datatype="FP32", shape=[rows, 4])
    message.inputs.add(name="ids", datatype="INT64", shape=[rows, 3])
    message.raw_input_contents.append(np.zeros((rows, 4), np.float32).tobytes())
    message.raw_input_contents.append(np.zeros((rows, 3), np.int64).tobytes())
    return message


def shape(position: int, *dims: int) -> Callable[[Request], None]:
    def change(message: Request) -> None:
        message.inputs[position].shape[:] = dims

    return change


def data(position: int, value: bytes) -> Callable[[Request], None]:
    def change(message: Request) -> None:
        message.raw_input_contents[position] = value

    return change


def ids(*values: int) -> Callable[[Request], None]:
    return data(1, struct.pack("<6q", *values))


def rows(*counts: int) -> Callable[[Request], None]:
    """Each input says its own number of rows, and has the bytes for it."""

    def change(message: Request) -> None:
        for position, (count, width, size) in enumerate(zip(counts, (4, 3), (4, 8), strict=True)):
            message.inputs[position].shape[:] = [count, width]
            message.raw_input_contents[position] = bytes(count * width * size)

    return change


def each(*changes: Callable[[Request], None]) -> Callable[[Request], None]:
    def change(message: Request) -> None:
        for one in changes:
            one(message)

    return change


def parameter(name: str, **value: object) -> Callable[[Request], None]:
    return lambda message: message.parameters[name].CopyFrom(service_pb2.InferParameter(**value))


WRONG: dict[str, tuple[Callable[[Request], object], str]] = {
    "shape-says-more-than-the-bytes": (shape(0, 3, 4), 'input "ids" has 2 for batch'),
    "all-shapes-say-more": (each(shape(0, 3, 4), shape(1, 3, 3)), '"x" has 32 bytes, its shape .* has 48'),
    "shape-says-less": (each(shape(0, 1, 4), shape(1, 1, 3)), '"x" has 32 bytes, its shape .* has 16'),
    "bytes-short-by-one": (data(0, bytes(31)), '"x" has 31 bytes'),
    "bytes-long-by-one": (data(0, bytes(33)), '"x" has 33 bytes'),
    "no-bytes": (data(0, b""), '"x" has 0 bytes'),
    "dim-negative": (shape(0, -1, 4), r'"x" has shape \[-1, 4\]'),
    "dim-least": (shape(0, -(2**63), 4), r'"x" has shape \[-9223372036854775808, 4\]'),
    "dim-zero": (rows(0, 0), '"x" has 0 for batch'),
    "dim-huge": (each(shape(0, HUGE, 4), shape(1, HUGE, 3)), "more bytes than 64 bits"),
    "dim-huge-without-overflow": (each(shape(0, 2**40, 4), shape(1, 2**40, 3)), "more|bytes|batch"),
    "dims-overflow-to-zero": (shape(0, 2**62, 4), "more bytes than 64 bits"),
    "fixed-dim-differs": (shape(0, 2, 5), r"has shape \[2, 5\], expected \[batch, 4\]"),
    "rank-less": (shape(0, 8), r"has shape \[8\]"),
    "rank-more": (shape(0, 2, 2, 2), r"has shape \[2, 2, 2\]"),
    "rank-none": (shape(0), r"has shape \[\]"),
    "rows-disagree": (rows(2, 1), 'input "ids" has 1 for batch, input "x" has 2'),
    "dtype-differs": (lambda m: setattr(m.inputs[1], "datatype", "INT32"), "has datatype INT32, expected INT64"),
    "dtype-unknown": (lambda m: setattr(m.inputs[1], "datatype", "COMPLEX"), "has datatype COMPLEX"),
    "dtype-empty": (lambda m: setattr(m.inputs[1], "datatype", ""), "has datatype "),
    "index-at-its-bound": (ids(0, 0, 0, 1000, 0, 0), "has 1000 at element 3, expected 0 ... 999"),
    "index-at-another-columns-bound": (ids(0, 0, 50, 0, 0, 0), "has 50 at element 2, expected 0 ... 49"),
    "index-negative": (ids(0, -1, 0, 0, 0, 0), "has -1 at element 1"),
    "index-huge": (ids(2**63 - 1, 0, 0, 0, 0, 0), "has 9223372036854775807 at element 0"),
    "input-missing": (each(lambda m: m.inputs.pop(), lambda m: m.raw_input_contents.pop()), '"ids" is missing'),
    "input-twice": (lambda m: setattr(m.inputs[1], "name", "x"), '"x" comes twice'),
    "input-unknown": (lambda m: setattr(m.inputs[1], "name", "y"), 'no input "y"; inputs: x, ids'),
    "no-inputs": (lambda m: m.ClearField("inputs"), "raw_input_contents has 2 entries for 0 inputs"),
    "nothing": (each(lambda m: m.ClearField("inputs"), lambda m: m.ClearField("raw_input_contents")), '"x" is missing'),
    "raw-too-few": (lambda m: m.raw_input_contents.pop(), "1 entries for 2 inputs"),
    "raw-and-typed": (lambda m: m.inputs[0].contents.fp32_contents.append(1), "contents beside raw_input_contents"),
    "typed-of-another-type": (
        each(lambda m: m.ClearField("raw_input_contents"), lambda m: m.inputs[0].contents.int_contents.extend([0] * 8)),
        '"x" has 0 bytes',
    ),
    "shared-memory": (
        lambda m: m.inputs[0].parameters["shared_memory_region"].CopyFrom(service_pb2.InferParameter(string_param="r")),
        "no shared memory",
    ),
    "output-unknown": (lambda m: m.outputs.add(name="z"), 'no output "z"; outputs: y, same'),
    "parameter-unknown": (parameter("sequence", int64_param=1), "parameters: priority, signature, timeout"),
    "priority-too-large": (parameter("priority", uint64_param=9), "priority is 9"),
    "priority-past-63-bits": (parameter("priority", uint64_param=2**64 - 1), "no integer of 63 bits"),
    "timeout-negative": (parameter("timeout", int64_param=-1), "timeout is -1"),
    "signature-of-another-type": (parameter("signature", int64_param=1), "no string"),
}


def ask(server: Server, message: Request) -> service_pb2.ModelInferResponse:
    with grpc.insecure_channel(server.grpc) as channel:
        return service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message, timeout=10)


@pytest.mark.parametrize("name", WRONG)
def test_is_refused_by_name(sim_server: Server, name: str) -> None:
    change, text = WRONG[name]
    message = request()
    change(message)
    with pytest.raises(grpc.RpcError) as refused:
        ask(sim_server, message)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT, refused.value
    assert re.search(text, refused.value.details()), refused.value.details()
    assert len(ask(sim_server, request()).outputs) == 2


def test_a_request_longer_than_the_queue_is_invalid(sim_server: Server) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        ask(sim_server, request(5000))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "5000 rows, at most 4096" in refused.value.details()


NUMBERS = (-1, 0, 1, 2, 3, 4, 5, 2**31, 2**32, 2**61, 2**62, 2**63 - 1, -(2**63))


def spoil(message: Request, rng: random.Random) -> None:
    """One field at random."""
    tensor, position = rng.choice(message.inputs), rng.randrange(2)
    match rng.randrange(5):
        case 0 if tensor.shape:
            tensor.shape[rng.randrange(len(tensor.shape))] = rng.choice(NUMBERS)
        case 1:
            tensor.shape.append(rng.choice(NUMBERS))
        case 2:
            tensor.datatype = rng.choice(("FP32", "INT64", "BYTES", "BOOL", "FP16"))
        case 3:
            tensor.name = rng.choice(("x", "ids", "tokens", ""))
        case _:
            message.raw_input_contents[position] = rng.randbytes(rng.randrange(80))


def test_random_bytes_in_random_fields_never_end_the_server(sim_server: Server) -> None:
    rng = random.Random(0)
    good = 0
    with grpc.insecure_channel(sim_server.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for _ in range(300):
            message = request(rng.randint(1, 3))
            for _ in range(rng.randint(0, 2)):
                spoil(message, rng)
            try:
                stub.ModelInfer(message, timeout=10)
                good += 1
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error
    assert 0 < good < 300
    assert sim_server.process.poll() is None


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b'{"inputs": 1}', b'{"inputs": [1]}', b'{"inputs": [{"name": "x"}]}',
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1e99, 4], "data": []}]}',
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": ["a"]}]}',
        b'{"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 3], "data": [1.5, 2, 3]}]}',
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 999}}]}',
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": -1}}]}',
        b'{"parameters": {"priority": "high"}, "inputs": []}',
        b"[" * 5000,
    ],
)  # fmt: skip
def test_http_refuses_what_it_cannot_read(sim_server: Server, body: bytes) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://{sim_server.http}/v2/models/sim/infer", body, timeout=10)
    assert refused.value.code == 400 and b"error" in refused.value.read()
