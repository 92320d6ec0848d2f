"""The rules of a quantised checkpoint: a scheme and the modules that have it, in the checkpoint's own names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trunnion.errors import UnsupportedError
from trunnion.interfaces.quantization import Scheme


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A scheme and the modules that have it."""

    scheme: Scheme
    targets: tuple[str, ...]
    """Names, `re:` patterns of names, or the class `Linear`, which stands for all."""


@dataclass(frozen=True, kw_only=True)
class QuantizationConfig:
    """The rules of a checkpoint in its own module names; the first that names a module gives its scheme."""

    method: str
    rules: tuple[Rule, ...]
    ignore: Callable[[str], bool]
    """Whether a module is left unquantised in spite of the rules."""
    plain_is_unquantised: bool = False
    """Whether a module that stores a plain `weight` is unquantised whatever the rules say: of some formats nothing but
    the tensors tells."""
    has_cache_scales: bool = False
    """Whether the checkpoint says that it has scales of an fp8 cache for every layer."""

    def scheme_of(self, module: str) -> Scheme | None:
        """Of the module that the checkpoint calls `module`."""
        if self.ignore(module):
            return None
        for rule in self.rules:
            if any(target == "Linear" or matches(target, module) for target in rule.targets):
                return rule.scheme
        return None


def choose(what: str, name: str, value: object, choices: Sequence[object]) -> None:
    """UnsupportedError if `value` is none of `choices`."""
    if value not in choices:
        raise UnsupportedError(f"{what}: {name} {value!r} is not supported; choices: {', '.join(map(repr, choices))}")


def matches(pattern: str, module: str) -> bool:
    """compressed-tensors: a whole name, or a regular expression that fits a name's beginning."""
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), module) is not None
    return pattern == module


def lies_in(name: str, module: str) -> bool:
    """Whether `module` is `name`, lies in it, or ends with it, by whole path parts."""
    return f".{module}.".startswith(f".{name}.") or f".{module}".endswith(f".{name}")
