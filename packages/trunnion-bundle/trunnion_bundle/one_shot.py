"""`trunnion bundle run`: one request from JSON or a file, its answer as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from trunnion_bundle import requests, runner
from trunnion_bundle.errors import BundleError
from trunnion_bundle.requests import NUMPY, Array, Values
from trunnion_bundle.signatures import Signature
from trunnion_bundle.tensors import BYTES, Tensor


def answer(
    folder: Path,
    signature: str | None,
    platform: str | None,
    text: str | None,
    file: Path | None,
    *,
    allow_plugins: bool = False,
) -> str:
    """The answer of a bundle to the JSON `text`, to `file`, or to its first golden request.

    Raises:
        BundleError: the request cannot be read, or is not what the signature says.
    """
    opened = runner.load(folder, platform=platform, allow_plugins=allow_plugins)
    name = signature or opened.bundle.default_signature
    if name not in opened.bundle.signatures:
        raise BundleError(f"unknown signature {name!r}; choices: {', '.join(opened.bundle.signatures)}")
    contract = opened.bundle.signatures[name]
    if text is not None:
        values = from_json(text, contract)
    else:
        values = requests.read(file or folder / contract.golden[0], "input", contract.inputs)
    return json.dumps({key: to_json(array) for key, array in opened.run(name, values).items()})


def from_json(text: str, signature: Signature) -> Values:
    """`{"input": nested lists}`; BYTES are strings."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise BundleError(f"no JSON: {error}") from None
    if not isinstance(found, dict):
        raise BundleError(f"the request is {type(found).__name__}; it must be an object of inputs")
    known = {tensor.name: tensor for tensor in signature.inputs}
    if unknown := sorted(set(found) - set(known)):
        raise BundleError(f"unknown input {unknown[0]!r}; inputs: {', '.join(known)}")
    return {name: _array(value, known[name]) for name, value in found.items()}


def _array(value: Any, tensor: Tensor) -> Array:
    if tensor.dtype == BYTES:
        texts = np.array(value, dtype=object)
        encoded = np.empty(texts.size, object)
        encoded[:] = [str(element).encode() for element in texts.reshape(-1)]
        return encoded.reshape(texts.shape)
    try:
        return np.array(value, NUMPY[tensor.dtype])
    except (ValueError, TypeError, OverflowError) as error:
        raise BundleError(f"input {tensor.name!r} is no {tensor.dtype}: {error}") from None


def to_json(array: Array) -> Any:
    """Nested lists; floats of 16 bits as the floats that they are."""
    return (array.astype(np.float32) if array.dtype.kind == "V" or array.dtype.itemsize == 2 else array).tolist()
