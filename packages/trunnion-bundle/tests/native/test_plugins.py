"""Plugin steps in both languages: one against scikit-learn, and faulty ones that are named while the server lives."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import tritonclient.grpc as triton
from serving import Server, serving, wait_for
from sklearn.feature_extraction import FeatureHasher
from stepped import write_stepped
from test_pjrt import plugin as pjrt_plugin
from tritonclient.utils import InferenceServerException

import trunnion_bundle
from trunnion_bundle import Batching, BundleError, Endpoint, Input, Step
from trunnion_bundle.check import FAILED, check
from trunnion_bundle.checks import RequestError
from trunnion_bundle.cli import main
from trunnion_bundle.tensors import Tensor

__all__ = ["pjrt_plugin"]

PACKAGE = Path(__file__).resolve().parents[2]
MACHINE = f"linux-{platform.machine()}"
WIDTH = 24
TEXTS = ["red shoes size 42", "a", "rote  Schuhe Größe 42 ", "shoes shoes shoes", "x" * 300, "ab abc abcd abcde"]
WEIGHTS = np.random.default_rng(0).standard_normal((WIDTH, 2)).astype(np.float32)
EXAMPLE = np.arange(12, dtype=np.float32).reshape(3, 4)
X = Tensor(name="x", dtype="FP32", dims=("batch", 4))

Compile = Callable[..., Path]


@pytest.fixture(scope="session")
def compile_c(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compiles a C file of this package to a shared library."""
    folder = tmp_path_factory.mktemp("libraries")

    def compiled(source: str, *flags: str) -> Path:
        library = folder / f"{'_'.join([Path(source).stem, *flags]).replace('=', '')}.so"
        if not library.exists():
            include = f"-I{PACKAGE / 'include'}"
            command = ["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", include, *flags]
            subprocess.run([*command, str(PACKAGE / source), "-o", str(library)], check=True)
        return library

    return compiled


def texts(words: list[str]) -> np.ndarray:
    found = np.empty(len(words), object)
    found[:] = [word.encode() for word in words]
    return found


def plugin_step(configuration: str, outputs: list[dict[str, Any]], ranges: list[Any], scope: str) -> Step:
    parameters = {
        "libraries": {MACHINE: "plugins/it.so"},
        "configuration": configuration,
        "outputs": outputs,
        "index_ranges": ranges,
    }
    return Step(op="plugin", inputs=("x",), outputs=("entering",), scope=scope, parameters=parameters)


def hashing(scope: str) -> Step:
    declared = {"dtype": "FP32", "dims": ["batch", WIDTH], "batch_axis": 0}
    return plugin_step(json.dumps({"width": WIDTH}), [declared], [None], scope)


def write_hashing(target: Path, library: Path, scope: str) -> Path:
    """Texts -> hashed features -> a linear layer of JAX."""
    endpoint = Endpoint(
        function=lambda params, features: jnp.asarray(features) @ params["w"],
        params={"w": WEIGHTS},
        requests={"x": Input(example=list(texts(TEXTS)))},
        before=[hashing(scope)],
        inputs={"entering": Input(example=np.zeros((2, WIDTH), np.float32))},
        outputs=("scores",),
        batching=Batching(allowed_sizes=(1, 8)),
    )
    trunnion_bundle.save(target, endpoint, name="hashing", assets={"plugins/it.so": library})
    return target


def write_faulty(target: Path, library: Path, configuration: str, scope: str = "batch") -> Path:
    declared = {"dtype": "INT64", "dims": ["batch", 2], "batch_axis": 0}
    step = plugin_step(configuration, [declared], [{"min": 0, "below": 5}], scope)
    answer = np.stack([EXAMPLE[:, 0] % 5, (EXAMPLE[:, 0] + 1) % 5], 1).astype(np.int64)
    assets = {"plugins/it.so": library}
    return write_stepped(target, X, [step], example=EXAMPLE, answer=answer, below=5, assets=assets)


def ask(server: Server, model: str, values: np.ndarray) -> Any:
    kind = "BYTES" if values.dtype == object else "FP32"
    given = triton.InferInput("x", list(values.shape), kind)
    given.set_data_from_numpy(values)
    return triton.InferenceServerClient(server.grpc).infer(model, [given])


@pytest.mark.parametrize("scope", ["request", "batch"])
def test_features_are_those_of_scikit_learn(
    programs: Path, tmp_path: Path, compile_c: Compile, pjrt_plugin: str, scope: str
) -> None:
    folder = write_hashing(tmp_path / "hashing", compile_c("examples/feature_hashing.c"), scope)
    words = [[word for word in text.split(" ") if word] for text in TEXTS]
    wanted = FeatureHasher(WIDTH, input_type="string", dtype=np.float32).transform(words).toarray() @ WEIGHTS
    runner = trunnion_bundle.load(folder, allow_plugins=True)
    np.testing.assert_allclose(runner(x=texts(TEXTS))["scores"], wanted, rtol=1e-5, atol=1e-5)
    assert not [finding for finding in check(folder, allow_plugins=True) if finding.state == FAILED]
    settings = json.dumps({"pjrt_plugin": pjrt_plugin})
    with serving(programs, folder, "--settings", settings, "--allow-plugins") as server:
        found = ask(server, "hashing", texts(TEXTS)).as_numpy("scores")
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
        if scope == "request":
            with pytest.raises(
                InferenceServerException, match=r"feature_hashing \(it.so\): text 1 is empty"
            ) as refused:
                ask(server, "hashing", texts(["a", ""]))
            assert "INVALID_ARGUMENT" in refused.value.status()


def test_plugins_run_only_where_they_are_allowed(
    programs: Path, tmp_path: Path, compile_c: Compile, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_faulty(tmp_path / "faulty", compile_c("tests/native/faulty_plugin.c"), "")
    with serving(programs, folder) as server:
        line = server.wait_for_line("it.so is code of the bundle's author")
        assert "--allow-plugins" in line
        # Not so much as mapped.
        assert "memfd:it.so" not in Path(f"/proc/{server.process.pid}/maps").read_text()
    with pytest.raises(BundleError, match=r"plugins/it.so is code of the bundle's author.*allow_plugins"):
        trunnion_bundle.load(folder)
    assert main(["run", str(folder)]) == 2
    assert "--allow-plugins" in capsys.readouterr().err
    assert main(["run", str(folder), "--allow-plugins"]) == 0
    assert json.loads(capsys.readouterr().out) == {"y": [[0, 1], [4, 0], [3, 4]]}
    assert [finding.what for finding in check(folder) if finding.state == FAILED] == ["load"]
    assert main(["show", str(folder), "--cold-start", "--allow-plugins"]) == 0
    assert "first_ask_seconds" in capsys.readouterr().out


FAULTS = {
    "fails": "faulty (it.so) failed: a disk is full",
    "endless": "faulty (it.so) failed: " + "e" * 1024,
    "nothing": "faulty (it.so) made no output 0",
    "rows": "output 0 is INT64 [4, 2], the step declares INT64 [batch, 2], batch 3",
    "columns": "output 0 is INT64 [3, 3], the step declares INT64 [batch, 2], batch 3",
    "rank": "output 0 is INT64 [3], the step declares INT64 [batch, 2]",
    "dtype": "output 0 is FP32 [3, 2], the step declares INT64 [batch, 2]",
    "unknown dtype": "output 0 is dtype 77 [3, 2], the step declares INT64 [batch, 2]",
    "index": "output 1 is asked for, the step has 1",
    "twice": "output 0 is asked for twice",
    "range": "faulty (it.so): output 0 ",
    "refuses": "faulty (it.so): 99 is too many",
}


@pytest.fixture(scope="module")
def faulty_server(programs: Path, tmp_path_factory: pytest.TempPathFactory, compile_c: Compile) -> Any:
    """One model for each fault and scope, as `SCOPE-FAULT`; and the folder of them."""
    repository, library = tmp_path_factory.mktemp("faulty"), compile_c("tests/native/faulty_plugin.c")
    for scope in ("request", "batch"):
        for fault in FAULTS:
            write_faulty(repository / f"{scope}-{fault.replace(' ', '_')}" / "1", library, fault, scope)
    with serving(programs, repository, "--allow-plugins", "--poll-ms", "0") as server:
        yield server, repository


@pytest.mark.parametrize("scope", ["request", "batch"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_an_error_with_the_plugins_name(faulty_server: Any, fault: str, scope: str) -> None:
    server, repository = faulty_server
    model = f"{scope}-{fault.replace(' ', '_')}"
    wrong, right = EXAMPLE.copy(), EXAMPLE + 5
    wrong[1, 2] = 99
    is_refused = fault == "refuses" and scope == "request"
    with pytest.raises(InferenceServerException) as served:
        ask(server, model, wrong)
    assert "faulty (it.so)" in str(served.value) and FAULTS[fault].removeprefix("faulty (it.so)") in str(served.value)
    assert ("INVALID_ARGUMENT" if is_refused else "INTERNAL") in served.value.status()
    runner = trunnion_bundle.load(repository / model / "1", allow_plugins=True)
    with pytest.raises(BundleError) as raised:
        runner(x=wrong)
    assert "faulty (it.so)" in str(raised.value) and FAULTS[fault].removeprefix("faulty (it.so)") in str(raised.value)
    assert isinstance(raised.value, RequestError) == is_refused
    np.testing.assert_array_equal(ask(server, model, right).as_numpy("y"), [[0, 1], [4, 0], [3, 4]])
    np.testing.assert_array_equal(runner(x=right)["y"], [[0, 1], [4, 0], [3, 4]])
    assert server.process.poll() is None


@pytest.mark.parametrize(
    ("flags", "configuration", "text"),
    [
        (("-DVERSION=7",), "", "it.so has version 7 of the plugins' interface, this program has 1"),
        ((), "closed", "faulty (it.so) cannot be opened: it is closed today"),
        (("-DCLOSE=NULL",), "", "plugin it.so has an interface with fields that are null"),
        (("-Dtrn_plugin_get_api=other",), "", "it.so exports no trn_plugin_get_api"),
    ],
    ids=["version", "closed", "null", "no-plugin"],
)
def test_what_is_no_plugin_of_ours_is_not_loaded(
    programs: Path, tmp_path: Path, compile_c: Compile, flags: tuple[str, ...], configuration: str, text: str
) -> None:
    folder = write_faulty(tmp_path / "faulty", compile_c("tests/native/faulty_plugin.c", *flags), configuration)
    with serving(programs, folder, "--allow-plugins") as server:
        assert text in server.wait_for_line("plugin ")
        assert server.get("/v2/health/live") is not None
    with pytest.raises(BundleError) as error:
        trunnion_bundle.load(folder, allow_plugins=True)
    assert text in str(error.value)


def test_no_library_for_this_machine(programs: Path, tmp_path: Path, compile_c: Compile, commit: Any) -> None:
    folder = write_faulty(tmp_path / "faulty", compile_c("tests/native/faulty_plugin.c"), "")
    contract = json.loads((folder / "bundle.json").read_text())
    other = "linux-aarch64" if MACHINE == "linux-x86_64" else "linux-x86_64"
    contract["signatures"]["ask"]["steps"][0]["parameters"]["libraries"] = {other: "plugins/it.so"}
    commit(folder, contract)
    text = f"no library for {MACHINE}; it has: {other}"
    with serving(programs, folder, "--allow-plugins") as server:
        assert text in server.wait_for_line("no library for")
    with pytest.raises(BundleError, match=text):
        trunnion_bundle.load(folder, allow_plugins=True)


def test_a_library_that_was_replaced_is_the_one_that_runs(programs: Path, tmp_path: Path, compile_c: Compile) -> None:
    # The dynamic linker knows libraries by their path, and this one keeps it.
    folder = tmp_path / "models" / "faulty" / "1"
    write_faulty(folder, compile_c("tests/native/faulty_plugin.c"), "")
    with serving(programs, tmp_path / "models", "--allow-plugins") as server:
        assert ask(server, "faulty", EXAMPLE).as_numpy("y")[0].tolist() == [0, 1]
        write_faulty(tmp_path / "new", compile_c("tests/native/faulty_plugin.c", "-DSALT=2"), "")
        (folder / "COMMITTED").unlink()
        shutil.rmtree(folder)
        shutil.move(tmp_path / "new", folder)
        wait_for(lambda: server.metric("bundle_loads_total", model="faulty", result="ok") == 2, 20, "the new one")
        assert ask(server, "faulty", EXAMPLE).as_numpy("y")[0].tolist() == [2, 3]


def test_a_library_that_was_replaced_is_the_one_that_python_runs(tmp_path: Path, compile_c: Compile) -> None:
    answers = []
    for flags in ((), ("-DSALT=2",)):
        folder = write_faulty(tmp_path / "new", compile_c("tests/native/faulty_plugin.c", *flags), "")
        shutil.rmtree(tmp_path / "faulty", ignore_errors=True)
        folder.rename(tmp_path / "faulty")
        answers.append(trunnion_bundle.load(tmp_path / "faulty", allow_plugins=True)(x=EXAMPLE)["y"][0].tolist())
    assert answers == [[0, 1], [2, 3]]
