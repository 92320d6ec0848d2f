"""bundle.json is read strictly: each change of a valid one is refused, with the place, the value and the choices."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trunnion_bundle import BundleError, folder
from trunnion_bundle.contract import decode, read_bundle

Json = dict[str, Any]


def _policy(contract: Json) -> Json:
    return contract["signatures"]["score"]["batching"]


def _input(contract: Json, number: int = 0) -> Json:
    return contract["signatures"]["score"]["inputs"][number]


def _module_input(contract: Json, number: int = 0) -> Json:
    return contract["modules"]["main"]["inputs"][number]


def _step(contract: Json) -> Json:
    return contract["signatures"]["score"]["steps"][0]


def _sim(contract: Json) -> Json:
    return contract["lowerings"]["sim"]["modules"]["main"]


def _set(place: Callable[[Json], Json], key: str, value: Any) -> Callable[[Json], None]:
    return lambda contract: place(contract).__setitem__(key, value)


def _whole(contract: Json) -> Json:
    return contract


BAD = {
    "another format": (_set(_whole, "format", "zip"), "'zip'; choices: trunnion-bundle"),
    "another version": (_set(_whole, "format_version", 2), "format_version is 2; this reader knows: 1"),
    "true is no version": (_set(_whole, "format_version", True), "format_version is True"),
    "unknown key": (_set(_whole, "colour", "red"), "unknown 'colour'; choices:"),
    "missing key": (lambda contract: contract.pop("weights"), "the key 'weights' is missing"),
    "unknown key deep inside": (_set(_policy, "max_delay_ms", 1), "batching: unknown 'max_delay_ms'"),
    "name": (_set(_whole, "name", "../evil"), "name is '../evil'; it must match"),
    "default signature": (_set(_whole, "default_signature", "sum"), "'sum'; choices: score, total"),
    "weights with ..": (_set(_whole, "weights", ["../w.safetensors"]), "segment '..' must match"),
    "absolute path": (_set(_whole, "weights", ["/w.safetensors"]), "segment '' must match"),
    "hidden file": (_set(_whole, "weights", [".w.safetensors"]), "no hidden file"),
    "weights that are not listed": (_set(_whole, "weights", ["w.safetensors"]), "'files' does not list"),
    "weights of another kind": (_set(_whole, "weights", ["golden/score/0.bin"]), "must end in .safetensors"),
    "dtype": (_set(_input, "dtype", "float32"), "dtype is 'float32'; choices: BOOL"),
    "rank": (_set(_input, "dims", ["batch", *range(1, 9)]), "has 9 elements; limits: 0 to 8"),
    "dim of 0": (_set(_input, "dims", ["batch", 0]), "dims[1] is 0; it must be an integer from 1 to 2147483647"),
    "dim of 2^31": (_set(_input, "dims", ["batch", 2**31]), "is 2147483648; it must be an integer"),
    "dim of 4.0": (_set(_input, "dims", ["batch", 4.0]), "is 4.0; it must be an integer"),
    "two batches": (_set(_input, "dims", ["batch", "batch"]), "limit: one 'batch'"),
    "batch axis": (_set(_input, "batch_axis", 1), "batch_axis is 1; dims ['batch', 4] say 0"),
    "unknown symbol": (_set(_input, "dims", ["batch", "width"]), "unknown symbol 'width'; choices: batch"),
    "index range of floats": (_set(_input, "index_range", {"min": 0, "below": 3}), "dtype is FP32; choices: INT8"),
    "empty index range": (
        lambda c: _input(c, 1).update(index_range={"min": 5, "below": 5}),
        "below is 5; it must be above min",
    ),
    "index range that is too wide": (
        lambda c: _input(c, 1).update(index_range={"min": 0, "below": 1001}),
        "'ids' as 'ids' may be outside of",
    ),
    "one column that is too wide": (
        lambda c: _input(c, 1).update(index_range={"min": 0, "below": [1000, 200, 51]}),
        "'ids' as 'ids' may be outside of",
    ),
    "no index range": (lambda c: _input(c, 1).update(index_range=None), "its range is unknown"),
    "bounds by column": (lambda c: _input(c, 1).update(index_range={"min": 0, "below": [9, 9]}), "has 2 bounds"),
    "pad outside of range": (
        lambda c: _module_input(c, 1).update(pad={"rule": "value", "value": 50}),
        "fills with 50; limits",
    ),
    "zero outside of range": (
        lambda c: [
            _module_input(c, 1).update(index_range={"min": 1, "below": 50}),
            _input(c, 1).update(index_range={"min": 1, "below": 50}),
        ],
        "fills with 0; limits: integers from 1 to 49",
    ),
    "pad rule": (
        lambda c: _module_input(c).update(pad={"rule": "mirror"}),
        "'mirror'; choices: zero, repeat_row, value",
    ),
    "no pad": (lambda c: _module_input(c).update(pad=None), "null exactly where batch_axis is"),
    "module without batch": (lambda c: c["modules"]["main"].update(batch=None), "a batch axis belongs to all"),
    "op": (_set(_step, "op", "exec"), "'exec'; choices: module, cast"),
    "unknown module": (_set(_step, "parameters", {"module": "other"}), "'other'; choices: main, sequence"),
    "unknown value": (_set(_step, "inputs", ["x", "idz"]), "there is no value 'idz' yet; choices: x, ids"),
    "argument order": (_set(_step, "inputs", ["ids", "x"]), "'ids' as 'x' is INT64"),
    "value made twice": (_set(_step, "outputs", ["y", "ids"]), "makes 'ids', which exists"),
    "scope of a module": (_set(_step, "scope", "request"), "of a module it is 'batch'"),
    "two modules": (lambda c: c["signatures"]["score"]["steps"].append(_step(c)), "2 steps with op 'module'"),
    "no step makes it": (
        lambda c: c["signatures"]["score"]["outputs"][0].update(name="z"),
        "no step makes it; choices",
    ),
    "dtype of an output": (lambda c: c["signatures"]["score"]["outputs"][0].update(dtype="FP16"), "its value is FP32"),
    "tolerance of integers": (
        lambda c: c["signatures"]["score"]["outputs"][1].update(tolerance={"absolute": 1, "relative": 0}),
        "of INT64 both must be 0",
    ),
    "tolerance below 0": (
        lambda c: c["signatures"]["score"]["outputs"][0].update(tolerance={"absolute": -1, "relative": 0}),
        "is -1; it must be a finite number of at least 0",
    ),
    "sizes that fall": (_set(_policy, "allowed_sizes", [8, 1]), "it must ascend"),
    "size twice": (_set(_policy, "allowed_sizes", [8, 8]), "no value twice"),
    "no size": (_set(_policy, "allowed_sizes", []), "has 0 elements; limits: 1 to 64"),
    "size over the module's": (
        _set(_policy, "allowed_sizes", [1, 1025]),
        "is 1025; it must be an integer from 1 to 1024",
    ),
    "padding": (_set(_policy, "padding", "pad"), "'pad'; choices: pad_up, batch_down, least_cost"),
    "delay": (_set(_policy, "max_delay_us", -1), "is -1; it must be an integer from 0 to 10000000"),
    "delay of true": (_set(_policy, "max_delay_us", True), "is True; it must be an integer"),
    "queue below a batch": (_set(_policy, "max_queue_rows", 255), "is 255; it must be an integer from 256"),
    "timeout of 0": (_set(_policy, "queue_timeout_us", 0), "is 0; it must be an integer from 1"),
    "bypass over a batch": (_set(_policy, "bypass_rows", 257), "is 257; it must be an integer from 1 to 256"),
    "priority": (_set(_policy, "default_priority", 2), "is 2; it must be an integer from 1 to 1"),
    "runners": (_set(_policy, "runners", 0), "is 0; it must be an integer from 1 to 64"),
    "engine": (lambda c: c["lowerings"]["sim"].update(engine="onnx"), "'onnx'; choices: aoti, pjrt, sim"),
    "platform of another engine": (
        lambda c: c["lowerings"].update(cpu=c["lowerings"].pop("sim")),
        "it starts with: sim",
    ),
    "lowering without a module": (
        lambda c: c["lowerings"]["sim"]["modules"].pop("sequence"),
        "not in both places: sequence",
    ),
    "function of a simulation": (
        lambda c: _sim(c)["outputs"][0].update(function="max"),
        "'max'; choices: row_sum, echo",
    ),
    "echo of another dtype": (
        lambda c: _sim(c)["outputs"].__setitem__(1, {"function": "echo", "input": "x"}),
        "is no echo of x",
    ),
    "hash of a file": (
        lambda c: c["files"]["golden/score/0.safetensors"].update(sha256="00"),
        "is '00'; it must match [0-9a-f]{64}",
    ),
    "size of a file": (
        lambda c: c["files"]["golden/score/0.safetensors"].update(size=-1),
        "is -1; it must be an integer",
    ),
    "file that is named and not listed": (
        lambda c: c["files"].pop("golden/score/0.safetensors"),
        "which 'files' does not list",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_refuses(name: str, sim_contract: Json) -> None:
    change, words = BAD[name]
    read_bundle(sim_contract)
    change(sim_contract)
    with pytest.raises(BundleError) as error:
        read_bundle(sim_contract)
    assert words in str(error.value)


def test_reads_what_another_wrote(sim_bundle: Path, sim_contract: Json, commit: Callable[[Path, Json], None]) -> None:
    sim_contract["description"] = "größer, schneller"
    _policy(sim_contract)["max_delay_us"] = 250
    commit(sim_bundle, sim_contract)
    opened = folder.read(sim_bundle)
    assert opened.bundle.signatures["score"].batching.max_delay_us == 250
    assert opened.bundle.to_json() == sim_contract
    assert opened.bundle.encode() == (sim_bundle / "bundle.json").read_bytes()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"\xff\xfe{}", "no JSON"),
        (b"[]", "not canonical"),
        (b"[]\n", "it must be an object"),
        (b'{"a": NaN}\n', "NaN is no number"),
        (b'{\n  "a": 1,\n  "a": 2\n}\n', "not canonical"),
        (b'{\n  "a": 1.50\n}\n', "not canonical"),
        (b'{\n  "a": "\\ud800"\n}\n', "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b" " * (1 + (16 << 20)), "limit: 16777216"),
    ],
)
def test_refuses_bytes(data: bytes, words: str) -> None:
    with pytest.raises(BundleError) as error:
        decode(data)
    assert words in str(error.value)


def test_no_value_of_another_type_is_an_error_of_ours(sim_contract: Json) -> None:
    """Every value in turn becomes one of another type: refused by BundleError, never another exception."""
    texts = json.dumps(sim_contract)
    for path in _paths(sim_contract):
        for other in (None, True, -1, 1.5, "\u0000", [], {}, [[]], {"": 0}):
            contract = json.loads(texts)
            target = contract
            for key in path[:-1]:
                target = target[key]
            if target[path[-1]] == other:
                continue
            target[path[-1]] = other
            try:
                read_bundle(contract)
            except BundleError:
                continue


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [path] if path else []
    for key, child in children:
        found += _paths(child, (*path, key))
    return found
