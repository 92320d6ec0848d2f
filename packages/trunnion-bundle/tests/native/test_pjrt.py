"""StableHLO programs of JAX on a PJRT plugin without Python: equal to JAX, or refused with the reason."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tritonclient.grpc as triton
from serving import Server, serving
from tritonclient.utils import InferenceServerException

import trunnion_bundle
from trunnion_bundle import Endpoint, IndexRange, Input
from trunnion_bundle.tensors import Pad, Symbol

ROWS = 37
RANDOM = np.random.default_rng(0)
PARAMS = {
    "table": RANDOM.standard_normal((ROWS, 8)).astype(np.float32),
    "layers": [{"w": RANDOM.standard_normal((8, 3)).astype(np.float32), "b": np.ones(3, np.float32)}],
    "unused": np.zeros(5, np.float32),
}


def function(params: Any, tokens: Any, scale: Any) -> Any:
    """`tokens` INT32 [batch, length], `scale` FP32 [batch] -> scores FP32 [batch, 3], longest INT32 [batch]."""
    embedded = params["table"][tokens].mean(1)
    layer = params["layers"][0]
    return jnp.tanh(embedded @ layer["w"] + layer["b"]) * scale[:, None], tokens.max(1)


def example(rows: int, length: int = 4) -> dict[str, np.ndarray]:
    random = np.random.default_rng(rows)
    tokens = random.integers(0, ROWS, (rows, length)).astype(np.int32)
    return {"tokens": tokens, "scale": random.standard_normal(rows).astype(np.float32)}


@pytest.fixture(scope="session")
def plugin() -> str:
    """A PJRT plugin for this processor."""
    found = importlib.util.find_spec("lammps_jax_pjrt_cpu")
    assert found is not None, "lammps-jax-pjrt-cpu is not installed"
    return str(Path(found.origin).parent / "pjrt_c_api_cpu_plugin.so")


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The function for three platforms, three sizes and two lengths."""
    folder = tmp_path_factory.mktemp("jax") / "scorer"
    values = example(4)
    endpoint = Endpoint(
        function=function,
        params=PARAMS,
        inputs={
            "tokens": Input(example=values["tokens"], dims=("batch", "length"), index_range=IndexRange(below=ROWS)),
            "scale": Input(example=values["scale"]),
        },
        outputs=("scores", "longest"),
        symbols={"length": Symbol(min=1, max=16)},
        sizes={"length": (4, 8)},
        batching=trunnion_bundle.Batching(allowed_sizes=(1, 4, 16), runners=2),
    )
    trunnion_bundle.save(folder, endpoints={"score": endpoint}, name="scorer")
    return folder


@pytest.fixture(scope="session")
def server(programs: Path, bundle: Path, plugin: str) -> Iterator[Server]:
    with serving(programs, bundle, "--settings", json.dumps({"pjrt_plugin": plugin})) as running:
        yield running
        assert running.process.poll() is None, "".join(running.lines)


def ask(server: Server, values: dict[str, np.ndarray]) -> Any:
    inputs = []
    for name, kind in (("tokens", "INT32"), ("scale", "FP32")):
        inputs.append(triton.InferInput(name, list(values[name].shape), kind))
        inputs[-1].set_data_from_numpy(values[name])
    return triton.InferenceServerClient(server.grpc).infer("scorer", inputs)


@pytest.mark.parametrize("length", [4, 8])
@pytest.mark.parametrize("rows", [1, 3, 16, 21])
def test_answers_are_those_of_jax(server: Server, rows: int, length: int) -> None:
    values = example(rows, length)
    scores, longest = jax.jit(function)(PARAMS, values["tokens"], values["scale"])
    found = ask(server, values)
    np.testing.assert_allclose(found.as_numpy("scores"), scores, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found.as_numpy("longest"), longest)


def test_a_size_without_a_program_is_invalid(server: Server) -> None:
    with pytest.raises(InferenceServerException, match=r"no program for .*length 5.*; there are .*length 4") as refused:
        ask(server, example(2, 5))
    assert "INVALID_ARGUMENT" in refused.value.status()
    assert ask(server, example(2)) is not None


def test_nothing_of_python_is_loaded(server: Server) -> None:
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "engine_pjrt.so" in maps and "libpython" not in maps and "libjax" not in maps


@pytest.mark.parametrize(
    ("pad", "filled"),
    [
        (Pad(rule="zero"), lambda x: 0),
        (Pad(rule="repeat_row"), lambda x: x[0]),
        (Pad(rule="value", value=2.5), lambda x: 2.5),
    ],
    ids=["zero", "repeat-row", "value"],
)
def test_rows_of_padding_are_what_the_rule_says(
    programs: Path, tmp_path: Path, plugin: str, pad: Pad, filled: Callable[[np.ndarray], Any]
) -> None:
    # A function that a bundle should not have, since its rows see each other: so they show what the padding is.
    x = np.arange(12, dtype=np.float32).reshape(4, 3) + 1
    endpoint = Endpoint(
        function=lambda x: x * 0 + x.sum(0),
        inputs={"x": Input(example=x, pad=pad)},
        outputs=("y",),
        batching=trunnion_bundle.Batching(allowed_sizes=(4, 8)),
    )
    trunnion_bundle.save(tmp_path / "sums", endpoints={"sum": endpoint}, name="sums")
    with serving(programs, tmp_path / "sums", "--settings", json.dumps({"pjrt_plugin": plugin})) as server:
        client = triton.InferenceServerClient(server.grpc)
        # Full batches between, whose rows must not come back as padding.
        for rows, size in ((8, 8), (5, 8), (4, 4), (1, 4), (8, 8), (7, 8)):
            given = (np.arange(rows * 3, dtype=np.float32).reshape(rows, 3) + rows) / 4
            tensor = triton.InferInput("x", [rows, 3], "FP32")
            tensor.set_data_from_numpy(given)
            found = client.infer("sums", [tensor]).as_numpy("y")
            wanted = given.sum(0) + (size - rows) * filled(given)
            np.testing.assert_allclose(found, np.broadcast_to(wanted, (rows, 3)), rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "no PJRT plugin is given"),
        ({"pjrt_plugin": "none.so"}, "the PJRT plugin cannot be loaded: none.so"),
        ({"pjrt_plugin": "libm.so.6"}, "libm.so.6 is no PJRT plugin"),
    ],
)
def test_without_a_plugin_the_reason_is_said(programs: Path, bundle: Path, settings: dict[str, str], text: str) -> None:
    with serving(programs, bundle, "--settings", json.dumps(settings)) as server:
        assert text in server.wait_for_line("no lowering runs here: stablehlo")
