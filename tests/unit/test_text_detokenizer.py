"""Streaming text against `Tokenizer.decode`: random unicode, joined emoji, CJK, bytes that are no characters."""

from __future__ import annotations

import random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from trunnion.errors import UnsupportedError
from trunnion.text.detokenizer import Detokenizer, PieceBytes, byte_level_alphabet

SAMPLES = [
    "plain words, and some more",
    "  two leading spaces",
    " one",
    "日本語のテキスト、中文字符, 한국어",
    "family "
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 flag \U0001f1e9\U0001f1ea skin \U0001f44d\U0001f3fd",
    "combining e\u0301 n\u0303, zero\u200bwidth, \u202eRTL\u202c \u05e9\u05dc\u05d5\u05dd",
    "real \ufffd replacement",
    "tabs\tand\r\nlines\n\n\n",
    "",
]


def byte_level() -> Tokenizer:
    """Byte-level BPE with few merges, so that characters fall apart into bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["some plain words and more words, 中文字符 日本語"] * 3, trainer)
    return _with_special(tokenizer)


def sentencepiece() -> Tokenizer:
    """Sentencepiece style: metaspace, byte fallback, a leading space that the decoder strips."""
    vocab = {"<unk>": 0} | {f"<0x{byte:02X}>": 1 + byte for byte in range(256)}
    for piece in ["▁", *"abcdefghijklmnopqrstuvwxyz", "▁a", "▁an", "▁and", "中", "文", "字", "本"]:
        vocab[piece] = len(vocab)
    merges = [("▁", "a"), ("▁a", "n"), ("▁an", "d")]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return _with_special(tokenizer)


def metaspace() -> Tokenizer:
    vocab = {"<unk>": 0} | {piece: 1 + i for i, piece in enumerate("▁abcdefghijklmnopqrstuvwxyz中文本")}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return _with_special(tokenizer)


def _with_special(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return tokenizer


TOKENIZERS = {"byte_level": byte_level, "sentencepiece": sentencepiece, "metaspace": metaspace}


def _stream(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    stream = Detokenizer(PieceBytes(tokenizer))
    return [*(stream.push(id) for id in ids), stream.flush()]


def _unicode(rng: random.Random) -> str:
    ranges = [(0x20, 0x7F), (0xA0, 0x250), (0x370, 0x600), (0x3040, 0x3100), (0x4E00, 0x9FFF), (0x1F300, 0x1FAFF)]
    return "".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(rng.randrange(1, 25)))


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("text", SAMPLES, ids=range(len(SAMPLES)))
def test_stream_equals_decode(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]()
    ids = tokenizer.encode(text).ids
    assert "".join(_stream(tokenizer, ids)) == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_random_unicode_never_shows_half_a_character(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]()
    rng = random.Random(7)
    for _ in range(300):
        text = _unicode(rng)
        ids = tokenizer.encode(text).ids
        pieces = _stream(tokenizer, ids)
        assert not any("\ufffd" in piece for piece in pieces)
        assert "".join(pieces) == tokenizer.decode(ids) == text


def test_random_bytes_equal_lossy_decoding() -> None:
    tokenizer = byte_level()
    rng = random.Random(3)
    to_char = {byte: char for char, byte in byte_level_alphabet().items()}
    for _ in range(500):
        raw = bytes(rng.choice([rng.randrange(256), rng.randrange(0x80, 0xC0), 0xE4, 0xF0, 0x41]) for _ in range(9))
        ids = [tokenizer.token_to_id(to_char[byte]) for byte in raw]
        assert "".join(_stream(tokenizer, ids)) == tokenizer.decode(ids) == raw.decode(errors="replace")


def test_wrong_fallback_byte_leaves_the_characters_before_it() -> None:
    tokenizer = sentencepiece()
    ids = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in "é".encode() + b"\xe5"] + [tokenizer.token_to_id("a")]
    assert _stream(tokenizer, ids) == ["", "é", "", "\ufffda", ""]


def test_unfinished_character_is_flushed_once() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("€").ids[:-1]
    assert "".join(_stream(tokenizer, ids)) == tokenizer.decode(ids) == "\ufffd"


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_special_and_unknown_ids_show_nothing_and_added_ones_show(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]()
    ids = [tokenizer.token_to_id("<|end|>"), 10_000_000, tokenizer.token_to_id("<think>"), tokenizer.token_to_id("a")]
    assert "".join(_stream(tokenizer, ids)) == "<think>a"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<think>a"


@pytest.mark.parametrize("decoder", [decoders.WordPiece(), decoders.CTC()], ids=["WordPiece", "CTC"])
def test_unknown_decoder_is_refused_by_name(decoder: decoders.Decoder) -> None:
    tokenizer = byte_level()
    tokenizer.decoder = decoder
    with pytest.raises(UnsupportedError, match=type(decoder).__name__):
        PieceBytes(tokenizer)
