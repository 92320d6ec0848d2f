"""Weights are written once each, in files of bounded size that safetensors reads."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from trunnion_bundle import BundleError, checkpoint, weights
from trunnion_bundle.checkpoint import Checkpoint

A, B = np.arange(6, dtype=np.float32), np.arange(6, dtype=np.float32)[::-1]


def test_equal_tensors_are_one() -> None:
    found = Checkpoint()
    assert found.add("w", A, "query") == "w"
    assert found.add("v", A.copy(), "item") == "w"
    # The same name for another tensor; the same bytes in another shape or dtype.
    assert found.add("w", B, "item") == "item.w"
    assert found.add("u", A.reshape(2, 3), "item") == "u"
    assert found.add("i", A.view(np.int32), "item") == "i"
    assert found.add("t", A.reshape(2, 3).T, "item") == "t"
    assert found.find(B) == "item.w"
    assert found.find(B + 1) is None
    with pytest.raises(BundleError, match=r"two tensors are named item\.w"):
        found.add("w", B + 1, "item")


def test_written_tensors_are_read_and_found(tmp_path: Path) -> None:
    found = Checkpoint()
    tensors = {"a": A, "t": A.reshape(2, 3).T, "scalar": np.float32(2) * np.ones(()), "h": A.astype(ml_dtypes.bfloat16)}
    for name, array in tensors.items():
        found.add(name, array, "m")
    assert found.write(tmp_path) == ("weights.safetensors",)
    written = load_file(tmp_path / "weights.safetensors")
    assert written.keys() == tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(written[name], array)
        assert written[name].dtype == array.dtype
    again = Checkpoint.of(weights.key_to_file(tmp_path, ["weights.safetensors"]))
    assert [again.find(array) for array in tensors.values()] == list(tensors)
    assert (tmp_path / "weights.safetensors").stat().st_mode & 0o777 == 0o644


def test_no_tensors_no_file(tmp_path: Path) -> None:
    assert Checkpoint().write(tmp_path) == ()
    assert list(tmp_path.iterdir()) == []


def test_files_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "LARGEST_FILE", 100)
    found = Checkpoint()
    sizes = (10, 15, 40, 5)
    for number, size in enumerate(sizes):
        found.add(f"t{number}", np.full(size, number, np.float32), "m")
    names = found.write(tmp_path)
    assert names == tuple(f"weights-0000{i}-of-00003.safetensors" for i in (1, 2, 3))
    # One that is larger than a file may be has one of its own.
    assert [sorted(load_file(tmp_path / name)) for name in names] == [["t0", "t1"], ["t2"], ["t3"]]
    assert weights.key_to_file(tmp_path, names).keys() == {"t0", "t1", "t2", "t3"}
