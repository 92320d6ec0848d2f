"""Writes a bundle for the simulated device: no framework, no weights, answers that are known beforehand."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from trunnion_bundle import VERSION, folder, requests
from trunnion_bundle.contract import Bundle, Producer
from trunnion_bundle.lowerings import SimLowering, SimModule, SimOutput
from trunnion_bundle.policy import Batching
from trunnion_bundle.requests import Values
from trunnion_bundle.signatures import Module, Signature
from trunnion_bundle.steps import Step
from trunnion_bundle.tensors import IndexRange, Pad, Symbol, Tensor, Tolerance

BASE_US, ROW_US = 1000, 8
SCALE, OFFSET = 0.5, 1.0
ROWS = (1000, 200, 50)
"""Of the tables that `ids` index, were there any."""
ALLOWED = (1, 8, 32, 128, 256)
CLOSE = Tolerance(absolute=1e-5, relative=1e-5)

X = Tensor(name="x", dtype="FP32", dims=("batch", 4))
IDS = Tensor(name="ids", dtype="INT64", dims=("batch", len(ROWS)), index_range=IndexRange(below=ROWS))
TOKENS = Tensor(name="tokens", dtype="INT64", dims=("batch", "length"), index_range=IndexRange(below=30522))
LENGTH = {"length": Symbol(min=1, max=16)}
ZERO = Pad(rule="zero")


def modules() -> dict[str, Module]:
    """`main` takes rows of one shape, `sequence` rows as long as the request says."""
    return {
        "main": Module(
            inputs=(_padded(X), _padded(IDS)),
            outputs=(
                Tensor(name="y", dtype="FP32", dims=("batch",)),
                Tensor(name="same", dtype="INT64", dims=IDS.dims),
            ),
            largest_batch=1024,
        ),
        "sequence": Module(
            inputs=(_padded(TOKENS),),
            outputs=(Tensor(name="total", dtype="FP32", dims=("batch", 2)),),
            largest_batch=1024,
            symbols=LENGTH,
        ),
    }


def _padded(tensor: Tensor) -> Tensor:
    return Tensor(name=tensor.name, dtype=tensor.dtype, dims=tensor.dims, index_range=tensor.index_range, pad=ZERO)


def lowering() -> SimLowering:
    """1 ms and 8 us a row."""
    row_sum = SimOutput(function="row_sum", input="x", scale=SCALE, offset=OFFSET)
    echo = SimOutput(function="echo", input="ids")
    total = SimOutput(function="row_sum", input="tokens")
    return SimLowering(
        modules={
            "main": SimModule(base_us=BASE_US, row_us=ROW_US, outputs=(row_sum, echo)),
            "sequence": SimModule(base_us=BASE_US, row_us=ROW_US, outputs=(total,)),
        }
    )


def answers(values: Mapping[str, np.ndarray]) -> Values:
    """What a signature must answer."""
    if "tokens" in values:
        totals = values["tokens"].sum(axis=1).astype(np.float32)
        return {"total": np.stack([totals, totals], axis=1)}
    y = (OFFSET + SCALE * values["x"].astype(np.float64).sum(axis=1)).astype(np.float32)
    return {"y": y, "same": values["ids"]}


def write(target: Path, *, batching: Batching | None = None) -> Bundle:
    """Write the bundle to the empty or absent folder `target`."""
    random = np.random.default_rng(0)
    batching = batching or Batching(allowed_sizes=ALLOWED)

    def example(name: str, rows: int) -> Values:
        if name == "total":
            return {"tokens": random.integers(0, 30522, (rows, 7))}
        ids = np.stack([random.integers(0, below, rows) for below in ROWS], axis=1)
        return {"x": random.standard_normal((rows, 4), np.float32), "ids": ids}

    def signature(name: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], module: str) -> Signature:
        requests.write(target / f"warmup/{name}/0.safetensors", {"input": example(name, 3)})
        asked = example(name, 5)
        requests.write(target / f"golden/{name}/0.safetensors", {"input": asked, "output": answers(asked)})
        names = tuple(tensor.name for tensor in outputs)
        step = Step(op="module", inputs=tuple(tensor.name for tensor in inputs), outputs=names,
                    parameters={"module": module})  # fmt: skip
        return Signature(
            inputs=inputs, outputs=outputs, steps=(step,), batching=batching,
            symbols=LENGTH if name == "total" else {},
            warmup=(f"warmup/{name}/0.safetensors",), golden=(f"golden/{name}/0.safetensors",),
        )  # fmt: skip

    y = Tensor(name="y", dtype="FP32", dims=("batch",), tolerance=CLOSE)
    same = Tensor(name="same", dtype="INT64", dims=IDS.dims, tolerance=Tolerance())
    total = Tensor(name="total", dtype="FP32", dims=("batch", 2), tolerance=CLOSE)
    signatures = {
        "score": signature("score", (X, IDS), (y, same), "main"),
        "total": signature("total", (TOKENS,), (total,), "sequence"),
    }
    bundle = Bundle(
        name="sim",
        description="A simulated device: 1 ms and 8 us a row.",
        producer=Producer(framework="none", framework_version="", tool_version=VERSION),
        modules=modules(),
        signatures=signatures,
        default_signature="score",
        lowerings={"sim": lowering()},
        files=folder.facts_of(target),
    )
    return folder.commit_new(target, bundle).bundle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder to write")
    write(parser.parse_args().folder)


if __name__ == "__main__":
    main()
