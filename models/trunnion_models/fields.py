"""Reads a published `config.json` into a family's dataclass and names what is missing, mistyped or unsupported."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from trunnion.errors import ConfigError, UnsupportedError

_TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}


def read_fields(cls: type[Any], config: Mapping[str, Any], **derived: Any) -> dict[str, Any]:
    """The entries of `config` that the dataclass `cls` declares, checked against its annotations, and `derived`.

    A null stands for "not given" where the field has a default. Numbers must be positive, except for fields whose
    default is 0.

    Raises:
        ConfigError: a field without a default is missing, or a value is of another type or out of range.
    """
    values: dict[str, Any] = dict(derived)
    for spec in dataclasses.fields(cls):
        if spec.name in derived:
            continue
        value = config.get(spec.name)
        if value is not None:
            values[spec.name] = _checked(config, spec.name, str(spec.type).split(" | ")[0], value, spec.default == 0)
        elif spec.default is dataclasses.MISSING:
            raise ConfigError(f"config of {family(config)}: required field {spec.name!r} is missing")
    return values


def attention_heads(config: Mapping[str, Any], default_head_dim: int | None = None) -> dict[str, int]:
    """`num_key_value_heads` (all heads if not given) and `head_dim` (the default, or `hidden_size / heads`).

    Raises:
        ConfigError: a field is missing or mistyped, or the numbers do not divide.
    """
    hidden_size, heads = _required_int(config, "hidden_size"), _required_int(config, "num_attention_heads")
    kv_heads = _checked(config, "num_key_value_heads", "int", _given(config, "num_key_value_heads", heads), False)
    head_dim = _given(config, "head_dim", default_head_dim)
    if heads % kv_heads:
        raise ConfigError(
            f"config of {family(config)}: num_attention_heads {heads} is not a multiple of "
            f"num_key_value_heads {kv_heads}"
        )
    if head_dim is None:
        if hidden_size % heads:
            raise ConfigError(
                f"config of {family(config)}: hidden_size {hidden_size} is not a multiple of "
                f"num_attention_heads {heads} and head_dim is not given"
            )
        head_dim = hidden_size // heads
    return {"num_key_value_heads": kv_heads, "head_dim": _checked(config, "head_dim", "int", head_dim, False)}


def require(config: Mapping[str, Any], name: str, default: object, choices: Sequence[object]) -> None:
    """Raise UnsupportedError unless the field `name` (or its default, if not given) is one of `choices`."""
    value = _given(config, name, default)
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise UnsupportedError(f"{family(config)}: {name} {value!r} is not supported; choices: {listed}")


def positive_or_none(config: Mapping[str, Any], name: str, default: float) -> float | None:
    """The number `name`, for which null is a value of its own; `default` where the key is absent.

    Raises:
        ConfigError: it is no positive number.
    """
    value = config.get(name, default)
    return None if value is None else float(_checked(config, name, "float", value, False))


def layer_types(config: Mapping[str, Any], default: Sequence[str], choices: Sequence[str]) -> tuple[str, ...]:
    """`layer_types` as given, checked, or the family's default: one entry per layer."""
    given = config.get("layer_types")
    if given is None:
        return tuple(default)
    if len(given) != len(default):
        raise ConfigError(f"config of {family(config)}: layer_types has {len(given)} entries for {len(default)} layers")
    for kind in given:
        if kind not in choices:
            raise UnsupportedError(
                f"{family(config)}: layer type {kind!r} is not supported; choices: {', '.join(choices)}"
            )
    return tuple(given)


def window_by_layer(config: Mapping[str, Any], types: Sequence[str], window: int | None) -> tuple[int | None, ...]:
    """The window of each layer: `window` where the type is `sliding_attention`, else None.

    Raises:
        ConfigError: a layer slides and there is no window, or it is no positive integer.
    """
    if window is not None:
        _checked(config, "sliding_window", "int", window, False)
    elif "sliding_attention" in types:
        reason = "sliding_window is null" if config.get("use_sliding_window", True) else "use_sliding_window is false"
        raise ConfigError(f"config of {family(config)}: there are layers of type sliding_attention, and {reason}")
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def windows_by_type(config: Mapping[str, Any], types: Sequence[str]) -> tuple[int | None, ...]:
    """As `window_by_layer`, with the `sliding_window` of `config`."""
    return window_by_layer(config, types, config.get("sliding_window"))


def integer(config: Mapping[str, Any], name: str, default: int, *, zero_allowed: bool = False) -> int:
    """The field `name`, checked, or `default` if it is not given."""
    return int(_checked(config, name, "int", _given(config, name, default), zero_allowed))


def num_layers(config: Mapping[str, Any]) -> int:
    """`num_hidden_layers`, checked, for fields that are derived from it."""
    return _required_int(config, "num_hidden_layers")


def family(config: Mapping[str, Any]) -> str:
    """The name by which messages call the model."""
    return str(config.get("model_type", "this model"))


def _given(config: Mapping[str, Any], name: str, default: Any) -> Any:
    value = config.get(name)
    return default if value is None else value


def _required_int(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if value is None:
        raise ConfigError(f"config of {family(config)}: required field {name!r} is missing")
    return int(_checked(config, name, "int", value, False))


def _checked(config: Mapping[str, Any], name: str, kind: str, value: Any, zero_allowed: bool) -> Any:
    types = _TYPES.get(kind)
    if types is None:
        return value
    if not isinstance(value, types) or (isinstance(value, bool) and kind != "bool"):
        raise ConfigError(f"config of {family(config)}: {name} must be {kind}, got {value!r}")
    if kind in ("int", "float") and not (value > 0 or (value == 0 and zero_allowed)):
        raise ConfigError(f"config of {family(config)}: {name} must be positive, got {value!r}")
    return float(value) if kind == "float" else value
