"""A fixed-step decode in plain JAX: a GRU that was taught to count goes on for eight numbers, all in one call."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import trunnion_bundle
from trunnion_bundle import Batching, Endpoint, IndexRange, Input, Step, Tolerance

VOCABULARY, WIDTH, PROMPT, STEPS = 16, 24, 4, 8
TRAINING_STEPS, LEARNING_RATE = 300, 0.03
Params = dict[str, Any]


def initial_params(seed: int = 0) -> Params:
    """Random weights of a GRU over an embedding, and of the projection to the vocabulary."""
    random = np.random.default_rng(seed)

    def matrix(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32)

    gates = {
        name: {"x": matrix(WIDTH, WIDTH), "h": matrix(WIDTH, WIDTH), "b": np.zeros(WIDTH, np.float32)} for name in "zrn"
    }
    return {"embedding": matrix(VOCABULARY, WIDTH), "gates": gates, "head": matrix(WIDTH, VOCABULARY)}


def step(params: Params, h: jax.Array, token: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One token: `h` FP32 [batch, width], `token` INT32 [batch] -> new `h`, logits FP32 [batch, vocabulary]."""
    x, gates = params["embedding"][token], params["gates"]
    z = jax.nn.sigmoid(x @ gates["z"]["x"] + h @ gates["z"]["h"] + gates["z"]["b"])
    r = jax.nn.sigmoid(x @ gates["r"]["x"] + h @ gates["r"]["h"] + gates["r"]["b"])
    n = jnp.tanh(x @ gates["n"]["x"] + r * (h @ gates["n"]["h"]) + gates["n"]["b"])
    h = (1 - z) * n + z * h
    return h, h @ params["head"]


def decode(params: Params, prompt: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`prompt` INT32 [batch, 4] -> tokens INT32 [batch, 8] and their mean log probability FP32 [batch]."""
    h = jnp.zeros((prompt.shape[0], WIDTH), jnp.float32)
    for i in range(PROMPT - 1):
        h, _ = step(params, h, prompt[:, i])

    def body(state: tuple[jax.Array, jax.Array], _: None) -> tuple[Any, Any]:
        h, token = state
        h, logits = step(params, h, token)
        chosen = jnp.argmax(logits, -1).astype(jnp.int32)
        return (h, chosen), (chosen, jax.nn.log_softmax(logits).max(-1))

    _, (tokens, scores) = jax.lax.scan(body, (h, prompt[:, -1]), None, length=STEPS)
    return tokens.T, scores.mean(0)


def train(params: Params) -> Params:
    """Teach it to count: after k comes k + 1."""
    sequence = (np.arange(VOCABULARY)[:, None] + np.arange(PROMPT + STEPS)) % VOCABULARY

    def loss(params: Params) -> jax.Array:
        h, total = jnp.zeros((VOCABULARY, WIDTH), jnp.float32), 0.0
        for i in range(sequence.shape[1] - 1):
            h, logits = step(params, h, sequence[:, i])
            total -= jax.nn.log_softmax(logits)[jnp.arange(VOCABULARY), sequence[:, i + 1]].mean()
        return total

    @jax.jit
    def descend(params: Params, momentum: Params) -> tuple[Params, Params]:
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, jax.grad(loss)(params))
        return jax.tree.map(lambda p, m: p - LEARNING_RATE * m, params, momentum), momentum

    momentum = jax.tree.map(jnp.zeros_like, params)
    for _ in range(TRAINING_STEPS):
        params, momentum = descend(params, momentum)
    return params


def recipe() -> dict[str, Any]:
    """Arguments of `trunnion_bundle.save`."""
    prompt = (np.arange(5)[:, None] * 3 + np.arange(PROMPT)) % VOCABULARY
    bounds = IndexRange(below=VOCABULARY)
    endpoint = Endpoint(
        function=decode,
        params=train(initial_params()),
        requests={"prompt": Input(example=prompt.astype(np.int64), index_range=bounds)},
        # Clients count in 64 bits, JAX in 32.
        before=[
            Step(op="cast", inputs=("prompt",), outputs=("tokens32",), scope="request", parameters={"dtype": "INT32"})
        ],
        inputs={"tokens32": Input(example=prompt.astype(np.int32), index_range=bounds)},
        outputs=("tokens", "score"),
        batching=Batching(allowed_sizes=(1, 4)),
        tolerance=Tolerance(absolute=1e-4, relative=1e-4),
        description="Eight numbers that continue a sequence of four.",
    )
    return {"endpoints": {"continue": endpoint}, "name": "decode"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder to write")
    trunnion_bundle.save(parser.parse_args().folder, **recipe())


if __name__ == "__main__":
    main()
