"""BERT's tokenizer: clean, split into words and punctuation, cut words into the longest pieces of a vocabulary."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path

from trunnion_bundle.errors import BundleError

UNKNOWN, START, END, PAD = "[UNK]", "[CLS]", "[SEP]", "[PAD]"
CONTINUED = "##"
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip
_ASCII_PUNCTUATION = (range(33, 48), range(58, 65), range(91, 97), range(123, 127))


def read_vocabulary(path: Path, size: int) -> dict[str, int]:
    """Token -> number of its line.

    Raises:
        BundleError: not `size` lines, or a special token is missing.
    """
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    if len(lines) != size:
        raise BundleError(f"{path}: {len(lines)} tokens; vocabulary_size is {size}")
    tokens = {token: number for number, token in enumerate(lines)}
    if missing := [token for token in (UNKNOWN, START, END, PAD) if token not in tokens]:
        raise BundleError(f"{path}: no token {missing[0]}")
    return tokens


class WordPiece:
    """Texts to token ids. The vocabulary maps tokens to ids; continued pieces start with `##`."""

    def __init__(self, vocabulary: Mapping[str, int], *, lowercase: bool, max_chars_per_word: int) -> None:
        self._vocabulary = vocabulary
        self._lowercase = lowercase
        self._longest = max_chars_per_word
        self.pad = vocabulary[PAD]

    def encode(self, text: bytes, max_length: int) -> list[int]:
        """`[CLS] pieces [SEP]`, the pieces cut so that all are at most `max_length`.

        Raises:
            BundleError: `text` is no UTF-8.
        """
        try:
            decoded = text.decode()
        except UnicodeDecodeError as error:
            raise BundleError(f"the text is no UTF-8: byte {text[error.start]:#x} at {error.start}") from None
        ids = [piece for word in self._words(decoded) for piece in self._pieces(word)]
        return [self._vocabulary[START], *ids[: max_length - 2], self._vocabulary[END]]

    def _words(self, text: str) -> Iterator[str]:
        for word in _cleaned(text).split():
            if self._lowercase:
                word = "".join(c for c in unicodedata.normalize("NFD", word) if unicodedata.category(c) != "Mn").lower()
            yield from _split_punctuation(word)

    def _pieces(self, word: str) -> list[int]:
        unknown = [self._vocabulary[UNKNOWN]]
        if len(word) > self._longest:
            return unknown
        found: list[int] = []
        start = 0
        while start < len(word):
            prefix = CONTINUED if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if prefix + word[start:end] in self._vocabulary), None)
            if end is None:
                return unknown
            found.append(self._vocabulary[prefix + word[start:end]])
            start = end
        return found


def _cleaned(text: str) -> str:
    """White space as spaces, control characters dropped, ideographs as words of their own."""
    found = []
    for character in text:
        code, category = ord(character), unicodedata.category(character)
        if character in " \t\n\r" or category == "Zs":
            found.append(" ")
        elif code in (0, 0xFFFD) or category.startswith("C"):
            continue
        elif any(low <= code <= high for low, high in _IDEOGRAPHS):
            found.append(f" {character} ")
        else:
            found.append(character)
    return "".join(found)


def _split_punctuation(word: str) -> Iterator[str]:
    start = 0
    for i, character in enumerate(word):
        is_ascii = any(ord(character) in codes for codes in _ASCII_PUNCTUATION)
        if is_ascii or unicodedata.category(character).startswith("P"):
            if start < i:
                yield word[start:i]
            yield character
            start = i + 1
    if start < len(word):
        yield word[start:]
