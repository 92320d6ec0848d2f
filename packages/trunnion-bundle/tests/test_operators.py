"""The reference operators against torch, published constants and plain Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from trunnion_bundle import BundleError, Step
from trunnion_bundle.operators import prepare
from trunnion_bundle.steps import infer
from trunnion_bundle.tensors import IndexRange, Symbol, TensorType

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((3, 5, 4)).astype(np.float32)


def _compute(op: str, parameters: dict[str, Any], *inputs: np.ndarray) -> Any:
    step = Step(op=op, inputs=("x",), outputs=("y",), scope="request", parameters=parameters)
    return prepare(step, Path())(list(inputs))


def _one(op: str, parameters: dict[str, Any], *inputs: np.ndarray) -> np.ndarray:
    return _compute(op, parameters, *inputs)[0]


def test_sigmoid() -> None:
    np.testing.assert_allclose(_one("sigmoid", {}, X * 50), torch.sigmoid(torch.tensor(X * 50)).numpy(), rtol=1e-5)


@pytest.mark.parametrize("axis", [1, 2])
def test_softmax(axis: int) -> None:
    wanted = torch.softmax(torch.tensor(X * 80), axis).numpy()
    np.testing.assert_allclose(_one("softmax", {"axis": axis}, X * 80), wanted, rtol=1e-5, atol=1e-7)


def test_l2_normalize() -> None:
    x = X.copy()
    x[1] = 0
    wanted = functional.normalize(torch.tensor(x), dim=2, eps=1e-6).numpy()
    np.testing.assert_allclose(_one("l2_normalize", {"axis": 2, "epsilon": 1e-6}, x), wanted, rtol=1e-6)


@pytest.mark.parametrize("k", [1, 3, 4])
def test_top_k(k: int) -> None:
    values, indices = _compute("top_k", {"k": k}, X)
    wanted = torch.topk(torch.tensor(X), k)
    np.testing.assert_array_equal(values, wanted.values.numpy())
    np.testing.assert_array_equal(indices, wanted.indices.numpy())


def test_top_k_of_equal_ones_and_nan() -> None:
    values, indices = _compute("top_k", {"k": 4}, np.array([[1, 7, 7, np.nan, 7]], np.float32))
    assert indices.tolist() == [[3, 1, 2, 4]]
    assert values[0, 1:].tolist() == [7, 7, 7]


def test_normalize() -> None:
    pixels = RANDOM.integers(0, 256, (2, 3, 4, 3), np.uint8)
    mean, std = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]
    wanted = (torch.tensor(pixels).float() - torch.tensor(mean)) / torch.tensor(std)
    found = _one("normalize", {"axis": 3, "mean": mean, "std": std}, pixels)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-6)


@pytest.mark.parametrize(("size", "wanted"), [(1, 2), (2, 2), (3, 5), (5, 5)])
def test_pad(size: int, wanted: int) -> None:
    found = _one("pad", {"axis": 1, "lengths": [2, 5], "value": 9}, X[:, :size])
    padded = functional.pad(torch.tensor(X[:, :size]), (0, 0, 0, wanted - size), value=9.0)
    np.testing.assert_array_equal(found, padded.numpy())


def test_pad_over_the_last_length() -> None:
    with pytest.raises(BundleError, match="axis 1 has size 5; limit: 4"):
        _compute("pad", {"axis": 1, "lengths": [2, 4], "value": 9}, X)


@pytest.mark.parametrize("kind", ["mean", "sum", "max"])
def test_pool_with_a_mask(kind: str) -> None:
    mask = np.array([[1, 1, 0, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], np.int64)
    found = _one("pool", {"axis": 1, "kind": kind}, X, mask)
    for row in range(3):
        kept = torch.tensor(X[row])[torch.tensor(mask[row]).bool()]
        wanted = {
            "mean": lambda kept=kept: kept.mean(0),
            "sum": lambda kept=kept: kept.sum(0),
            "max": lambda kept=kept: kept.max(0).values,
        }[kind]() if len(kept) else torch.zeros(4)  # fmt: skip
        np.testing.assert_allclose(found[row], wanted.numpy(), rtol=1e-6)


def test_pool_is_blind_to_what_is_masked() -> None:
    x = X.copy()
    x[:, 2] = np.nan
    mask = np.array([[1, 1, 0, 1, 1]] * 3, np.int64)
    for kind in ("mean", "sum", "max"):
        assert np.isfinite(_one("pool", {"axis": 1, "kind": kind}, x, mask)).all()


def test_pool_first() -> None:
    np.testing.assert_array_equal(_one("pool", {"axis": 1, "kind": "first"}, X), X[:, 0])


def test_mask_and_clip() -> None:
    ids = np.array([[3, 0, 5]], np.int64)
    assert _one("mask", {"value": 0, "dtype": "INT64"}, ids).tolist() == [[1, 0, 1]]
    assert _one("clip", {"min": 1, "max": 4}, ids).tolist() == [[3, 1, 4]]
    floats = np.array([np.nan, -9, 9], np.float32)
    np.testing.assert_array_equal(_one("clip", {"min": -1, "max": None}, floats), [np.nan, -1, 9])


CASTS = {
    "truncates": (np.array([1.9, -1.9], np.float32), "INT32", [1, -1]),
    "saturates": (
        np.array([1e30, -1e30, np.inf, -np.inf], np.float64),
        "INT64",
        [2**63 - 1, -(2**63), 2**63 - 1, -(2**63)],
    ),
    "at the edge": (np.array([2.0**63, -(2.0**63)]), "INT64", [2**63 - 1, -(2**63)]),
    "unsigned": (np.array([-1.0, 300.0]), "UINT8", [0, 255]),
    "the largest": (np.array([2.0**64]), "UINT64", [2**64 - 1]),
    "NaN": (np.array([np.nan]), "INT16", [0]),
    "integers saturate": (np.array([-5, 2**40], np.int64), "UINT32", [0, 2**32 - 1]),
    "wide unsigned": (np.array([2**64 - 1], np.uint64), "INT64", [2**63 - 1]),
    "to BOOL": (np.array([0, 0.5, np.nan], np.float32), "BOOL", [False, True, True]),
    "from BOOL": (np.array([False, True]), "INT8", [0, 1]),
    "to floats": (np.array([2**24 + 1], np.int64), "FP32", [float(2**24)]),
}


@pytest.mark.parametrize("name", CASTS)
def test_cast(name: str) -> None:
    x, dtype, wanted = CASTS[name]
    assert _one("cast", {"dtype": dtype}, x).tolist() == wanted


def test_hash_mod_is_splitmix64() -> None:
    # The first output of the published generator from state 0.
    big = 2**31 - 1
    assert _one("hash_mod", {"rows": big, "seed": 0}, np.array([0], np.int64))[0] == 0xE220A8397B1DCDAF % big


@pytest.mark.parametrize(
    ("text", "fnv"), [(b"", 0xCBF29CE484222325), (b"a", 0xAF63DC4C8601EC8C), (b"foobar", 0x85944171F73967E8)]
)
def test_hash_mod_of_bytes_is_fnv(text: bytes, fnv: int) -> None:
    texts = np.array([text], object)
    number = np.array([fnv], np.uint64)
    parameters = {"rows": 1_000_003, "seed": 5}
    assert _one("hash_mod", parameters, texts) == _one("hash_mod", parameters, number)


def test_hash_mod_against_plain_integers() -> None:
    ids = RANDOM.integers(-(2**63), 2**63 - 1, (50, 2))
    found = _one("hash_mod", {"rows": [97, 2**31 - 1], "seed": 2**63 - 1}, ids)
    for row, column in np.ndindex(ids.shape):
        z = (int(ids[row, column]) + 2**63 * 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        assert found[row, column] == (z ^ z >> 31) % [97, 2**31 - 1][column]
    assert found.dtype == np.int64


TYPES = {
    "cast keeps a range that fits": (
        "cast",
        {"dtype": "INT32"},
        "INT64",
        ("batch", 2),
        IndexRange(below=9),
        IndexRange(below=9),
    ),
    "cast drops one that does not": ("cast", {"dtype": "INT8"}, "INT64", ("batch", 2), IndexRange(below=999), None),
    "clip makes one": ("clip", {"min": 1, "max": 4}, "INT64", ("batch",), None, IndexRange(min=1, below=5)),
    "clip by one side does not": ("clip", {"min": 1, "max": None}, "INT64", ("batch",), IndexRange(below=3), None),
    "hash makes one": ("hash_mod", {"rows": [7, 9], "seed": 0}, "INT64", ("batch", 2), None, IndexRange(below=(7, 9))),
    "pad keeps one": (
        "pad",
        {"axis": 1, "lengths": [4], "value": 0, "symbol": None},
        "INT64",
        ("batch", 2),
        IndexRange(below=9),
        IndexRange(below=9),
    ),
    "pad outside drops it": (
        "pad",
        {"axis": 1, "lengths": [4], "value": 9, "symbol": None},
        "INT64",
        ("batch", 2),
        IndexRange(below=9),
        None,
    ),
    "pad of columns drops it": (
        "pad",
        {"axis": 1, "lengths": [4], "value": 0, "symbol": None},
        "INT64",
        ("batch", 2),
        IndexRange(below=(9, 9)),
        None,
    ),
}


@pytest.mark.parametrize("name", TYPES)
def test_ranges_follow_from_the_steps(name: str) -> None:
    op, parameters, dtype, dims, given, wanted = TYPES[name]
    step = Step(op=op, inputs=("x",), outputs=("y",), scope="request", parameters=parameters)
    (found,) = infer(step, (TensorType(dtype=dtype, dims=dims, index_range=given),), {}, "step")
    assert found.index_range == wanted


WRONG = {
    "unknown parameter": ("sigmoid", {"alpha": 1}, "FP32", "unknown 'alpha'"),
    "integers": ("sigmoid", {}, "INT64", "sigmoid of INT64; choices: FP32, FP64"),
    "the batch axis": ("softmax", {"axis": 0}, "FP32", "axis is 0; choices: 1, 2"),
    "an axis below 0": ("softmax", {"axis": -1}, "FP32", "axis is -1; choices: 1, 2"),
    "std of 0": ("normalize", {"axis": 2, "mean": [0], "std": [0]}, "FP32", "above 0"),
    "means": ("normalize", {"axis": 2, "mean": [0, 1], "std": [1]}, "FP32", "mean has 2 elements; axis 2 has 4"),
    "k": ("top_k", {"k": 5}, "FP32", "is 5; it must be an integer from 1 to 4"),
    "clip by nothing": ("clip", {"min": None, "max": None}, "FP32", "one of them is not null"),
    "clip inside out": ("clip", {"min": 2, "max": 1}, "FP32", "min is 2, max is 1"),
    "hash of floats": ("hash_mod", {"rows": 5, "seed": 0}, "FP32", "hash_mod of FP32"),
    "rows of 0": ("hash_mod", {"rows": 0, "seed": 0}, "INT64", "it must be an integer from 1"),
    "lengths that fall": ("pad", {"axis": 1, "lengths": [4, 2], "value": 0, "symbol": None}, "FP32", "it must ascend"),
    "lengths without a symbol": (
        "pad",
        {"axis": 1, "lengths": [2, 4], "value": 0, "symbol": None},
        "FP32",
        "need a symbol",
    ),
    "another symbol": (
        "pad",
        {"axis": 1, "lengths": [2, 4], "value": 0, "symbol": "n"},
        "FP32",
        "with min 2 and max 4",
    ),
    "kind of pooling": ("pool", {"axis": 1, "kind": "median"}, "FP32", "'median'; choices: mean, sum, max, first"),
    "words of numbers": ("word_piece", {}, "INT64", "word_piece of INT64; choices: BYTES"),
}


@pytest.mark.parametrize("name", WRONG)
def test_refuses_parameters(name: str) -> None:
    op, parameters, dtype, words = WRONG[name]
    step = Step(op=op, inputs=("x",), outputs=("y",), scope="request", parameters=parameters)
    with pytest.raises(BundleError) as error:
        infer(step, (TensorType(dtype=dtype, dims=("batch", 5, 4)),), {"n": Symbol(min=1, max=4)}, "step")
    assert words in str(error.value)


def test_pad_is_per_request() -> None:
    step = Step(op="pad", inputs=("x",), outputs=("y",), scope="batch",
                parameters={"axis": 1, "lengths": [8], "value": 0, "symbol": None})  # fmt: skip
    with pytest.raises(BundleError, match="has scope 'batch'; choices: request"):
        infer(step, (TensorType(dtype="FP32", dims=("batch", 5)),), {}, "step")
