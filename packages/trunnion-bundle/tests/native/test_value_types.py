"""What the C++ knows of values before any request: their dims and ranges, as the reference reader infers them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from serving import serving
from stepped import write_stepped

from trunnion_bundle import Step, folder
from trunnion_bundle.errors import BundleError
from trunnion_bundle.tensors import Tensor

ROWS = np.array([[0.5, 3, 1, 2, -1], [9, 8, 7, 6, 5]], np.float32)
TOP = np.array([[1, 3], [0, 1]])
X = Tensor(name="x", dtype="FP32", dims=("batch", 5))


def top_k(outputs: tuple[str, str]) -> Step:
    return Step(op="top_k", inputs=("x",), outputs=outputs, parameters={"k": 2})


def write_top(target: Path, below: int | tuple[int, ...]) -> Path:
    """Indices of the two greatest of five index a table of `below` rows."""
    return write_stepped(target, X, [top_k(("values", "entering"))], example=ROWS, answer=TOP, below=below)


@pytest.mark.parametrize("below", [5, 6, (5, 7)])
def test_indices_of_top_k_may_index_a_table(programs: Path, tmp_path: Path, below: Any) -> None:
    with serving(programs, write_top(tmp_path / "top", below)) as server:
        given = triton.InferInput("x", list(ROWS.shape), "FP32")
        given.set_data_from_numpy(ROWS)
        found = triton.InferenceServerClient(server.grpc).infer("top", [given])
        np.testing.assert_array_equal(found.as_numpy("y"), TOP)


Change = Callable[[dict[str, Any]], None]


def _rows_of_the_table(below: Any) -> Change:
    def change(contract: dict[str, Any]) -> None:
        contract["modules"]["echo"]["inputs"][0]["index_range"]["below"] = below

    return change


def _integers(contract: dict[str, Any]) -> None:
    """The greatest themselves of columns with bounds of their own index the table."""
    signature = contract["signatures"]["ask"]
    bounds = {"min": 0, "below": [3, 9]}
    signature["inputs"][0] |= {"dtype": "INT64", "dims": ["batch", 2], "index_range": bounds}
    signature["steps"][0]["outputs"] = ["entering", "indices"]
    contract["modules"]["echo"]["inputs"][0]["index_range"]["below"] = [3, 9]


def _k(contract: dict[str, Any]) -> None:
    contract["signatures"]["ask"]["steps"][0]["parameters"]["k"] = 6


def _dims_of_the_answer(contract: dict[str, Any]) -> None:
    contract["signatures"]["ask"]["outputs"][0]["dims"] = ["batch", 3]


def _dims_of_the_module(contract: dict[str, Any]) -> None:
    contract["modules"]["echo"]["inputs"][0]["dims"] = ["batch", 3]


REFUSED: dict[str, tuple[Change, str]] = {
    "a table too short": (_rows_of_the_table(4), "is not known to lie in its index_range"),
    "a column too short": (_rows_of_the_table([5, 4]), "is not known to lie in its index_range"),
    "values in a new order": (_integers, "is not known to lie in its index_range"),
    "more than there are": (_k, "k is 6, expected an integer from 1 to 5"),
    "dims of the answer": (_dims_of_the_answer, "is INT64 [batch, 3], its value is INT64 [batch, 2]"),
    "dims of the module": (_dims_of_the_module, "has dims [batch, 2], the module takes [batch, 3]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(programs: Path, tmp_path: Path, commit: Any, name: str) -> None:
    target = write_top(tmp_path / "top", 5)
    change, text = REFUSED[name]
    contract = json.loads((target / "bundle.json").read_text())
    change(contract)
    commit(target, contract)
    with serving(programs, target) as server:
        assert text in server.wait_for_line("could not be loaded")
    with pytest.raises(BundleError):
        folder.read(target)
