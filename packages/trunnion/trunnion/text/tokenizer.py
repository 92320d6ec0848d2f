"""Load a model's tokenizer, chat template and generation defaults from its folder or its GGUF file."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from trunnion.errors import ConfigError
from trunnion.hf_config import read_json_object
from trunnion.text.chat_template import ChatTemplate, Message
from trunnion.text.detokenizer import Detokenizer, PieceBytes
from trunnion.text.gguf_tokenizer import build_gguf_tokenizer

SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class EncodedPair:
    """Two texts joined: token ids, and the type of each token."""

    ids: list[int]
    type_ids: list[int] | None
    """None where the tokenizer does not tell the texts apart: all are of type 0."""


class TextTokenizer:
    """Text to ids and back. `special_tokens` maps `bos_token`, ... to their text."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        special_tokens: Mapping[str, str],
        chat_template: str | None,
        leading_ids: Sequence[int] | None = None,
        trailing_ids: Sequence[int] = (),
        gives_types: bool = True,
    ) -> None:
        self.backend = tokenizer
        self._gives_types = gives_types
        self.special_tokens = dict(special_tokens)
        self.chat_template = ChatTemplate(chat_template, special_tokens) if chat_template is not None else None
        self._leading_ids = leading_ids
        self._trailing_ids = list(trailing_ids)
        # A folder may ask for truncation or padding; a prompt wants neither.
        tokenizer.no_truncation()
        tokenizer.no_padding()

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids; with `add_special_tokens` by the tokenizer's own rule for BOS and EOS."""
        if self._leading_ids is None or not add_special_tokens:
            return list(self.backend.encode(text, add_special_tokens=add_special_tokens).ids)
        return [*self._leading_ids, *self.backend.encode(text, add_special_tokens=False).ids, *self._trailing_ids]

    def encode_pair(self, first: str, second: str) -> EncodedPair:
        """Two texts joined by the tokenizer's own rule, which may tell them apart by the types of their tokens."""
        encoding = self.backend.encode(first, second, add_special_tokens=True)
        types = list(encoding.type_ids) if self._gives_types else []
        return EncodedPair(list(encoding.ids), types if any(types) else None)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation, up to where the model's answer begins.

        Raises:
            ConfigError: the model has no chat template, or it refuses the messages.
        """
        if self.chat_template is None:
            raise ConfigError("the model has no chat template; --raw sends the text as it is")
        return self.encode(self.chat_template.render(messages), add_special_tokens=False)

    def detokenizer(self) -> Detokenizer:
        """A fresh one, for one output.

        Raises:
            UnsupportedError: the tokenizer's decoder is none of a causal language model, by name.
        """
        return Detokenizer(self._pieces)

    @functools.cached_property
    def _pieces(self) -> PieceBytes:
        return PieceBytes(self.backend)

    def token_id(self, name: str) -> int | None:
        """Id of the special token `name` (`eos_token`, ...), None where the model has none."""
        text = self.special_tokens.get(name)
        return None if text is None else self.backend.token_to_id(text)


def load_folder_tokenizer(folder: Path) -> TextTokenizer:
    """From `tokenizer.json`, `tokenizer_config.json` and the chat template beside them.

    A `model_input_names` there that leaves token_type_ids out is heeded: pairs have no types then, as in transformers.

    Raises:
        ConfigError: a file is missing or unreadable, by name.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(
            f"{folder} has no tokenizer.json; AutoTokenizer.from_pretrained(...).save_pretrained(...) of transformers "
            "writes one from other tokenizer files"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ConfigError(f"{path} cannot be read: {error}") from error
    config = _read_if_there(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:
        config |= {
            key: value
            for key, value in _read_if_there(folder / "special_tokens_map.json").items()
            if key in SPECIAL_TOKEN_NAMES
        }
    special = {name: text for name in SPECIAL_TOKEN_NAMES if (text := _token_text(config.get(name))) is not None}
    _add_missing_tokens(tokenizer, config, special)
    return TextTokenizer(
        tokenizer,
        special_tokens=special,
        chat_template=folder_chat_template(folder),
        gives_types="token_type_ids" in (config.get("model_input_names") or ["token_type_ids"]),
    )


def gguf_tokenizer(metadata: Mapping[str, Any]) -> TextTokenizer:
    """From a GGUF file's header (`read_gguf_metadata`)."""
    tokenizer = build_gguf_tokenizer(metadata)
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()}
    for name, id in ids.items():
        if id is not None and not 0 <= id < len(tokens):
            raise ConfigError(f"{name} {id} of the GGUF file is outside its vocabulary of {len(tokens)}")
    # Sentencepiece files that do not say get a BOS, as in llama.cpp and transformers.
    is_sentencepiece = metadata.get("tokenizer.ggml.model") == "llama"
    wants_bos = metadata.get("tokenizer.ggml.add_bos_token", is_sentencepiece)
    wants_eos = metadata.get("tokenizer.ggml.add_eos_token", False)
    return TextTokenizer(
        tokenizer,
        special_tokens={name: tokens[id] for name, id in ids.items() if id is not None},
        chat_template=metadata.get("tokenizer.chat_template"),
        leading_ids=[id for id in [ids["bos_token"]] if wants_bos and id is not None],
        trailing_ids=[id for id in [ids["eos_token"]] if wants_eos and id is not None],
    )


def _read_if_there(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}


def _token_text(value: object) -> str | None:
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _add_missing_tokens(tokenizer: Tokenizer, config: Mapping[str, Any], special: Mapping[str, str]) -> None:
    """Tokens that `tokenizer_config.json` declares and `tokenizer.json` does not know."""
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    declared = sorted((config.get("added_tokens_decoder") or {}).items(), key=lambda item: int(item[0]))
    fields = ("single_word", "lstrip", "rstrip", "normalized", "special")
    for _, token in declared:
        if token["content"] not in known:
            tokenizer.add_tokens([AddedToken(token["content"], **{key: token[key] for key in fields if key in token})])
    missing = [text for text in special.values() if text not in known and tokenizer.token_to_id(text) is not None]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in missing])


def folder_chat_template(folder: Path) -> str | None:
    """`chat_template.jinja`, then `chat_template.json` (older processors), then the entry in the configuration; of
    several the one named `default`; None if there is none.

    Raises:
        ConfigError: there are several, and none of that name.
    """
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = _read_if_there(folder / "chat_template.json").get("chat_template")
    if template is None:
        template = _read_if_there(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}
    if isinstance(template, Mapping):
        if "default" not in template:
            raise ConfigError(f"{folder} has several chat templates and none named default: {', '.join(template)}")
        template = template["default"]
    return template if isinstance(template, str) else None
