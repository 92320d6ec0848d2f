"""A text embedder: BERT's encoder between native tokenizing, pooling and normalizing, with a tiny vocabulary."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import trunnion_bundle
from trunnion_bundle import Batching, Endpoint, IndexRange, Input, Step, Symbol, Tolerance

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WORDS = ("the", "cat", "dog", "sat", "ran", "on", "mat", "##ing", ".", ",", "!", "?")
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_LETTERS, *(f"##{letter}" for letter in _LETTERS), *_WORDS)
LENGTHS = (8, 16)
TEXTS = ("The cat sat on the mat.", "Dogs ran!", "Is the cat running, or sitting?")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes by the names of a published config.json."""

    vocab_size: int = len(VOCABULARY)
    hidden_size: int = 32
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    intermediate_size: int = 64
    max_position_embeddings: int = 32
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12


class Embeddings(nn.Module):
    """Words, positions and types, added and normalized."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, ids: Tensor) -> Tensor:
        positions = self.position_embeddings.weight[: ids.shape[1]]  # [T, D]
        return self.LayerNorm(self.word_embeddings(ids) + positions + self.token_type_embeddings.weight[0])


class SelfAttention(nn.Module):
    """Attention without output projection."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5  # [B, H, T, T]
        # Finite: a row of padding has no token at all, and must not become NaN.
        scores = scores.masked_fill(mask[:, None, None, :] == 0, torch.finfo(x.dtype).min)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class Output(nn.Module):
    """Projection, residual and norm."""

    def __init__(self, width: int, config: Config) -> None:
        super().__init__()
        self.dense = nn.Linear(width, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(x) + residual)


class Layer(nn.Module):
    """Attention and feed-forward, each followed by its norm."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        attention = {"self": SelfAttention(config), "output": Output(config.hidden_size, config)}
        self.attention = nn.ModuleDict(attention)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(config.hidden_size, config.intermediate_size)})
        self.output = Output(config.intermediate_size, config)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention["output"](self.attention["self"](x, mask), x)
        return self.output(functional.gelu(self.intermediate["dense"](x)), x)


class Encoder(nn.Module):
    """BERT without its pooler; parameters are named as in published checkpoints."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))})

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """`ids`, `mask` INT64 [batch, tokens] -> hidden states FP32 [batch, tokens, hidden_size]."""
        x = self.embeddings(ids)
        for layer in self.encoder["layer"]:
            x = layer(x, mask)
        return x


def endpoint(
    encoder: Encoder,
    config: Config,
    requests: Mapping[str, Input],
    before: Sequence[Step],
    *,
    symbols: Mapping[str, Symbol],
    batching: Batching,
    tolerance: Tolerance,
    more_examples: Sequence[Mapping[str, Any]] = (),
) -> Endpoint:
    """Vectors of length 1. `before` makes `ids` and `mask`, [batch, tokens], of a client's `requests`."""
    ends = symbols["tokens"]
    ids = torch.zeros(2, ends.min, dtype=torch.int64)
    bounds = IndexRange(below=config.vocab_size)
    return Endpoint(
        function=encoder,
        inputs={
            "ids": Input(example=ids, dims=("batch", "tokens"), index_range=bounds),
            "mask": Input(example=ids, dims=("batch", "tokens"), index_range=IndexRange(below=2)),
        },
        outputs=("hidden",),
        symbols=symbols,
        largest_batch=256,
        requests=requests,
        before=before,
        after=[
            Step(op="pool", inputs=("hidden", "mask"), outputs=("mean",), parameters={"axis": 1, "kind": "mean"}),
            Step(op="l2_normalize", inputs=("mean",), outputs=("embedding",), parameters={"axis": 1, "epsilon": 1e-12}),
        ],
        answers=("embedding",),
        batching=batching,
        tolerance=tolerance,
        description="The meaning of a text as a vector of length 1.",
        more_examples=more_examples,
    )


def of_texts(
    encoder: Encoder, config: Config, texts: Sequence[str], lengths: Sequence[int], vocabulary_size: int, **policy: Any
) -> Endpoint:
    """Texts in: they are tokenized per request, by the vocabulary `assets/vocab.txt`."""
    parameters = {
        "vocabulary": "assets/vocab.txt", "vocabulary_size": vocabulary_size, "lowercase": True,
        "max_chars_per_word": 100, "lengths": list(lengths), "symbol": "tokens",
    }  # fmt: skip
    tokenize = Step(op="word_piece", inputs=("text",), outputs=("ids", "mask"), scope="request", parameters=parameters)
    return endpoint(
        encoder, config, {"text": Input(example=[text.encode() for text in texts])}, [tokenize],
        symbols={"tokens": Symbol(min=lengths[0], max=lengths[-1])},
        more_examples=[{"text": [texts[0].encode()]}], **policy,
    )  # fmt: skip


def of_ids(
    encoder: Encoder, config: Config, ids: Sequence[Sequence[int]], lengths: Sequence[int], **policy: Any
) -> Endpoint:
    """Token ids and their mask in, of any length: they are padded to one of `lengths`."""
    longest = max(map(len, ids))
    rows = torch.tensor([[*row, *[0] * (longest - len(row))] for row in ids])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids])
    parameters = {"axis": 1, "lengths": list(lengths), "value": 0, "symbol": "tokens"}
    steps = [
        Step(op="pad", inputs=(given,), outputs=(made,), scope="request", parameters=parameters)
        for given, made in (("input_ids", "ids"), ("attention_mask", "mask"))
    ]
    dims = ("batch", "length")
    requests = {
        "input_ids": Input(example=rows, dims=dims, index_range=range(config.vocab_size)),
        "attention_mask": Input(example=mask, dims=dims, index_range=range(2)),
    }
    symbols = {"length": Symbol(min=1, max=lengths[-1]), "tokens": Symbol(min=lengths[0], max=lengths[-1])}
    return endpoint(encoder, config, requests, steps, symbols=symbols, **policy)


def build(seed: int = 0) -> Encoder:
    """The tiny model with random weights."""
    torch.manual_seed(seed)
    return Encoder(Config()).eval()


def recipe() -> dict[str, Any]:
    """Arguments of `trunnion_bundle.save`."""
    vocabulary = Path(tempfile.mkdtemp(prefix="trunnion-bundle-")) / "vocab.txt"
    vocabulary.write_text("".join(f"{token}\n" for token in VOCABULARY))
    made = of_texts(
        build(), Config(), TEXTS, LENGTHS, len(VOCABULARY), batching=Batching(allowed_sizes=(1, 4)),
        tolerance=Tolerance(absolute=1e-5, relative=1e-4),
    )  # fmt: skip
    assets: Mapping[str, Path] = {"assets/vocab.txt": vocabulary}
    return {"endpoints": {"embed": made}, "name": "text", "assets": assets}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder to write")
    trunnion_bundle.save(parser.parse_args().folder, **recipe())


if __name__ == "__main__":
    main()
