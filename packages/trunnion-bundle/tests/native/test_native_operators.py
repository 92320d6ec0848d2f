"""The operators in C++ against those in Python, on ordinary and on odd values."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trunnion_bundle import Step
from trunnion_bundle.operators import prepare
from trunnion_bundle.requests import NUMPY

RANDOM = np.random.default_rng(0)
NAMES = {np.dtype(dtype): name for name, dtype in NUMPY.items() if name != "BYTES"}
ODD = [0.0, -0.0, 0.5, 1.5, 2.5, -2.5, 1e-8, 6e-8, 65504, 65520, 1e20, -1e20, 300, -300, np.nan, np.inf, -np.inf]
FLOATS = np.array([ODD, RANDOM.standard_normal(len(ODD)) * 100, RANDOM.standard_normal(len(ODD)) * 1e-6])
INTEGERS = np.array([[0, 1, -1, 127, 128, 255, 256, -128, -129, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63)]])
X = RANDOM.standard_normal((3, 5, 4)).astype(np.float32)
MASK = (RANDOM.random((3, 5)) < 0.6).astype(np.int64)
SIZES = np.array([[[1]], [[0]], [[1e-9]]], np.float32)
IDS = RANDOM.integers(-(2**40), 2**40, (4, 3))
TEXTS = np.array([[b"", b"a"], ["ä".encode(), b"\x00\xff" * 9]], dtype=object)


def floats(dtype: str) -> np.ndarray:
    """Ordinary and odd values, rounded to `dtype`."""
    with np.errstate(over="ignore"):
        return FLOATS.astype(NUMPY[dtype])


def encode(array: np.ndarray) -> dict[str, Any]:
    if array.dtype == object:
        return {"dtype": "BYTES", "dims": array.shape, "strings": [text.hex() for text in array.ravel()]}
    return {"dtype": NAMES[array.dtype], "dims": array.shape, "data": np.ascontiguousarray(array).tobytes().hex()}


def compute(
    programs: Path, op: str, parameters: dict[str, Any], *inputs: np.ndarray, folder: Path = Path()
) -> dict[str, Any]:
    outputs = ["a", "b", "c"] if op == "word_piece" else ["a"]
    given = {"op": op, "parameters": parameters, "outputs": outputs, "folder": str(folder)}
    line = json.dumps({**given, "inputs": [encode(array) for array in inputs]})
    command = [str(programs / "tests" / "native" / "operator_replay")]
    done = subprocess.run(command, input=line, capture_output=True, text=True, timeout=30, check=True)
    return json.loads(done.stdout)


def decode(output: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(output["data"]), NUMPY[output["dtype"]]).reshape(output["dims"])


CASES: dict[str, tuple[str, dict[str, Any], tuple[np.ndarray, ...]]] = {
    **{
        f"cast-{source}-{target}": ("cast", {"dtype": target}, (floats(source),))
        for source in ("FP64", "FP32", "FP16", "BF16")
        for target in ("FP16", "BF16", "FP32", "FP64", "INT8", "UINT8", "INT32", "INT64", "UINT64", "BOOL")
    },
    **{
        f"cast-INT64-{target}": ("cast", {"dtype": target}, (INTEGERS,))
        for target in ("INT8", "UINT16", "INT32", "UINT32", "UINT64", "BOOL", "FP64", "FP32")
    },
    "clip-both": ("clip", {"min": -1, "max": 0.5}, (FLOATS.astype(np.float32),)),
    "clip-min": ("clip", {"min": -1.5, "max": None}, (FLOATS,)),
    "clip-integers": ("clip", {"min": -5, "max": 1000}, (INTEGERS,)),
    "hash-integers": ("hash_mod", {"rows": 1000, "seed": 0}, (IDS,)),
    "hash-columns": ("hash_mod", {"rows": [7, 1000, 2**31 - 1], "seed": 5}, (IDS,)),
    "hash-int32": ("hash_mod", {"rows": 13, "seed": 2**63 - 1}, (IDS.astype(np.int32),)),
    "hash-texts": ("hash_mod", {"rows": 1000, "seed": 1}, (TEXTS,)),
    "normalize": ("normalize", {"axis": 2, "mean": [0.1, 0, 1, 2], "std": [1, 2, 0.3, 4]}, (X,)),
    "normalize-bytes": ("normalize", {"axis": 1, "mean": [127.5], "std": [58.0]}, ((X * 40 + 128).astype(np.uint8),)),
    "pad": ("pad", {"axis": 1, "lengths": [4, 8], "value": 7, "symbol": "length"}, (IDS.repeat(2, 1),)),
    "pad-nothing": ("pad", {"axis": 1, "lengths": [3], "value": 7, "symbol": None}, (IDS,)),
    "mask": ("mask", {"value": 0, "dtype": "FP32"}, (MASK * 5,)),
    "pool-mean": ("pool", {"axis": 1, "kind": "mean"}, (X,)),
    "pool-mean-masked": ("pool", {"axis": 1, "kind": "mean"}, (X, MASK)),
    "pool-sum-masked": ("pool", {"axis": 1, "kind": "sum"}, (X, MASK)),
    "pool-max-of-none": ("pool", {"axis": 1, "kind": "max"}, (X, MASK * 0)),
    "pool-max": ("pool", {"axis": 2, "kind": "max"}, (X,)),
    "pool-first": ("pool", {"axis": 1, "kind": "first"}, (X,)),
    "l2-normalize": ("l2_normalize", {"axis": 2, "epsilon": 1e-6}, (X * SIZES,)),
    "sigmoid": ("sigmoid", {}, (X * 60,)),
    "sigmoid-double": ("sigmoid", {}, (X.astype(np.float64) * 400,)),
    "softmax": ("softmax", {"axis": 1}, (X * 90,)),
    "top-k": ("top_k", {"k": 3}, (X,)),
    "top-k-ties-and-nan": ("top_k", {"k": 4}, (np.array([[1, 7, np.nan, 7, -np.inf], [3, 3, 3, 3, 3]], np.float32),)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_computes_what_python_computes(programs: Path, name: str) -> None:
    op, parameters, inputs = CASES[name]
    step = Step(op=op, inputs=("x",), outputs=("y",), scope="request", parameters=parameters)
    with np.errstate(all="ignore"):
        wanted = prepare(step, Path())(list(inputs))
    found = [decode(output) for output in compute(programs, op, parameters, *inputs)["outputs"]]
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        exact = op in ("cast", "clip", "hash_mod", "pad", "mask", "top_k")
        tolerance = {} if exact else {"rtol": 2e-6, "atol": 1e-7}
        compare = np.testing.assert_array_equal if exact else np.testing.assert_allclose
        compare(one.astype(np.float64), other.astype(np.float64), **tolerance)


@pytest.mark.parametrize(
    ("op", "parameters", "inputs", "kind", "text"),
    [
        (
            "pad",
            {"axis": 1, "lengths": [2], "value": 0, "symbol": None},
            (IDS,),
            "invalid",
            "has 3 positions, at most 2",
        ),
        ("top_k", {"k": 9}, (X,), "refused", "k is 9, expected an integer from 1 to 4"),
        ("hash_mod", {"rows": [1, 2], "seed": 0}, (IDS,), "invalid", "is not the 2 that hash_mod"),
        ("softmax", {"axis": 0}, (X,), "refused", "another axis than the batch's"),
        ("softmax", {"axis": 1}, (IDS,), "refused", "takes FP32 or FP64, not INT64"),
        ("clip", {"min": 1}, (X,), "refused", 'has no "max"'),
        ("plugin", {}, (X,), "refused", 'parameters has no "configuration"'),
    ],
)
def test_refuses_by_name(
    programs: Path, op: str, parameters: dict[str, Any], inputs: tuple[np.ndarray, ...], kind: str, text: str
) -> None:
    assert text in compute(programs, op, parameters, *inputs)[kind]


def test_words_are_cut_as_python_cuts_them(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "assets").mkdir()
    letters = "abcdefghijklmnopqrstuvwxyzäß\u03c3\u03c2\u03b1\u0436漢字한ㅎ각.,!'-“”0123456789"
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{letter}" for letter in letters), "ab", "##bc", "ing"]
    # Parts of Hangul syllables, as they are after decomposition.
    tokens += [chr(0x1112), "##" + chr(0x1161), "##" + chr(0x11AB)]
    (tmp_path / "assets" / "vocab.txt").write_text("\n".join(tokens) + "\n")
    texts = [
        "", " ", "abc abcing", "Hello, World!",
        "\u0391\u03a3 \u03a3\u0391\u03a3. \u0391\u03a3'\u0391 \u03a3",
        "Ünïcödé ÀÉÎ straße İI", "漢字 x漢y", "한각 ㅎ", "a\tb\nc\rd",
        "a\u00a0b\u2003c\u2028d\u2029e\u0085f", "x\u200by\ufffdz\x00w", "“quotes” — don't", "a" * 200, "ab " * 200,
        "ﬁ ﬀ Ǆ ǅ ẞ", "a\u0301b\u0323\u0301", "👍 \U0001f469\u200d\U0001f4bb", "\u1e9b\u0323",
        "".join(map(chr, range(0x370, 0x400))),
        *("".join(map(chr, RANDOM.integers(32, 0xD7FF, 40))) for _ in range(60)),
        *("".join(map(chr, RANDOM.integers(0x10000, 0x1FFFF, 20))) for _ in range(10)),
    ]  # fmt: skip
    array = np.empty(len(texts), object)
    array[:] = [text.encode() for text in texts]
    for lowercase in (True, False):
        parameters = {
            "vocabulary": "assets/vocab.txt",
            "vocabulary_size": len(tokens),
            "lowercase": lowercase,
            "lengths": [8, 64, 128],
            "symbol": "length",
            "max_chars_per_word": 100,
        }
        step = Step(op="word_piece", inputs=("x",), outputs=("y",), scope="request", parameters=parameters)
        python = prepare(step, tmp_path)
        for text in array:
            one = np.empty(1, object)
            one[:] = [text]
            found = compute(programs, "word_piece", parameters, one, folder=tmp_path)
            for mine, other in zip(found["outputs"], python([one]), strict=True):
                np.testing.assert_array_equal(decode(mine), other, err_msg=repr(text.decode()))
        whole = compute(programs, "word_piece", parameters, array, folder=tmp_path)["outputs"]
        for mine, other in zip(whole, python([array]), strict=True):
            np.testing.assert_array_equal(decode(mine), other)
    for bad in (b"\xff", b"a\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"abc\xe4\xbd"):
        array = np.empty(1, object)
        array[:] = [bad]
        assert "is no UTF-8" in compute(programs, "word_piece", parameters, array, folder=tmp_path)["invalid"]
