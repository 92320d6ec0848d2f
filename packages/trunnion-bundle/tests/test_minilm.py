"""A published text embedder, from texts to vectors, against sentence-transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import trunnion_bundle
from trunnion_bundle.check import check
from trunnion_bundle.examples import minilm
from trunnion_bundle.requests import read


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("minilm") / "1"
    trunnion_bundle.save(path, **minilm.recipe())
    return path


def test_embeddings_are_those_of_sentence_transformers(bundle: Path) -> None:
    from sentence_transformers import SentenceTransformer

    texts = [*minilm.TEXTS, "word " * 400, "x", "tab\tand\nline", "Ünïcödé — “quotes” 漢字 👍"]
    array = np.empty(len(texts), object)
    array[:] = [text.encode() for text in texts]
    found = trunnion_bundle.load(bundle)(text=array)["embedding"]
    wanted = SentenceTransformer(str(minilm.model_folder()), device="cpu").encode(texts)
    np.testing.assert_allclose(found, wanted, atol=2e-6)
    # Texts that mean different things are far apart.
    assert (found @ found.T - np.eye(len(texts))).max() < 0.95


def test_ids_are_answered_like_texts(bundle: Path, tmp_path: Path) -> None:
    trunnion_bundle.save(tmp_path / "ids", **minilm.ids_recipe())
    runner = trunnion_bundle.load(tmp_path / "ids")
    asked = read(tmp_path / "ids/golden/embed/0.safetensors", "input", runner.bundle.signatures["embed"].inputs)
    array = np.empty(len(minilm.TEXTS), object)
    array[:] = [text.encode() for text in minilm.TEXTS]
    wanted = trunnion_bundle.load(bundle)(text=array)["embedding"]
    np.testing.assert_allclose(runner.run("embed", asked)["embedding"], wanted, atol=2e-6)


@pytest.mark.nightly
def test_check_passes(bundle: Path) -> None:
    assert not [finding for finding in check(bundle) if finding.state == "failed"]
