"""Build a tokenizer from the vocabulary that a GGUF file carries in place of a `tokenizer.json`.

GGUF names the algorithm (`tokenizer.ggml.model`) and, for byte-level BPE, the rule that splits text before merging
(`tokenizer.ggml.pre`); the rules below are those of the models' published `tokenizer.json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from trunnion.errors import ConfigError, UnsupportedError
from trunnion.text.detokenizer import byte_level_alphabet

_CONTROL, _USER_DEFINED = 3, 4

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"


@dataclass(frozen=True, kw_only=True)
class _Split:
    """How text is cut before byte-level BPE. `pattern` None is GPT-2's own."""

    pattern: str | None = None
    individual_digits: bool = False
    nfc: bool = False
    whole_words: bool = False
    """A piece that is a token as it stands is not merged."""


def _cl100k(digits: str, **options: bool) -> _Split:
    pattern = rf"{_CONTRACTIONS}|{_LEAD}\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
    return _Split(pattern=pattern, **options)


_LLAMA3 = _cl100k(r"\p{N}{1,3}", whole_words=True)
_QWEN2 = _cl100k(r"\p{N}", nfc=True)
_TEKKEN = _Split(
    pattern=rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}",
    whole_words=True,
)
_SPLITS = {
    "gpt-2": _Split(),
    "smollm": _Split(individual_digits=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _TEKKEN,
}


def build_gguf_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer without a post-processor: whoever encodes decides on BOS.

    Raises:
        ConfigError: the vocabulary is missing.
        UnsupportedError: an algorithm or split rule that is not known here, by name.
    """
    if not metadata.get("tokenizer.ggml.tokens"):
        raise ConfigError("the GGUF file carries no tokenizer (tokenizer.ggml.tokens)")
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer = _byte_level(metadata)
    elif kind == "llama" and str(metadata.get("general.architecture")).startswith("gemma"):
        tokenizer = _gemma(metadata)
    elif kind == "llama":
        tokenizer = _sentencepiece(metadata)
    else:
        raise UnsupportedError(f"unknown tokenizer {kind!r} in the GGUF file; choices: gpt2, llama")
    _add_marked_tokens(tokenizer, metadata)
    return tokenizer


def _byte_level(metadata: Mapping[str, Any]) -> Tokenizer:
    name = metadata.get("tokenizer.ggml.pre", "gpt-2")
    if name not in _SPLITS:
        raise UnsupportedError(f"unknown pre-tokenizer {name!r} in the GGUF file; choices: {', '.join(_SPLITS)}")
    split = _SPLITS[name]
    to_char = {byte: char for char, byte in byte_level_alphabet().items()}
    alphabet = set(to_char.values())
    vocab = {
        token if alphabet.issuperset(token) else "".join(to_char[byte] for byte in token.encode()): index
        for index, token in enumerate(metadata["tokenizer.ggml.tokens"])
    }
    merges = _listed_merges(metadata) or _merges_from_vocabulary(vocab, _scores(metadata))
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges, ignore_merges=split.whole_words))
    if split.nfc:
        tokenizer.normalizer = normalizers.NFC()
    steps: list[pre_tokenizers.PreTokenizer] = []
    if split.individual_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if split.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(split.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(metadata: Mapping[str, Any]) -> Tokenizer:
    vocab = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = _listed_merges(metadata) or _merges_from_vocabulary(vocab, _scores(metadata))
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges, fuse_unk=True, byte_fallback=True))
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement="▁", prepend_scheme="first" if prefix else "never", split=False
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(content=" ", left=1)] if prefix else steps)
    return tokenizer


def _gemma(metadata: Mapping[str, Any]) -> Tokenizer:
    """Gemma: no prefix space; runs of spaces are stored as spaces; merges rank by place, not by score."""
    listed = metadata["tokenizer.ggml.tokens"]
    tokens = ["▁" * len(token) if " " in token and not token.strip() else token for token in listed]
    vocab = {token: index for index, token in enumerate(tokens)}
    merges = _listed_merges(metadata) or _merges_from_vocabulary(vocab, [-float(i) for i in range(len(tokens))])
    unknown = tokens[metadata.get("tokenizer.ggml.unknown_token_id", 3)]
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _scores(metadata: Mapping[str, Any]) -> list[float]:
    if "tokenizer.ggml.scores" not in metadata:
        raise ConfigError("the GGUF file's tokenizer has neither merges nor scores")
    scores: list[float] = metadata["tokenizer.ggml.scores"]
    return scores


def _listed_merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    merges = []
    for merge in metadata.get("tokenizer.ggml.merges", ()):
        left, _, right = merge.partition(" ")
        merges.append((left, right))
    return merges


def _merges_from_vocabulary(vocab: Mapping[str, int], scores: Iterable[float]) -> list[tuple[str, str]]:
    """Every way to make a token of two others, best token first.

    A sentencepiece BPE model keeps no merges: it merges the pair whose result has the highest score.
    """
    ranked = []
    for token, score in zip(vocab, scores, strict=True):
        halves = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [(left, right) for left, right in halves if left in vocab and right in vocab]
        known.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        ranked += [(score, len(left), len(right), left, right) for left, right in known]
    ranked.sort(key=lambda item: item[:3], reverse=True)
    return [(left, right) for *_, left, right in ranked]


def _add_marked_tokens(tokenizer: Tokenizer, metadata: Mapping[str, Any]) -> None:
    """Match the file's control and user-defined tokens whole; only control tokens are special (not printed)."""
    tokens = metadata["tokenizer.ggml.tokens"]
    kinds = metadata.get("tokenizer.ggml.token_type", [])
    vocab = tokenizer.get_vocab(with_added_tokens=False)
    marked = [(token, kind) for token, kind in zip(tokens, kinds, strict=False) if token in vocab]
    special = [AddedToken(token, normalized=False, special=True) for token, kind in marked if kind == _CONTROL]
    plain = [AddedToken(token, normalized=False, special=False) for token, kind in marked if kind == _USER_DEFINED]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)
