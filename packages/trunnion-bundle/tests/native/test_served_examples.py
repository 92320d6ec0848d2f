"""Examples are served in C++ and answer what Python answers, from its clients' inputs to the last step."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from serving import serving, wait_for
from test_pjrt import plugin

import trunnion_bundle
from trunnion_bundle import requests

EXAMPLES = ("decode", "keras_ranker", "vision")
"""Beside the ranker of test_aoti.py."""
__all__ = ["plugin"]


def ask(
    client: triton.InferenceServerClient, model: str, values: Mapping[str, np.ndarray], types: Mapping[str, str]
) -> Any:
    inputs = []
    for name, value in values.items():
        inputs.append(triton.InferInput(name, list(value.shape), types[name]))
        inputs[-1].set_data_from_numpy(value)
    return client.infer(model, inputs)


def check_golden(programs: Path, folder: Path, plugin: str) -> None:
    """Golden requests of all signatures, against the answers that lie beside them and against the Python runner."""
    with serving(programs, folder, "--settings", json.dumps({"pjrt_plugin": plugin})) as server:
        client = triton.InferenceServerClient(server.grpc)
        runner = trunnion_bundle.load(folder)
        wait_for(client.is_server_ready, 5, "".join(server.lines))
        for name, signature in runner.bundle.signatures.items():
            types = {tensor.name: tensor.dtype for tensor in signature.inputs}
            for path in signature.golden:
                values = requests.read(folder / path, "input", signature.inputs)
                wanted = requests.read(folder / path, "output", signature.outputs)
                found = ask(client, f"{folder.name}:{name}", values, types)
                python = runner.run(name, values)
                for tensor in signature.outputs:
                    close = {"rtol": tensor.tolerance.relative, "atol": tensor.tolerance.absolute}
                    for other in (wanted[tensor.name], python[tensor.name]):
                        np.testing.assert_allclose(found.as_numpy(tensor.name), other, **close, err_msg=tensor.name)


@pytest.mark.parametrize("name", EXAMPLES)
def test_golden_answers(programs: Path, tmp_path: Path, plugin: str, name: str) -> None:
    example = importlib.import_module(f"trunnion_bundle.examples.{name}")
    folder = tmp_path / name
    trunnion_bundle.save(folder, **example.recipe())
    check_golden(programs, folder, plugin)


def test_texts_become_the_embeddings_of_sentence_transformers(programs: Path, tmp_path: Path, plugin: str) -> None:
    from sentence_transformers import SentenceTransformer

    from trunnion_bundle.examples import minilm

    folder = tmp_path / "minilm"
    trunnion_bundle.save(folder, **minilm.recipe())
    texts = [*minilm.TEXTS, "word " * 400, "x", "tab\tand\nline", "Ünïcödé — “quotes” 漢字 👍"]
    array = np.empty(len(texts), object)
    array[:] = [text.encode() for text in texts]
    wanted = SentenceTransformer(str(minilm.model_folder()), device="cpu").encode(texts)
    with serving(programs, folder) as server:
        client = triton.InferenceServerClient(server.grpc)
        found = ask(client, "minilm", {"text": array}, {"text": "BYTES"}).as_numpy("embedding")
        np.testing.assert_allclose(found, wanted, atol=2e-6)
    check_golden(programs, folder, plugin)
