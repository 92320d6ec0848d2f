"""Chat templates against `transformers.apply_chat_template`: every feature that published templates use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from trunnion.errors import ConfigError
from trunnion.text.chat_template import ChatTemplate
from trunnion.text.tokenizer import load_folder_tokenizer

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief & <kind>."},
    {"role": "user", "content": 'Grüße, 世界! "quoted" {{ not_code }}'},
    {"role": "assistant", "content": "Hello.  ", "tool_calls": None},
    {"role": "user", "content": "\n  and now? \U0001f468\u200d\U0001f469\u200d\U0001f467\n"},
]
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

TEMPLATES = {
    "chatml": "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "blocks": "{{ bos_token }}\n    {%- for m in messages %}\n    {% if m.role == 'system' %}\n  [S] {{ m.content }}\n"
    "    {% else %}\n  [{{ m.role }}] {{ m.content | trim }}\n    {% endif %}\n{% endfor %}\n",
    "loop_controls": "{% for m in messages %}{% if loop.index0 == 1 %}{% continue %}{% endif %}{{ m.content }}"
    "{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %}",
    "namespace": "{% set ns = namespace(n=0, last='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% set ns.last = m.role %}{% endfor %}{{ ns.n }} {{ ns.last }}",
    "tojson": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}{{ messages[1] | tojson(ensure_ascii=True) }}"
    "{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{% set x = 1 %}{{ m.content }}"
    "{{ eos_token }}{% endgeneration %}{{ x is defined }}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "strftime": "{{ strftime_now('%Y-%m') }}",
    "absent": "{{ tools is none }} {{ documents is none }} {{ nothing is defined }} "
    "{{ messages[2].tool_calls is defined }} {{ pad_token is defined }} {{ unk_token }}",
    "dict": "{{ dict(a=1) }}{% for key, value in messages[0].items() %}{{ key }}={{ value }};{% endfor %}"
    "{{ messages[0].content.split(' ')[-1].upper() }}{{ messages[1:] | length }}{{ range(3) | join(',') }}",
    "macro": "{% macro turn(m) %}<{{ m.role }}>{{ caller() if caller else m.content }}{% endmacro %}"
    "{% for m in messages %}{{ turn(m) }}{% endfor %}",
}


def _tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE(vocab={"<unk>": 0, "<s>": 1, "</s>": 2}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, **VARIABLES)


@pytest.mark.parametrize("add_generation_prompt", [True, False], ids=["prompt", "no_prompt"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_renders_as_transformers(name: str, add_generation_prompt: bool) -> None:
    template = TEMPLATES[name]
    expected = _tokenizer().apply_chat_template(
        MESSAGES, chat_template=template, tokenize=False, add_generation_prompt=add_generation_prompt
    )
    rendered = ChatTemplate(template, VARIABLES).render(MESSAGES, add_generation_prompt=add_generation_prompt)
    assert rendered == expected


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].missing.deeper }}", "missing"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{{ messages.append(1) }}", "append"),
        ("{{ ''.__class__.__mro__ }}", "__class__|unsafe"),
        ("{% set ns = namespace(_x=1) %}", "_x"),
    ],
    ids=["raise_exception", "undefined", "type_error", "mutation", "dunder", "namespace"],
)
def test_failing_template_is_one_clear_error(template: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ChatTemplate(template, VARIABLES).render(MESSAGES)


def test_unreadable_template_is_one_clear_error() -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        ChatTemplate("{% for m in %}", VARIABLES)


def test_no_messages_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one message"):
        ChatTemplate("x", {}).render([])


@pytest.mark.parametrize("place", ["file", "config", "list"])
def test_template_is_found_where_transformers_finds_it(tmp_path: Path, place: str) -> None:
    tokenizer = _tokenizer()
    if place == "list":
        tokenizer.chat_template = {"default": TEMPLATES["chatml"], "tool_use": "tools"}
        tokenizer.save_pretrained(tmp_path, save_jinja_files=False)
    else:
        tokenizer.chat_template = TEMPLATES["chatml"]
        tokenizer.save_pretrained(tmp_path, save_jinja_files=place == "file")
    loaded = load_folder_tokenizer(tmp_path)
    assert loaded.chat_template is not None
    assert loaded.chat_template.render(MESSAGES) == PreTrainedTokenizerFast.from_pretrained(
        tmp_path
    ).apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
