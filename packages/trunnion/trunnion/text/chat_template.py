"""Render a chat template as `transformers` does: the same sandbox, filters, functions and tags."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from trunnion.errors import ConfigError

Message = Mapping[str, Any]
"""At least `role` and `content`."""


class ChatTemplate:
    """A compiled template. `variables` are the names it sees beside the messages, such as `bos_token`."""

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        self.source = source
        self.variables = dict(variables)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(f"the model's chat template cannot be read: {error}") from error

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: Any) -> str:
        """The prompt's text. Tokenise it with `add_special_tokens=False`: the template writes its own BOS.

        Raises:
            ConfigError: the template refuses these messages (roles that do not alternate, a system message...).
        """
        if not messages:
            raise ValueError("a chat needs at least one message")
        plain = [{key: value for key, value in message.items() if value is not None} for message in messages]
        known = {"tools": None, "documents": None, **self.variables, **variables}
        try:
            return self._template.render(messages=plain, add_generation_prompt=add_generation_prompt, **known)
        except jinja2.TemplateError as error:
            raise ConfigError(f"the model's chat template refuses these messages: {error}") from error
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise ConfigError(f"the model's chat template fails on these messages: {error!r}") from error


class _GenerationTag(Extension):
    """`{% generation %} ... {% endgeneration %}` marks what training counts; here it prints its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja declares an instance variable

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A call block, as in transformers: assignments inside it stay inside.
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> str:
        return caller()


class _PublicNamespace(Namespace):
    """jinja's namespace without underscore names: templates come from strangers."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _refuse_private(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a chat template may not set {name!r} on a namespace")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without jinja's escaping of HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "namespace": _PublicNamespace,
    }
    return environment
