"""Broken, doubled, half-copied and foreign model folders: each is one line that names the file or the tensor."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from trunnion.errors import TrunnionError, UnsupportedError, WeightsError
from trunnion.weights.safetensors_source import SafetensorsSource


def write_raw(path: Path, header: Any, data: bytes = b"") -> None:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)


def f32(shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}


def write_index(folder: Path, weight_map: dict[str, str], **metadata: Any) -> None:
    index = {"metadata": metadata, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def refusal(folder: Path) -> str:
    with pytest.raises(TrunnionError) as caught:
        SafetensorsSource(folder)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("header", "data", "expected"),
    [
        (b"{", b"", "not JSON"),
        (b"[]", b"", "not a JSON object"),
        (b'{"a": 1}', b"", "'a' lacks dtype or shape"),
        (b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}', b"", "'a' has data_offsets"),
        (b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}', b"", "'a' lacks dtype or shape"),
        ({"a": f32([3], 0, 8)}, b"\0" * 8, "'a' needs 12 bytes"),
        ({"a": f32([2**40, 2**40], 0, 8)}, b"\0" * 8, "'a' needs"),
        ({"a": f32([2], 0, 8), "b": f32([2], 4, 12)}, b"\0" * 12, "'b' overlaps 'a'"),
        ({"a": f32([2], 0, 8), "b": f32([2], 12, 20)}, b"\0" * 20, "hole of 4 bytes before 'b'"),
        ({"a": f32([2], 0, 8), "b": f32([2], 8, 16)}, b"\0" * 11, "truncated: 'b'"),
        ({"a": f32([2], 0, 8)}, b"\0" * 9, "1 bytes after the last tensor"),
        (
            b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, '
            b'"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
            b"\0" * 4,
            "'a' appears twice",
        ),
    ],
)
def test_a_broken_header_is_named(tmp_path: Path, header: Any, data: bytes, expected: str) -> None:
    write_raw(tmp_path / "model.safetensors", header, data)
    text = refusal(tmp_path)
    assert expected in text
    assert "model.safetensors" in text


@pytest.mark.parametrize("content", [b"", b"\0" * 7, struct.pack("<Q", 2**63), struct.pack("<Q", 64) + b"{}"])
def test_an_empty_or_cut_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    assert "model.safetensors" in refusal(tmp_path)


def test_tensors_of_all_shards_come_in_file_order(tmp_path: Path) -> None:
    # Counted from 0, three files "of 2": only the index knows.
    files = [f"model-0000{index}-of-00002.safetensors" for index in range(3)]
    for index, file in enumerate(files):
        save_file({f"t{index}": torch.full((2,), float(index))}, tmp_path / file)
    save_file({"other": torch.zeros(1)}, tmp_path / "model-extra.safetensors")
    write_index(tmp_path, {f"t{index}": file for index, file in enumerate(files)}, total_size=0)
    source = SafetensorsSource(tmp_path)
    assert list(source.infos) == ["t0", "t1", "t2"]
    assert {name: tensor.tolist() for name, tensor in source.tensors({"t2", "t0"})} == {"t0": [0, 0], "t2": [2, 2]}


def test_a_missing_shard_is_named_with_what_it_holds(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "model-1.safetensors")
    write_index(tmp_path, {"a": "model-1.safetensors", "model.norm.weight": "model-2.safetensors"})
    text = refusal(tmp_path)
    assert "model-2.safetensors" in text
    assert "model.norm.weight" in text


def test_a_tensor_of_the_index_that_no_shard_holds_is_named(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "model-1.safetensors")
    write_index(tmp_path, {"a": "model-1.safetensors", "b": "model-1.safetensors"})
    assert "in no shard: b" in refusal(tmp_path)


def test_a_tensor_in_another_shard_than_the_index_says_is_named(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "x.safetensors")
    save_file({"b": torch.zeros(1)}, tmp_path / "y.safetensors")
    write_index(tmp_path, {"a": "y.safetensors", "b": "x.safetensors"})
    assert "places 'a' in y.safetensors, it lies in x.safetensors" in refusal(tmp_path)


@pytest.mark.parametrize("with_index", [True, False])
def test_a_tensor_in_two_shards_is_named_with_both(tmp_path: Path, with_index: bool) -> None:
    for file in ("model-1.safetensors", "model-2.safetensors"):
        save_file({"a": torch.zeros(1), file[:7]: torch.zeros(1)}, tmp_path / file)
    if with_index:
        write_index(
            tmp_path,
            {"a": "model-1.safetensors", "model-1": "model-1.safetensors", "model-2": "model-2.safetensors"},
        )
    text = refusal(tmp_path)
    assert "duplicated tensor 'a'" in text
    assert "model-1.safetensors" in text
    assert "model-2.safetensors" in text


@pytest.mark.parametrize("index", ["{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": "../x.safetensors"}}'])
def test_a_broken_index_is_named(tmp_path: Path, index: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    assert "model.safetensors.index.json" in refusal(tmp_path)


def test_files_named_model_win_over_consolidated(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    save_file({"layers.0.attention.wk.weight": torch.zeros(1)}, tmp_path / "consolidated.safetensors")
    (tmp_path / "original").mkdir()
    save_file({"b": torch.zeros(1)}, tmp_path / "original" / "model.safetensors")
    assert list(SafetensorsSource(tmp_path).infos) == ["a"]


def test_any_other_file_name_is_read_when_there_is_no_model_file(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "wizard.safetensors")
    assert list(SafetensorsSource(tmp_path).infos) == ["a"]


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("pytorch_model.bin", "convert them to safetensors"),
        ("pytorch_model-00001-of-00002.bin", "convert them to safetensors"),
        ("model.pt", "convert them to safetensors"),
        ("consolidated.00.pth", "convert them to safetensors"),
        ("consolidated.safetensors", "Mistral"),
        ("adapter_model.safetensors", "merge"),
    ],
)
def test_a_folder_of_another_kind_is_refused_with_the_remedy(tmp_path: Path, file: str, expected: str) -> None:
    (tmp_path / file).write_bytes(b"")
    with pytest.raises(UnsupportedError, match=expected):
        SafetensorsSource(tmp_path)


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no safetensors file"):
        SafetensorsSource(tmp_path)


@pytest.mark.parametrize(
    ("side_file", "content", "expected"),
    [
        ("config.json", {"quantization_config": {"quant_method": "quip"}}, "quant_method 'quip'"),
        ("config.json", {"quantization_config": {"quant_method": "never heard of"}}, "never heard of"),
        ("config.json", {"text_config": {"quantization_config": {"quant_method": "hqq"}}}, "hqq"),
        ("config.json", {"quantization": {"bits": 4, "group_size": 64}}, "quantization"),
        ("quantize_config.json", {"bits": 3, "group_size": 128}, "gptq: bits 3 is not supported; choices: 4, 8"),
        ("quant_model_description.json", {}, "msmodelslim"),
        ("hf_quant_config.json", {}, "ModelOpt"),
    ],
)
def test_a_quantised_checkpoint_is_refused_by_name(
    tmp_path: Path, side_file: str, content: dict[str, Any], expected: str
) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / side_file).write_text(json.dumps(content))
    with pytest.raises(UnsupportedError, match=expected):
        SafetensorsSource(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.mlp.up_proj.qweight",
        "model.layers.0.mlp.gate.g_idx",
        "model.layers.0.mlp.up_proj.weight_scale",
        "model.layers.0.mlp.up_proj.weight_scale_inv",
        "model.layers.0.mlp.up_proj.weight_packed",
        "model.layers.0.mlp.down_proj.weight.absmax",
        "model.layers.0.mlp.down_proj.SCB",
        "model.layers.0.mlp.experts.down_proj_blocks",
        "model.embed_tokens.scales",
        "model.embed_tokens.biases",
        "model.layers.0.self_attn.q_proj.input_scale",
    ],
)
def test_a_quantised_tensor_without_a_config_is_refused_by_name(tmp_path: Path, name: str) -> None:
    save_file({name: torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedError, match=name):
        SafetensorsSource(tmp_path)
