"""Modules that AOTInductor compiled, served in C++: equal to torch; what would abort or misread is refused before."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from serving import Server, serving
from test_reload import edit_contract
from tritonclient.utils import InferenceServerException

import trunnion_bundle
from trunnion_bundle.examples import dlrm


@pytest.fixture(scope="session")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The DLRM example, exported and compiled once."""
    folder = tmp_path_factory.mktemp("ranker") / "dlrm"
    recipe = dlrm.recipe(trunnion_bundle.Batching(allowed_sizes=(1, 8, 32), runners=2, padding="least_cost"))
    trunnion_bundle.save(folder, **recipe)
    return folder


@pytest.fixture(scope="session")
def server(programs: Path, ranker: Path) -> Iterator[Server]:
    with serving(programs, ranker) as running:
        yield running
        assert running.process.poll() is None, "".join(running.lines)


def inputs_of(values: dict[str, torch.Tensor]) -> list[triton.InferInput]:
    found = []
    for name, value in values.items():
        tensor = triton.InferInput(name, list(value.shape), "FP32" if value.is_floating_point() else "INT64")
        tensor.set_data_from_numpy(value.numpy())
        found.append(tensor)
    return found


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 32, 33, 63])
def test_answers_are_those_of_torch(server: Server, rows: int) -> None:
    values = dlrm.example(rows, seed=rows)
    with torch.no_grad():
        wanted = dlrm.build().double()(values["dense"].double(), values["sparse"]).numpy()
    found = triton.InferenceServerClient(server.grpc).infer("dlrm", inputs_of(values)).as_numpy("scores")
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_the_example_of_a_client_gets_scores(server: Server) -> None:
    from trunnion_bundle.examples import ask

    with torch.no_grad():
        np.testing.assert_allclose(ask.ask(server.grpc, 3), dlrm.build()(**dlrm.example(3)).numpy(), rtol=1e-4)


def test_many_at_once_keep_their_own_rows(server: Server) -> None:
    client = triton.InferenceServerClient(server.grpc)
    model = dlrm.build()
    asked = [dlrm.example(1 + index % 5, seed=index) for index in range(100)]
    answers: dict[int, Any] = {}
    for index, values in enumerate(asked):
        client.async_infer(
            "dlrm", inputs_of(values), lambda result, error, index=index: answers.update({index: error or result})
        )
    while len(answers) < len(asked):
        assert server.process.poll() is None
    with torch.no_grad():
        for index, values in enumerate(asked):
            np.testing.assert_allclose(answers[index].as_numpy("scores"), model(**values).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("column", [0, 25])
@pytest.mark.parametrize("below", [False, True], ids=["at-the-bound", "negative"])
def test_an_index_out_of_its_table_does_not_reach_the_library(server: Server, column: int, below: bool) -> None:
    values = dlrm.example(3)
    values["sparse"][1, column] = -1 if below else dlrm.ROWS[column]
    client = triton.InferenceServerClient(server.grpc)
    with pytest.raises(
        InferenceServerException, match=f"at element {26 + column}, expected 0 ... {dlrm.ROWS[column] - 1}"
    ):
        client.infer("dlrm", inputs_of(values))
    assert client.infer("dlrm", inputs_of(dlrm.example(3))) is not None


def test_the_process_has_neither_python_nor_a_second_protobuf_of_its_own(server: Server) -> None:
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "engine_aoti.so" in maps and "libtorch_cpu" in maps
    assert "libpython" not in maps and "libtorch_python" not in maps


def test_runners_share_one_mapping_of_the_weights(server: Server) -> None:
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert maps.count("weights.safetensors") == 1


def module_of(contract: dict[str, Any]) -> dict[str, Any]:
    (lowering,) = contract["lowerings"].values()
    (module,) = lowering["modules"].values()
    return module


def lowering_of(contract: dict[str, Any]) -> dict[str, Any]:
    (lowering,) = contract["lowerings"].values()
    return lowering


def as_on(device: str, arch: str) -> Callable[[dict[str, Any]], None]:
    """The lowering as one for another device."""

    def change(contract: dict[str, Any]) -> None:
        ((_, lowering),) = contract["lowerings"].items()
        contract["lowerings"] = {f"{device}-{arch}": {**lowering, "device": device, "device_arch": arch, "isa": []}}

    return change


WRONG: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "processor": (lambda c: lowering_of(c)["isa"].append("zz_none"), "this processor has no zz_none"),
    "torch": (lambda c: lowering_of(c).update(torch_version="1.0.0"), "compiled by torch 1.0.0, this engine has 2."),
    "machine": (lambda c: lowering_of(c).update(machine="s390x"), "compiled for s390x, this machine is"),
    "device": (as_on("cuda", "sm90"), "no device cuda; it has cpu"),
    "another device": (as_on("npu", "ascend910b"), "no device npu; it has cpu"),
    "constant-missing": (lambda c: module_of(c)["constants"].pop("offsets"), "bundle.json differ: offsets"),
    "constant-unknown": (lambda c: module_of(c)["constants"].update(more="offsets"), "bundle.json differ: more"),
    "weight-missing": (lambda c: module_of(c)["constants"].update(offsets="none"), "no file of weights has none"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_run_here_is_refused_with_the_reason(
    programs: Path, ranker: Path, tmp_path: Path, name: str
) -> None:
    change, text = WRONG[name]
    shutil.copytree(ranker, tmp_path / "dlrm" / "1")
    edit_contract(change)(tmp_path / "dlrm" / "1")
    with serving(programs, tmp_path) as server:
        line = server.wait_for_line("could not be loaded")
        assert re.search("no lowering runs here: (cpu|cuda|npu)-", line) and text in line, line
        assert server.process.poll() is None
        assert json.loads(server.get("/v2"))["name"] == "trunnion-serve-bundle"


@pytest.mark.parametrize(
    ("library", "text"),
    [("none.so", "the library of device npu cannot be loaded: none.so"), ("libm.so.6", "no device npu; it has cpu")],
)
def test_a_library_that_brings_no_device_is_refused(
    programs: Path, ranker: Path, tmp_path: Path, library: str, text: str
) -> None:
    shutil.copytree(ranker, tmp_path / "dlrm" / "1")
    edit_contract(as_on("npu", "ascend910b"))(tmp_path / "dlrm" / "1")
    settings = json.dumps({"aoti_device_library": library, "aoti_device_arch": "ascend910b"})
    with serving(programs, tmp_path, "--settings", settings) as server:
        assert text in server.wait_for_line("no lowering runs here: npu-ascend910b")
