"""Bundles of torch modules answer as the eager module does; what cannot be served is refused when it is exported."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import trunnion_bundle
from trunnion_bundle import Batching, BundleError, Endpoint, IndexRange, Input, aoti_compile, edits, folder, weights
from trunnion_bundle.check import check
from trunnion_bundle.checks import RequestError
from trunnion_bundle.engines.aoti import npu_refusal
from trunnion_bundle.examples import dlrm, text


def numpy_of(values: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in values.items()}


class Towers(nn.Module):
    """Two methods over one table; a tied weight, a buffer that is not saved, and a plain tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 8)
        self.query = nn.Linear(8, 4)
        self.item = nn.Linear(8, 4)
        self.item.weight = self.query.weight
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0, 4.0]), persistent=False)
        self.shift = torch.tensor([0.5, 0.25, 0.125, 0.0625])

    def encode_query(self, ids: Tensor) -> Tensor:
        return self.query(self.table(ids).sum(1)) * self.scale + self.shift

    def encode_item(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        return self.item(self.table(ids).amax(1)), ids.sum(1)


@pytest.fixture(scope="session")
def towers() -> Towers:
    torch.manual_seed(3)
    return Towers().eval()


@pytest.fixture(scope="session")
def towers_bundle(towers: Towers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two signatures over one checkpoint; one test adds a lowering."""
    ids = torch.randint(0, 50, (4, 3), generator=torch.Generator().manual_seed(0))
    bounds, batching = range(50), Batching(allowed_sizes=(1, 4))
    shared: dict[str, Any] = {
        "function": towers,
        "inputs": {"ids": Input(example=ids, index_range=bounds)},
        "batching": batching,
    }
    endpoints = {
        "query": Endpoint(**shared, method="encode_query", outputs=("vector",)),
        "item": Endpoint(**shared, method="encode_item", outputs=("vector", "sum")),
    }
    path = tmp_path_factory.mktemp("towers") / "1"
    trunnion_bundle.save(
        path, endpoints, name="towers", platforms=[aoti_compile.native_platform()], default_signature="item"
    )
    return path


@pytest.mark.parametrize("rows", [1, 3, 8, 129, 300])
def test_dlrm_is_the_eager_model(dlrm_bundle: Path, rows: int) -> None:
    request = dlrm.example(rows, seed=rows)
    with torch.no_grad():
        wanted = dlrm.build()(**request)
    found = trunnion_bundle.load(dlrm_bundle)(**numpy_of(request))["scores"]
    torch.testing.assert_close(torch.from_numpy(found), wanted, atol=1e-5, rtol=1e-4)


def test_dlrm_traps_indices(dlrm_bundle: Path) -> None:
    request = numpy_of(dlrm.example(2))
    request["sparse"][1, 3] = dlrm.ROWS[3]
    with pytest.raises(RequestError, match=rf"at \[1, 3\] is {dlrm.ROWS[3]}; limits: 0 to {dlrm.ROWS[3] - 1}"):
        trunnion_bundle.load(dlrm_bundle)(**request)


def test_checkpoint_is_the_model_s(dlrm_bundle: Path) -> None:
    state, found = dlrm.build().state_dict(), load_file(dlrm_bundle / "weights.safetensors")
    assert state.keys() == found.keys()
    for name, tensor in state.items():
        assert torch.equal(tensor, found[name]), name
    bundle = folder.read(dlrm_bundle).bundle
    (lowering,) = bundle.lowerings.values()
    assert set(lowering.modules["score"].constants.values()) == set(state)
    assert (dlrm_bundle / lowering.modules["score"].library).stat().st_size > 100_000


def test_an_export_can_be_repeated(dlrm_bundle: Path, tmp_path: Path) -> None:
    again = trunnion_bundle.save(tmp_path / "2", **dlrm.recipe())
    assert again.bundle == folder.read(dlrm_bundle).bundle


def test_two_signatures_share_one_checkpoint(towers: Towers, towers_bundle: Path) -> None:
    runner = trunnion_bundle.load(towers_bundle)
    ids = torch.randint(0, 50, (3, 3))
    with torch.no_grad():
        query, (item, total) = towers.encode_query(ids), towers.encode_item(ids)
    torch.testing.assert_close(torch.from_numpy(runner("query", ids=ids.numpy())["vector"]), query)
    found = runner(ids=ids.numpy())
    torch.testing.assert_close(torch.from_numpy(found["vector"]), item)
    np.testing.assert_array_equal(found["sum"], total.numpy())
    keys = set(load_file(towers_bundle / "weights.safetensors"))
    # Tied weights once, both towers' table once, and what state_dict leaves out.
    assert keys == {"table.weight", "query.weight", "query.bias", "item.bias", "scale", "shift"}


def test_check_passes(dlrm_bundle: Path, towers_bundle: Path) -> None:
    for path in (dlrm_bundle, towers_bundle):
        found = check(path)
        assert [finding for finding in found if finding.state != "passed"] == []
        assert {finding.what for finding in found} == {
            "files", "weights", "index range", "golden", "full batch", "padding", "neighbours",
        }  # fmt: skip


def test_compile_adds_a_lowering_and_leaves_the_rest(towers: Towers, towers_bundle: Path) -> None:
    """From the bundle alone: the source has no weights, the checkpoint has them."""
    platform = "cpu-x86_64-avx2"
    if reason := aoti_compile.refusal(platform):
        pytest.skip(reason)
    before = folder.read(towers_bundle)
    if platform in before.bundle.lowerings:
        pytest.skip("this machine's own platform")
    edits.compile_for(towers_bundle, platform)
    after = folder.read(towers_bundle)
    assert after.bundle.files.items() > before.bundle.files.items()
    assert after.entries[-1].action == "compile"
    ids = torch.randint(0, 50, (4, 3))
    found = trunnion_bundle.load(towers_bundle, platform=platform)("query", ids=ids.numpy())["vector"]
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(found), towers.encode_query(ids))
    assert not [finding for finding in check(towers_bundle) if finding.state == "failed"]
    with pytest.raises(BundleError, match=f"has a lowering for {platform}"):
        edits.compile_for(towers_bundle, platform)


@pytest.mark.parametrize(
    ("platform", "reason"),
    [
        ("npu-ascend910b", "torch_npu (is not installed|[0-9.]+ finds no NPU)"),
        ("cuda-sm90", "finds no CUDA device here"),
        ("npu-310", "unknown platform 'npu-310'; choices: .*cuda-sm90, npu-ascend910b"),
    ],
)
def test_a_device_that_is_not_here_is_not_compiled_for(towers_bundle: Path, platform: str, reason: str) -> None:
    if platform.startswith("cuda") and torch.cuda.is_available():
        pytest.skip("this machine has the device")
    before = (towers_bundle / "COMMITTED").read_bytes()
    with pytest.raises(BundleError, match=reason):
        edits.compile_for(towers_bundle, platform)
    assert (towers_bundle / "COMMITTED").read_bytes() == before


@pytest.mark.parametrize(
    ("device", "has_runner", "reason"),
    [
        (None, True, "torch_npu 2.13.0 finds no NPU"),
        ("Ascend910B3", False, "torch_npu 2.13.0 has no AOTIModelContainerRunnerNpu"),
        ("Ascend310P3", True, "compiled for ascend910b; here is ascend310p3"),
        ("Ascend910B3", True, ""),
    ],
)
def test_which_npu_is_here(monkeypatch: pytest.MonkeyPatch, device: str | None, has_runner: bool, reason: str) -> None:
    """A stand-in for torch_npu, which this environment has not."""
    npu = SimpleNamespace(is_available=lambda: device is not None, get_device_name=lambda: device)
    module = ModuleType("torch_npu")
    module.__dict__.update(__version__="2.13.0", __spec__=ModuleSpec("torch_npu", None), npu=npu)
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    if has_runner:
        monkeypatch.setattr(torch._C._aoti, "AOTIModelContainerRunnerNpu", object, raising=False)
    assert npu_refusal("ascend910b") == reason


def test_text_embedder(tmp_path: Path) -> None:
    """Texts of several lengths, tokenized, pooled and normalized outside of the compiled module."""
    trunnion_bundle.save(tmp_path / "1", **text.recipe())
    runner = trunnion_bundle.load(tmp_path / "1")
    texts = ["the cat", "The dog ran, and sat on the mat! Is it running?", "mat"]
    array = np.empty(3, object)
    array[:] = [words.encode() for words in texts]
    found = runner(text=array)["embedding"]
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
    for row in range(3):
        # Alone it is padded to another length.
        np.testing.assert_allclose(runner(text=array[row : row + 1])["embedding"][0], found[row], atol=1e-5)
    assert np.abs(found[0] - found[2]).max() > 0.01
    assert not [finding for finding in check(tmp_path / "1") if finding.state == "failed"]


class Tiny(nn.Module):
    """A table and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.linear = nn.Linear(4, 4)

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        return self.linear(self.table(ids + 1)) * x


def _tiny(**changes: Any) -> Endpoint:
    inputs = {
        "ids": Input(example=torch.zeros(3, dtype=torch.int64), index_range=range(9)),
        "x": Input(example=torch.ones(3, 1)),
    }
    return Endpoint(**{"function": Tiny().eval(), "inputs": inputs, "outputs": ("y",), **changes})


def _strided() -> Tiny:
    model = Tiny().eval()
    model.linear.weight = nn.Parameter(torch.zeros(4, 4).t().flip(0).t().contiguous().t())
    return model


IDS = torch.zeros(3, dtype=torch.int64)
REFUSED = {
    "training": (lambda: _tiny(function=Tiny()), "is in training mode; call eval"),
    "no range": (lambda: _tiny(inputs={**_tiny().inputs, "ids": Input(example=IDS)}), "input 'ids' indexes a table"),
    "range one too wide": (
        lambda: _tiny(inputs={**_tiny().inputs, "ids": Input(example=IDS, index_range=range(10))}),
        "the module refuses what its ranges allow",
    ),
    "range one too low": (
        lambda: _tiny(inputs={**_tiny().inputs, "ids": Input(example=IDS, index_range=IndexRange(min=-2, below=9))}),
        "the module refuses what its ranges allow",
    ),
    "names of outputs": (lambda: _tiny(outputs=("y", "z")), "the module has 1 outputs; named are: y, z"),
    "strides": (
        lambda: _tiny(function=_strided()),
        "linear.weight is on cpu with strides (1, 4); it must be contiguous",
    ),
    "unknown answer": (lambda: _tiny(answers=("z",)), "no value 'z' to answer with; there are: ids, x, y"),
    "rank": (
        lambda: _tiny(inputs={**_tiny().inputs, "x": Input(example=torch.ones(3, 1), dims=("batch",))}),
        "has dims ['batch']",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_save_refuses(name: str, tmp_path: Path) -> None:
    endpoint, words = REFUSED[name]
    with pytest.raises(BundleError) as error:
        trunnion_bundle.save(tmp_path / "1", endpoint(), name="tiny")
    assert words in str(error.value)
    assert not (tmp_path / "1" / "COMMITTED").exists()


def test_save_refuses_a_folder_that_is_not_empty(dlrm_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="a version is written once"):
        trunnion_bundle.save(dlrm_bundle, _tiny(), name="tiny")


def test_save_refuses_a_platform_of_another_machine(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"unknown platform 'cpu-mips'; choices: cpu-x86_64-avx512"):
        trunnion_bundle.save(tmp_path / "1", _tiny(), name="tiny", platforms=["cpu-mips"])


def test_a_constant_that_is_missing_is_named(dlrm_bundle: Path) -> None:
    files = weights.key_to_file(dlrm_bundle, ["weights.safetensors"])
    assert files.keys() == dlrm.build().state_dict().keys()
    with pytest.raises(BundleError, match=r"is also in"):
        weights.key_to_file(dlrm_bundle, ["weights.safetensors", "weights.safetensors"])
