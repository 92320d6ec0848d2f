"""The tokenizer against that of the library `tokenizers`, on texts that look for trouble."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tokenizers import BertWordPieceTokenizer

from trunnion_bundle import BundleError
from trunnion_bundle.examples.text import VOCABULARY
from trunnion_bundle.word_piece import WordPiece, read_vocabulary

TEXTS = (
    "", " ", "The cat sat on the mat.", "Dogs RAN!!", "naïve café, Ångström, İstanbul, ß", "tab\tnew\nline\r\nend",
    "a\u0000b\ufffdc", "zero\u200bwidth", "no-break\u00a0space", "line\u2028separator", "漢字かな交じり文", "한국어",
    "e\u0301clair", "x" * 100, "x" * 101, "$100+5%=€7~`^|<>", "[CLS] is a word here", "\u1e9e\u0130\u01c5",
    "👩\u200d👩\u200d👧 emoji", "“quotes” — dashes…", "\U0002a700 ideograph", "\x07bell \x7fdelete \x85next",
)  # fmt: skip
NOISE = (
    (0x20, 0x7F),
    (0xA0, 0x250),
    (0x370, 0x373),
    (0x391, 0x3A1),
    (0x400, 0x52F),
    (0x2010, 0x2027),
    (0x3001, 0x3020),
)
"""Blocks whose characters are as old as the tables of the library, which know no newer Unicode."""


def _vocabulary(tmp_path: Path) -> tuple[Path, int]:
    path = tmp_path / "vocab.txt"
    more = [*"éüß\u0430漢字한0123456789$+%€“”—…👩[]", *(f"##{c}" for c in "0123456789éü국어")]
    tokens = list(dict.fromkeys([*VOCABULARY, *more]))
    path.write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
    return path, len(tokens)


@pytest.mark.parametrize("lowercase", [True, False])
def test_against_tokenizers(tmp_path: Path, lowercase: bool) -> None:
    path, size = _vocabulary(tmp_path)
    ours = WordPiece(read_vocabulary(path, size), lowercase=lowercase, max_chars_per_word=100)
    theirs = BertWordPieceTokenizer(str(path), lowercase=lowercase, strip_accents=lowercase)
    # Special tokens in a text are words to us: nobody can smuggle one in.
    theirs._tokenizer.encode_special_tokens = True
    letters = random.Random(0)
    noise = ["".join(chr(letters.randrange(*letters.choice(NOISE))) for _ in range(40)) for _ in range(500)]
    for text in (*TEXTS, *noise):
        assert ours.encode(text.encode(), 512) == theirs.encode(text).ids, repr(text)


def test_cuts(tmp_path: Path) -> None:
    path, size = _vocabulary(tmp_path)
    tokenizer = WordPiece(read_vocabulary(path, size), lowercase=True, max_chars_per_word=100)
    theirs = BertWordPieceTokenizer(str(path))
    theirs.enable_truncation(8)
    text = "the cat sat on the mat and ran"
    assert tokenizer.encode(text.encode(), 8) == theirs.encode(text).ids
    assert len(tokenizer.encode(text.encode(), 8)) == 8


def test_refuses(tmp_path: Path) -> None:
    path, size = _vocabulary(tmp_path)
    with pytest.raises(BundleError, match=f"{size} tokens; vocabulary_size is {size + 1}"):
        read_vocabulary(path, size + 1)
    tokenizer = WordPiece(read_vocabulary(path, size), lowercase=True, max_chars_per_word=100)
    with pytest.raises(BundleError, match="no UTF-8: byte 0xff at 2"):
        tokenizer.encode(b"ab\xff", 8)
    path.write_text("[PAD]\n[UNK]\n[CLS]\n")
    with pytest.raises(BundleError, match=r"no token \[SEP\]"):
        read_vocabulary(path, 3)
