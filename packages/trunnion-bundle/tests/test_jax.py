"""Bundles of JAX, Flax and Keras answer as the function did where it was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trunnion_bundle
from trunnion_bundle import Batching, BundleError, Endpoint, Input, Symbol, edits, folder
from trunnion_bundle.check import check
from trunnion_bundle.examples import decode, keras_ranker, vision


def save(path: Path, endpoint: Endpoint, **options: Any) -> trunnion_bundle.Runner:
    trunnion_bundle.save(path, endpoint, name="test", **options)
    assert not [finding for finding in check(path) if finding.state == "failed"]
    return trunnion_bundle.load(path)


def test_fixed_step_decode_counts(tmp_path: Path) -> None:
    trunnion_bundle.save(tmp_path / "1", **decode.recipe())
    prompt = (np.arange(6)[:, None] * 5 + np.arange(decode.PROMPT)) % decode.VOCABULARY
    found = trunnion_bundle.load(tmp_path / "1")(prompt=prompt)
    wanted = (prompt[:, -1:] + 1 + np.arange(decode.STEPS)) % decode.VOCABULARY
    np.testing.assert_array_equal(found["tokens"], wanted)
    assert found["tokens"].dtype == np.int32
    assert not [finding for finding in check(tmp_path / "1") if finding.state == "failed"]


def test_vision_encoder_of_flax(tmp_path: Path) -> None:
    recipe = vision.recipe()
    opened = trunnion_bundle.save(tmp_path / "1", **recipe)
    assert opened.bundle.producer.framework == "flax"
    pixels = vision.images(5, seed=9)
    features = vision.VisionEncoder().apply(recipe["endpoints"]["encode"].params, vision.normalized(pixels))
    wanted = np.asarray(features / jnp.linalg.norm(features, axis=1, keepdims=True))
    np.testing.assert_allclose(trunnion_bundle.load(tmp_path / "1")(pixels=pixels)["embedding"], wanted, atol=1e-4)
    assert not [finding for finding in check(tmp_path / "1") if finding.state == "failed"]


def test_ranker_of_keras(tmp_path: Path) -> None:
    recipe = keras_ranker.recipe()
    trunnion_bundle.save(tmp_path / "1", **recipe)
    runner = trunnion_bundle.load(tmp_path / "1")
    random = np.random.default_rng(5)
    names, numbers = random.integers(-(2**63), 2**63 - 1, (5, 2)), random.standard_normal((5, 6)).astype(np.float32)
    found = runner(names=names, numbers=numbers)
    ids = runner._computes["rank"][0]([names])[0].astype(np.int32)
    scores = np.asarray(keras_ranker.build()([ids, numbers], training=False))
    wanted = np.argsort(-scores, axis=1)[:, : keras_ranker.BEST]
    np.testing.assert_array_equal(found["actions"], wanted)
    np.testing.assert_allclose(found["best"], np.take_along_axis(scores, wanted, 1), rtol=1e-4)
    assert not [finding for finding in check(tmp_path / "1") if finding.state == "failed"]


def test_programs_are_ones_that_jax_reads(tmp_path: Path) -> None:
    trunnion_bundle.save(tmp_path / "1", **decode.recipe())
    bundle = folder.read(tmp_path / "1").bundle
    lowering = bundle.lowerings["stablehlo"]
    assert lowering.platforms == ("cpu", "cuda", "tpu")
    module = lowering.modules["continue"]
    assert [program.batch for program in module.programs] == [1, 4]
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    for program in module.programs:
        with ir.Context() as context:
            # Portable StableHLO: VHLO, read back by its own deserializer.
            code = stablehlo.deserialize_portable_artifact(context, (tmp_path / "1" / program.path).read_bytes())
        # The index of the platform comes before the arguments that were kept.
        main = str(code).partition("@main(")[2].partition(") ->")[0]
        assert main.count("%arg") == 1 + len(program.kept)
        assert main.startswith("%arg0: tensor<i32>")


def test_one_platform_has_no_index(tmp_path: Path) -> None:
    endpoint = Endpoint(
        function=lambda params, x, unused: x @ params["w"],
        params={"w": np.eye(3, dtype=np.float32) * 2, "b": np.ones(3)},
        inputs={"x": Input(example=np.ones((2, 3), np.float32)), "unused": Input(example=np.ones((2, 9), np.float32))},
        outputs=("y",), batching=Batching(allowed_sizes=(2,)),
    )  # fmt: skip
    with jax.enable_x64(True):
        trunnion_bundle.save(tmp_path / "1", endpoint, name="test", platforms=["cpu"])
    module = folder.read(tmp_path / "1").bundle.lowerings["stablehlo"].modules["predict"]
    # Arguments: b, w, x, unused; only w and x are taken.
    assert module.arguments == (("weight", "b"), ("weight", "w"), ("input", "x"), ("input", "unused"))
    assert module.programs[0].kept == (1, 2)
    request = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "unused": np.zeros((2, 9), np.float32)}
    np.testing.assert_array_equal(trunnion_bundle.load(tmp_path / "1").run(None, request)["y"], request["x"] * 2)


def test_sizes_that_differ_between_requests(tmp_path: Path) -> None:
    endpoint = Endpoint(
        function=lambda x: (x.sum(1), x * 2, jnp.zeros(x.shape[::-1])),
        inputs={"x": Input(example=np.ones((3, 4), np.float32), dims=("batch", "n"))},
        outputs=("total", "twice", "turned"), symbols={"n": Symbol(min=2, max=8)}, sizes={"n": (4, 7)},
        batching=Batching(allowed_sizes=(1, 4)), more_examples=[{"x": np.ones((2, 7), np.float32)}],
    )  # fmt: skip
    runner = save(tmp_path / "1", endpoint)
    outputs = {tensor.name: tensor.dims for tensor in runner.bundle.signatures["predict"].outputs}
    assert outputs == {"total": ("batch",), "twice": ("batch", "n"), "turned": ("n", "batch")}
    assert len(runner.bundle.lowerings["stablehlo"].modules["predict"].programs) == 4
    x = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    found = runner(x=x)
    np.testing.assert_allclose(found["total"], x.sum(1), rtol=1e-5)
    assert found["turned"].shape == (7, 5)
    with pytest.raises(BundleError, match=r"no program for 1 rows and sizes \{'n': 5\}; there are"):
        runner(x=x[:1, :5])


def test_set_refuses_a_size_that_was_not_compiled(tmp_path: Path) -> None:
    endpoint = Endpoint(
        function=lambda x: x * 2, inputs={"x": Input(example=np.ones((2, 3), np.float32))}, outputs=("y",),
        batching=Batching(allowed_sizes=(1, 4)),
    )  # fmt: skip
    save(tmp_path / "1", endpoint)
    edits.set_policy(tmp_path / "1", {"predict": {"allowed_sizes": [4]}})
    with pytest.raises(BundleError, match=r"stablehlo.modules.predict has no program for \[8\] rows; it has: \[1, 4\]"):
        edits.set_policy(tmp_path / "1", {"predict": {"allowed_sizes": [4, 8]}})


def test_no_batch_axis(tmp_path: Path) -> None:
    endpoint = Endpoint(
        function=lambda x: x.sum(), inputs={"x": Input(example=np.ones((3, 2), np.float32), dims=(3, 2))},
        outputs=("total",), largest_batch=None, batching=Batching(mode="alone", allowed_sizes=()),
    )  # fmt: skip
    runner = save(tmp_path / "1", endpoint)
    assert runner(x=np.full((3, 2), 2, np.float32))["total"] == 12


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "uint32", "bool"])
def test_dtypes(tmp_path: Path, dtype: str) -> None:
    x = jnp.array([[0, 1], [1, 1]]).astype(dtype)
    endpoint = Endpoint(
        function=lambda params, x: (x, (x.astype(params.dtype) * params).astype(x.dtype)),
        params=jnp.ones(2, jnp.bfloat16),
        inputs={"x": Input(example=x)}, outputs=("same", "times"), batching=Batching(allowed_sizes=(2,)),
    )  # fmt: skip
    runner = save(tmp_path / "1", endpoint)
    found = runner(x=np.asarray(x))
    np.testing.assert_array_equal(found["same"], np.asarray(x))
    np.testing.assert_array_equal(found["times"], np.asarray(x))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"inputs": {"x": Input(example=np.ones((2, 3)))}}, "is FP64, and JAX computes with 32 bits here; give FP32"),
        ({"outputs": ("y", "z")}, "the function has 1 outputs; named are: y, z"),
        ({"function": lambda x: jnp.zeros(2 * x.shape[0])}, "y has a dim that follows 'batch' but is not it"),
        (
            {
                "inputs": {"x": Input(example=np.ones((2, 3), np.float32), dims=("batch", "n"))},
                "symbols": {"n": Symbol(min=1, max=4)},
            },
            "sizes of 'n' are []; at least one, from 1 to 4",
        ),
        ({"requests": {"z": Input(example=np.ones((2, 3), np.float32))}}, "no step makes 'x'; there are: z"),
    ],
    ids=["64 bits", "outputs", "another dim", "no sizes", "no such value"],
)
def test_save_refuses(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    inputs = {"x": Input(example=np.ones((2, 3), np.float32))}
    endpoint = Endpoint(**{"function": lambda x: x * 2, "inputs": inputs, "outputs": ("y",), **changes})
    with pytest.raises(BundleError) as error:
        trunnion_bundle.save(tmp_path / "1", endpoint, name="test")
    assert words in str(error.value)
