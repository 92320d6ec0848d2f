"""A ranker in Keras 3 on JAX: hashed ids of users and items, numbers, and the best of ten actions."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import trunnion_bundle
from trunnion_bundle import Batching, Endpoint, IndexRange, Input, Step, Tolerance

# Keras chooses its backend when it is imported.
os.environ.setdefault("KERAS_BACKEND", "jax")

import keras

ROWS = (97, 53)
"""Of the tables of users and items."""
ACTIONS, BEST, NUMBERS = 10, 3, 6
SEED = 7


def build() -> keras.Model:
    """The model, trained for one epoch on made-up clicks."""
    keras.utils.set_random_seed(SEED)
    ids = keras.Input((len(ROWS),), dtype="int32", name="ids")
    numbers = keras.Input((NUMBERS,), name="numbers")
    tables = [keras.layers.Embedding(rows, 8, name=f"table{i}")(ids[:, i]) for i, rows in enumerate(ROWS)]
    x = keras.layers.Concatenate()([*tables, numbers])
    x = keras.layers.BatchNormalization()(keras.layers.Dense(32, activation="relu")(x))
    scores = keras.layers.Dense(ACTIONS, activation="sigmoid", name="scores")(x)
    model = keras.Model([ids, numbers], scores)
    model.compile(optimizer="adam", loss="binary_crossentropy", jit_compile=False)
    random = np.random.default_rng(SEED)
    rows = {"ids": ids_of(random, 64), "numbers": random.standard_normal((64, NUMBERS)).astype(np.float32)}
    model.fit([rows["ids"], rows["numbers"]], random.integers(0, 2, (64, ACTIONS)), batch_size=32, verbose=0)
    return model


def ids_of(random: np.random.Generator, rows: int) -> np.ndarray:
    """INT32 [rows, 2], each column within its table."""
    return np.stack([random.integers(0, below, rows) for below in ROWS], 1).astype(np.int32)


def recipe() -> dict[str, Any]:
    """Arguments of `trunnion_bundle.save`."""
    model = build()
    trainable = {variable.path: variable.value for variable in model.trainable_variables}
    fixed = {variable.path: variable.value for variable in model.non_trainable_variables}

    def function(params: dict[str, Any], ids: Any, numbers: Any) -> Any:
        values = ([params["trainable"][name] for name in trainable], [params["fixed"][name] for name in fixed])
        return model.stateless_call(*values, [ids, numbers], training=False)[0]

    random = np.random.default_rng(3)
    numbers = random.standard_normal((6, NUMBERS)).astype(np.float32)
    names = random.integers(-(2**63), 2**63 - 1, (6, len(ROWS)))
    hashing = {"rows": list(ROWS), "seed": 0}
    endpoint = Endpoint(
        function=function,
        params={"trainable": trainable, "fixed": fixed},
        requests={"names": Input(example=names), "numbers": Input(example=numbers)},
        before=[
            Step(op="hash_mod", inputs=("names",), outputs=("hashed",), scope="request", parameters=hashing),
            Step(op="cast", inputs=("hashed",), outputs=("ids",), scope="request", parameters={"dtype": "INT32"}),
        ],
        inputs={
            "ids": Input(example=ids_of(random, 6), index_range=IndexRange(below=ROWS)),
            "numbers": Input(example=numbers),
        },
        outputs=("scores",),
        after=[Step(op="top_k", inputs=("scores",), outputs=("best", "actions"), parameters={"k": BEST})],
        batching=Batching(allowed_sizes=(1, 4)),
        tolerance=Tolerance(absolute=1e-5, relative=1e-4),
        description="The three best actions, best first, and how likely each is.",
    )  # fmt: skip
    return {"endpoints": {"rank": endpoint}, "name": "keras-ranker", "framework": "keras"}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder to write")
    trunnion_bundle.save(parser.parse_args(arguments).folder, **recipe())


if __name__ == "__main__":
    main()
