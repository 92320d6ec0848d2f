"""Bundles for the simulated device whose one signature has steps around an echo of INT64 [batch, columns]."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from trunnion_bundle import folder
from trunnion_bundle.contract import Bundle, Producer
from trunnion_bundle.lowerings import SimLowering, SimModule, SimOutput
from trunnion_bundle.policy import Batching
from trunnion_bundle.requests import write
from trunnion_bundle.signatures import Module, Signature
from trunnion_bundle.steps import Step
from trunnion_bundle.tensors import IndexRange, Pad, Symbol, Tensor, Tolerance


def write_stepped(
    target: Path,
    x: Tensor,
    before: Sequence[Step],
    *,
    example: np.ndarray,
    answer: np.ndarray,
    entering: str = "entering",
    below: int | tuple[int, ...] | None = None,
    symbols: Mapping[str, Symbol] | None = None,
    assets: Mapping[str, Path] | None = None,
) -> Path:
    """`x` -> `before` -> `entering` INT64 with indices `below` -> an echo of it, `y`."""
    for path, source in (assets or {}).items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target / path)
    write(target / "warmup/ask/0.safetensors", {"input": {"x": example}})
    write(target / "golden/ask/0.safetensors", {"input": {"x": example}, "output": {"y": answer}})
    dims = ("batch", answer.shape[1])
    bounds = None if below is None else IndexRange(below=below)
    call = Step(op="module", inputs=(entering,), outputs=("y",), parameters={"module": "echo"})
    signature = Signature(
        inputs=(x,),
        outputs=(Tensor(name="y", dtype="INT64", dims=dims, tolerance=Tolerance()),),
        steps=(*before, call),
        batching=Batching(allowed_sizes=(1, 4)),
        symbols=symbols or {},
        warmup=("warmup/ask/0.safetensors",),
        golden=("golden/ask/0.safetensors",),
    )
    module = Module(
        inputs=(Tensor(name="index", dtype="INT64", dims=dims, index_range=bounds, pad=Pad(rule="zero")),),
        outputs=(Tensor(name="same", dtype="INT64", dims=dims),),
        largest_batch=64,
    )
    echo = SimModule(base_us=100, row_us=0, outputs=(SimOutput(function="echo", input="index"),))
    bundle = Bundle(
        name="stepped",
        producer=Producer(framework="none", framework_version="", tool_version="0"),
        modules={"echo": module},
        signatures={"ask": signature},
        default_signature="ask",
        lowerings={"sim": SimLowering(modules={"echo": echo})},
        files=folder.facts_of(target),
    )
    folder.commit_new(target, bundle)
    return target
