"""Turn token ids into text as they come, without ever splitting a character."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Sequence
from typing import Any

from tokenizers import Tokenizer

from trunnion.errors import UnsupportedError


def byte_level_alphabet() -> dict[str, int]:
    """Character -> byte of GPT-2's byte-level alphabet: printable Latin-1 as it is, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


class PieceBytes:
    """The bytes each token stands for, by the rules of the tokenizer's decoder.

    Knows the decoders of causal language models: byte-level BPE, and sentencepiece (`Replace`, `ByteFallback`, `Fuse`,
    `Strip`, `Metaspace`). Special tokens and ids beyond the vocabulary stand for nothing.

    Raises:
        UnsupportedError: another decoder, by name.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.strip_start = 0
        """Leading spaces of the whole output that the decoder removes."""
        self._tokenizer = tokenizer
        self._special = {id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        self._alphabet: dict[str, int] | None = None
        self._byte_fallback = False
        self._replace: list[tuple[str, str]] = []
        self._known: dict[int, bytes] = {}
        self._read_steps(_decoder_steps(tokenizer))

    def __call__(self, token_id: int) -> bytes:
        piece = self._known.get(token_id)
        if piece is None:
            piece = self._known[token_id] = self._bytes_of(token_id)
        return piece

    def _read_steps(self, steps: Sequence[dict[str, Any]]) -> None:
        readers: dict[str, Callable[[dict[str, Any]], None]] = {
            "ByteLevel": self._read_byte_level,
            "ByteFallback": self._read_byte_fallback,
            "Replace": self._read_replace,
            "Metaspace": self._read_metaspace,
            "Strip": self._read_strip,
            "Fuse": lambda step: None,
        }
        for step in steps:
            if step["type"] not in readers:
                raise UnsupportedError(
                    f"unknown decoder {step['type']!r} in the tokenizer; known: {', '.join(readers)}"
                )
            readers[step["type"]](step)

    def _read_byte_level(self, step: dict[str, Any]) -> None:
        self._alphabet = byte_level_alphabet()

    def _read_byte_fallback(self, step: dict[str, Any]) -> None:
        self._byte_fallback = True

    def _read_replace(self, step: dict[str, Any]) -> None:
        if "String" not in step["pattern"]:
            raise UnsupportedError(f"the tokenizer's decoder replaces a pattern: {step['pattern']}")
        self._replace.append((step["pattern"]["String"], step["content"]))

    def _read_metaspace(self, step: dict[str, Any]) -> None:
        self._replace.append((step["replacement"], " "))
        if step.get("prepend_scheme", "always") != "never":
            self.strip_start = 1

    def _read_strip(self, step: dict[str, Any]) -> None:
        if step["content"] != " " or step["stop"]:
            raise UnsupportedError(f"the tokenizer's decoder strips {step['content']!r} at the end of the text")
        self.strip_start = step["start"]

    def _bytes_of(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        if token is None or token_id in self._special:
            return b""
        for pattern, content in self._replace:
            token = token.replace(pattern, content)
        if self._byte_fallback and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes([int(token[3:5], 16)])
        if self._alphabet is not None and all(char in self._alphabet for char in token):
            return bytes(self._alphabet[char] for char in token)
        return token.encode()


def _decoder_steps(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    if tokenizer.decoder is None:
        raise UnsupportedError("the tokenizer has no decoder, so its tokens cannot be turned into text")
    decoder: dict[str, Any] = json.loads(tokenizer.decoder.__getstate__())
    return decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]


class Detokenizer:
    """The text of one output, id by id.

    The pieces joined, with `flush`, equal `Tokenizer.decode(ids, skip_special_tokens=True)`; bytes that are no UTF-8
    become U+FFFD. (`decode` turns a whole run of fallback bytes into U+FFFD if one of them is wrong; here the
    characters before it, which have been shown, stay.)
    """

    def __init__(self, pieces: PieceBytes) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = pieces.strip_start

    def push(self, token_id: int) -> str:
        """Complete characters that this token adds; "" while a character is unfinished."""
        piece = self._pieces(token_id)
        while self._strip and piece:
            if not piece.startswith(b" "):
                self._strip = 0
                break
            piece = piece[1:]
            self._strip -= 1
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """The unfinished character at the end of the output, as U+FFFD."""
        return self._decoder.decode(b"", final=True)
