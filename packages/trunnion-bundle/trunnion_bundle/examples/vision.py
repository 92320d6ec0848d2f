"""A vision encoder in Flax: pixels as bytes are normalized natively, patches go through a small transformer."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import trunnion_bundle
from trunnion_bundle import Batching, Endpoint, Input, Step, Tolerance

SIZE, PATCH, WIDTH, HEADS = 16, 4, 32, 2
TRAINING_STEPS = 20
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
"""Of ImageNet, in units of a pixel's byte."""


class VisionEncoder(nn.Module):
    """Patches by convolution, one block of attention and one of feed-forward, the mean over patches."""

    @nn.compact
    def __call__(self, pixels: jax.Array) -> jax.Array:
        """`pixels` FP32 [batch, 16, 16, 3] -> FP32 [batch, 32]."""
        x = nn.Conv(WIDTH, (PATCH, PATCH), (PATCH, PATCH))(pixels)
        x = x.reshape(x.shape[0], -1, WIDTH)  # [B, patches, width]
        x = x + self.param("positions", nn.initializers.normal(0.02), (x.shape[1], WIDTH))
        x = x + nn.MultiHeadDotProductAttention(HEADS)(nn.LayerNorm()(x))
        x = x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(2 * WIDTH)(nn.LayerNorm()(x))))
        return nn.LayerNorm()(x).mean(1)


def images(count: int, seed: int) -> np.ndarray:
    """Random pictures: UINT8 [count, 16, 16, 3]."""
    return np.random.default_rng(seed).integers(0, 256, (count, SIZE, SIZE, 3), np.uint8)


def normalized(pixels: np.ndarray) -> np.ndarray:
    """What the native step makes of pixels."""
    return (pixels.astype(np.float32) - np.array(MEAN, np.float32)) / np.array(STD, np.float32)


def train() -> Any:
    """Weights that were taught, briefly, to tell bright pictures from dark ones."""
    model, pixels = VisionEncoder(), normalized(images(32, seed=2))
    target = jnp.sign(pixels.mean((1, 2, 3)) - pixels.mean())
    params = model.init(jax.random.key(0), pixels[:1])
    optimizer = optax.adam(1e-2)
    state = optimizer.init(params)

    @jax.jit
    def descend(params: Any, state: Any) -> tuple[Any, Any]:
        gradients = jax.grad(lambda p: ((model.apply(p, pixels)[:, 0] - target) ** 2).mean())(params)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state

    for _ in range(TRAINING_STEPS):
        params, state = descend(params, state)
    return params


def recipe() -> dict[str, Any]:
    """Arguments of `trunnion_bundle.save`."""
    pixels = images(3, seed=1)
    normalize = {"axis": 3, "mean": list(MEAN), "std": list(STD)}
    endpoint = Endpoint(
        function=VisionEncoder().apply,
        params=train(),
        requests={"pixels": Input(example=pixels)},
        before=[Step(op="normalize", inputs=("pixels",), outputs=("normal",), scope="request", parameters=normalize)],
        inputs={"normal": Input(example=normalized(pixels))},
        outputs=("features",),
        after=[
            Step(
                op="l2_normalize", inputs=("features",), outputs=("embedding",), parameters={"axis": 1, "epsilon": 1e-6}
            ),
        ],
        batching=Batching(allowed_sizes=(1, 4)),
        tolerance=Tolerance(absolute=1e-4, relative=1e-3),
        description="A picture of 16 x 16 pixels as a vector of length 1.",
    )
    return {"endpoints": {"encode": endpoint}, "name": "vision", "framework": "flax"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder to write")
    trunnion_bundle.save(parser.parse_args().folder, **recipe())


if __name__ == "__main__":
    main()
