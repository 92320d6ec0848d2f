"""Existing clients connect unchanged: tritonclient over gRPC and HTTP, grpc.health.v1."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from serving import Server, wait_for
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from trunnion_bundle.examples import sim

CLIENTS = {"grpc": tritonclient.grpc, "http": tritonclient.http}


@pytest.fixture(params=CLIENTS)
def protocol(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def module(protocol: str) -> ModuleType:
    return CLIENTS[protocol]


@pytest.fixture
def client(sim_server: Server, protocol: str, module: ModuleType) -> Any:
    return module.InferenceServerClient(getattr(sim_server, protocol))


def inputs_of(module: ModuleType, values: dict[str, np.ndarray], dtypes: dict[str, str]) -> list[Any]:
    found = []
    for name, value in values.items():
        tensor = module.InferInput(name, list(value.shape), dtypes[name])
        tensor.set_data_from_numpy(value)
        found.append(tensor)
    return found


def scores(rows: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(rows)
    ids = np.stack([random.integers(0, below, rows) for below in sim.ROWS], axis=1)
    return {"x": random.standard_normal((rows, 4)).astype(np.float32), "ids": ids}


SCORE_TYPES = {"x": "FP32", "ids": "INT64"}


def test_a_client_reads_what_is_there(client: Any, protocol: str) -> None:
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("sim")
    assert client.is_model_ready("sim", "1") and not client.is_model_ready("sim", "2")
    options = {"as_json": True} if protocol == "grpc" else {}
    metadata = client.get_model_metadata("sim", **options)
    shapes = {tensor["name"]: [int(size) for size in tensor["shape"]] for tensor in metadata["inputs"]}
    assert shapes == {"x": [-1, 4], "ids": [-1, 3]}
    assert "simulated" in metadata["platform"]
    assert client.get_server_metadata(**options)["name"] == "trunnion-serve-bundle"
    total = client.get_model_metadata("sim:total", **options)
    assert [int(size) for size in total["inputs"][0]["shape"]] == [-1, -1]


@pytest.mark.parametrize("rows", [1, 7, 63, 256, 1000])
def test_answers_are_right(client: Any, module: ModuleType, rows: int) -> None:
    values = scores(rows)
    answer = client.infer("sim", inputs_of(module, values, SCORE_TYPES), request_id="a")
    for name, wanted in sim.answers(values).items():
        np.testing.assert_allclose(answer.as_numpy(name), wanted, rtol=1e-5)


def test_a_signature_is_asked_for_by_name_or_parameter(client: Any, module: ModuleType, protocol: str) -> None:
    values = {"tokens": np.arange(10, dtype=np.int64).reshape(2, 5)}
    inputs = inputs_of(module, values, {"tokens": "INT64"})
    wanted = sim.answers(values)["total"]
    np.testing.assert_allclose(client.infer("sim:total", inputs).as_numpy("total"), wanted)
    if protocol == "grpc":
        named = client.infer("sim", inputs, parameters={"signature": "total"}, timeout=2_000_000, priority=1)
        np.testing.assert_allclose(named.as_numpy("total"), wanted)


def test_only_the_outputs_that_are_asked_for_come(client: Any, module: ModuleType) -> None:
    values = scores(2)
    outputs = [module.InferRequestedOutput("same")]
    answer = client.infer("sim", inputs_of(module, values, SCORE_TYPES), outputs=outputs)
    assert answer.as_numpy("y") is None
    np.testing.assert_array_equal(answer.as_numpy("same"), values["ids"])


def test_an_unknown_model_is_not_found(client: Any, module: ModuleType) -> None:
    for name, text in (("none", "not served"), ("sim:none", "no signature none; signatures: score, total")):
        with pytest.raises(InferenceServerException, match=text):
            client.infer(name, inputs_of(module, scores(1), SCORE_TYPES))


def test_many_requests_at_once_share_batches(sim_server: Server) -> None:
    client = tritonclient.grpc.InferenceServerClient(sim_server.grpc)
    before = sim_server.metric("bundle_batches_total", signature="score")
    answers: dict[int, Any] = {}
    asked = [scores(1 + index % 3) for index in range(200)]
    for index, values in enumerate(asked):
        client.async_infer(
            "sim",
            inputs_of(tritonclient.grpc, values, SCORE_TYPES),
            lambda result, error, index=index: answers.update({index: error or result}),
        )
    wait_for(lambda: len(answers) == len(asked), 30, "all answers")
    for index, values in enumerate(asked):
        np.testing.assert_allclose(answers[index].as_numpy("y"), sim.answers(values)["y"], rtol=1e-5)
        np.testing.assert_array_equal(answers[index].as_numpy("same"), values["ids"])
    assert sim_server.metric("bundle_batches_total", signature="score") - before < len(asked)


def test_typed_contents_are_taken(sim_server: Server) -> None:
    values = scores(2)
    request = service_pb2.ModelInferRequest(model_name="sim", id="typed")
    for name, kind, field in (("x", "FP32", "fp32_contents"), ("ids", "INT64", "int64_contents")):
        tensor = request.inputs.add(name=name, datatype=kind, shape=values[name].shape)
        getattr(tensor.contents, field).extend(values[name].ravel().tolist())
    with grpc.insecure_channel(sim_server.grpc) as channel:
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=10)
    assert (answer.id, answer.model_version) == ("typed", "1")
    y = np.frombuffer(answer.raw_output_contents[0], np.float32)
    np.testing.assert_allclose(y, sim.answers(values)["y"], rtol=1e-5)


def test_plain_json_is_taken(sim_server: Server) -> None:
    body = {
        "id": "json",
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [[1, 2, 3, 4.5]]},
            {"name": "ids", "datatype": "INT64", "shape": [1, 3], "data": [1, 2, 3]},
        ],
    }
    url = f"http://{sim_server.http}/v2/models/sim/versions/1/infer"
    with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=10) as answer:
        found = json.load(answer)
    assert found["id"] == "json" and found["outputs"][0]["data"] == [6.25]


def test_health_is_that_of_grpc(sim_server: Server) -> None:
    # The message has one field, a string; the answer one, an enum: SERVING is 1.
    with grpc.insecure_channel(sim_server.grpc) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"", timeout=10) == b"\x08\x01"
        with pytest.raises(grpc.RpcError) as unknown:
            check(b"\x0a\x04none", timeout=10)
    assert unknown.value.code() == grpc.StatusCode.NOT_FOUND


def test_the_protocol_is_the_clients_own(programs: Path, tmp_path: Path) -> None:
    from google.protobuf import descriptor_pb2

    proto = Path(__file__).resolve().parents[2] / "proto"
    target = tmp_path / "set"
    command = ["protoc", f"--proto_path={proto}", f"--descriptor_set_out={target}", "open_inference.proto"]
    subprocess.run(command, check=True)
    (ours,) = descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes()).file
    theirs = descriptor_pb2.FileDescriptorProto()
    service_pb2.DESCRIPTOR.CopyToProto(theirs)
    for message in ours.message_type:
        fields = next(other for other in theirs.message_type if other.name == message.name).field
        wanted = {(field.name, field.number, field.type, field.label) for field in fields}
        assert {(field.name, field.number, field.type, field.label) for field in message.field} == wanted, message.name


def test_nothing_of_python_is_linked(programs: Path) -> None:
    for name in ("trunnion-serve-bundle", "engine_sim.so"):
        linked = subprocess.run(["ldd", programs / name], capture_output=True, text=True, check=True).stdout
        assert "libc.so" in linked
        assert "python" not in linked and "torch" not in linked
