"""Files of requests, as safetensors reads and writes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from trunnion_bundle import BundleError, requests
from trunnion_bundle.requests import NUMPY
from trunnion_bundle.tensors import SAFETENSORS, Tensor


@pytest.mark.parametrize("dtype", SAFETENSORS)
def test_every_dtype(dtype: str, tmp_path: Path) -> None:
    array = np.array([[0, 1], [1, 0]]).astype(NUMPY[dtype])
    requests.write(tmp_path / "x.safetensors", {"input": {"x": array}})
    tensor = Tensor(name="x", dtype=dtype, dims=("batch", 2))
    found = requests.read(tmp_path / "x.safetensors", "input", [tensor])["x"]
    assert found.dtype == NUMPY[dtype]
    np.testing.assert_array_equal(found, array)
    header = (tmp_path / "x.safetensors").read_bytes()[8:]
    assert f'"dtype":"{SAFETENSORS[dtype]}"'.encode() in header


def test_bytes(tmp_path: Path) -> None:
    texts = np.array([[b"", b"a\0b"], ["größer".encode(), b"x" * 70_000]], object)
    requests.write(tmp_path / "x.safetensors", {"input": {"text": texts}})
    tensor = Tensor(name="text", dtype="BYTES", dims=("batch", 2))
    np.testing.assert_array_equal(requests.read(tmp_path / "x.safetensors", "input", [tensor])["text"], texts)
    raw = load_file(tmp_path / "x.safetensors")
    assert raw["input.text.offsets"].tolist() == [0, 0, 3, 11, 70_011]
    assert raw["input.text.bytes"].dtype == np.uint8


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({}, "no tensor 'input.x'"),
        ({"input.x": np.zeros((2, 2), np.float64)}, "is float64 (2, 2); the signature says FP32"),
        ({"input.x": np.zeros(2, np.float32)}, "is float32 (2,); the signature says FP32"),
    ],
)
def test_refuses(tensors: dict[str, np.ndarray], words: str, tmp_path: Path) -> None:
    save_file(tensors, tmp_path / "x.safetensors")
    with pytest.raises(BundleError) as error:
        requests.read(tmp_path / "x.safetensors", "input", [Tensor(name="x", dtype="FP32", dims=("batch", 2))])
    assert words in str(error.value)


@pytest.mark.parametrize("offsets", [[], [1, 3], [0, 2], [0, 4, 3]])
def test_refuses_offsets(offsets: list[int], tmp_path: Path) -> None:
    tensors = {"input.t.bytes": np.zeros(3, np.uint8), "input.t.offsets": np.array(offsets, np.int64)}
    save_file(tensors, tmp_path / "x.safetensors")
    with pytest.raises(BundleError, match="do not go from 0 to 3"):
        requests.read(tmp_path / "x.safetensors", "input", [Tensor(name="t", dtype="BYTES", dims=("batch",))])


def test_refuses_what_is_no_safetensors(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(BundleError, match="no safetensors"):
        requests.read(tmp_path / "x.safetensors", "input", [])
