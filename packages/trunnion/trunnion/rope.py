"""Rotary position embeddings: read from a published config, turned into frequencies and one cos/sin table.

The formulas are those of `transformers` 5.24 (`modeling_rope_utils.py`), with one difference that a cached server
forces. There, dynamic NTK and LongRoPE change their frequencies when a sequence outgrows a length, which turns keys
that are already cached. Here the choice is made once, from the longest request the executor admits (`max_model_len`):
the results equal those of `transformers` for a request of that length.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trunnion.errors import ConfigError, UnsupportedError

ALIASES = {"su": "longrope"}
"""Older names of rope types (Phi-3's first release)."""

UNSUPPORTED_KEYS = ("mrope_section", "mrope_interleaved", "short_mscale", "long_mscale", "alpha")
"""Settings that would change the result and are not implemented; for `read_mrope` all but the first are."""


@dataclass(frozen=True, kw_only=True)
class RopeParameters:
    """One rope, complete: the fields of HF's `rope_parameters` and what its formulas read beside them."""

    rope_type: str = "default"
    rope_theta: float = 10000.0
    partial_rotary_factor: float = 1.0
    max_position_embeddings: int
    original_max_position_embeddings: int
    """Length the model was first trained for; `max_position_embeddings` where the config does not say."""
    factor: float | None = None
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    mrope_section: tuple[int, ...] = ()
    """Rotated pairs that turn by the time, height and width position, in turn; empty where there is one position."""

    @property
    def max_model_len(self) -> int:
        """Longest request the positions reach: interpolation by a factor may go beyond `max_position_embeddings`."""
        length = self.max_position_embeddings
        if self.factor is None or self.rope_type not in ("linear", "dynamic", "yarn"):
            return length
        stretched = self.original_max_position_embeddings if self.rope_type == "yarn" else length
        return max(length, int(stretched * self.factor))

    def rotary_dim(self, head_dim: int) -> int:
        """How many leading features of a head are rotated; ConfigError if that number is odd."""
        size = int(head_dim * self.partial_rotary_factor)
        if size % 2 or not 0 < size <= head_dim:
            raise ConfigError(
                f"partial_rotary_factor {self.partial_rotary_factor} rotates {size} of {head_dim} features; "
                "an even number between 2 and head_dim is needed"
            )
        return size


def read_rope(
    config: Mapping[str, Any],
    layer_type: str | None = None,
    *,
    default_theta: float = 10000.0,
    takes_partial: bool = False,
) -> RopeParameters:
    """Read the rope of one layer type from a `config.json`, in any of its spellings.

    Old: `rope_scaling` with `type` or `rope_type`, a top-level `rope_theta`, `partial_rotary_factor`,
    `original_max_position_embeddings` and (Gemma 3) `rope_local_base_freq`, which gives `sliding_attention` layers a
    rope of their own. New: `rope_parameters`, flat or one dict per layer type. `default_theta` is the family's value
    for a config that names none. `takes_partial`: the family rotates a part of each head where
    `partial_rotary_factor` says so; of the others, implementations ignore it or break.

    Raises:
        ConfigError: a field is missing or out of range.
        UnsupportedError: the rope type, or a setting that would change the result, is not implemented.
    """
    entry, theta = _entry(config, layer_type, default_theta)
    rope = _read(config, entry, theta)
    if not takes_partial and rope.partial_rotary_factor != 1.0:
        raise UnsupportedError(
            f"{config.get('model_type', 'this model')}: partial_rotary_factor {rope.partial_rotary_factor} is not "
            "supported, the family rotates whole heads; choices: 1.0"
        )
    return rope


def read_mrope(
    config: Mapping[str, Any], head_dim: int, default_section: Sequence[int], *, default_theta: float = 10000.0
) -> RopeParameters:
    """Read a rope with a position per axis (Qwen2-VL, arXiv:2409.12191): `read_rope`'s spellings, and `mrope_section`.

    The type `mrope` is `default` by its older name.

    Raises:
        ConfigError: as `read_rope`, or sections that do not add up to `head_dim` / 2.
        UnsupportedError: as `read_rope`.
    """
    given, theta = _entry(config, None, default_theta)
    section = given.get("mrope_section") or default_section
    if not all(type(size) is int and size > 0 for size in section) or sum(section) != head_dim // 2:
        raise ConfigError(f"mrope_section {list(section)} does not add up to half of head_dim {head_dim}")
    if len(section) % 3:
        raise ConfigError(f"mrope_section {list(section)} does not name time, height and width in turn")
    found = _read(config, _without_axes(given, "mrope_section"), theta)
    return dataclasses.replace(found, mrope_section=tuple(section))


def read_rope_of_text(config: Mapping[str, Any], *, default_theta: float = 10000.0) -> RopeParameters:
    """Read the rope of a model with a position per axis (see `read_mrope`) of which text alone is run.

    A text token has the same position along all axes, so that it does not matter by which of them a pair turns:
    positions are [T], and `mrope_section` and `mrope_interleaved` are left out.

    Raises:
        ConfigError, UnsupportedError: as `read_rope`.
    """
    given, theta = _entry(config, None, default_theta)
    return _read(config, _without_axes(given, "mrope_section", "mrope_interleaved"), theta)


def _without_axes(given: Mapping[str, Any], *settings: str) -> dict[str, Any]:
    """The rope dict without `settings`; the type `mrope` is `default` by its older name."""
    return {
        key: "default" if key in ("rope_type", "type") and value == "mrope" else value
        for key, value in given.items()
        if key not in settings
    }


def _read(config: Mapping[str, Any], entry: Mapping[str, Any], theta: float | None) -> RopeParameters:
    max_position = _integer(config, "max_position_embeddings")
    rope_type = entry.get("rope_type", entry.get("type", "default"))
    rope_type = ALIASES.get(rope_type, rope_type)
    if rope_type not in _FORMULAS:
        raise UnsupportedError(f"unsupported rope type {rope_type!r}; choices: {', '.join(sorted(_FORMULAS))}")
    refused = [key for key in UNSUPPORTED_KEYS if entry.get(key)]
    if refused:
        raise UnsupportedError(f"unsupported rope setting {refused[0]!r} (rope type {rope_type!r})")
    partial = entry.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    rope = RopeParameters(
        rope_type=rope_type,
        rope_theta=_number({"rope_theta": theta}, "rope_theta"),
        partial_rotary_factor=1.0 if partial is None else float(partial),
        max_position_embeddings=max_position,
        original_max_position_embeddings=_original_length(config, entry, max_position),
        factor=_optional(entry, "factor"),
        attention_factor=_optional(entry, "attention_factor"),
        beta_fast=_optional(entry, "beta_fast") or 32.0,
        beta_slow=_optional(entry, "beta_slow") or 1.0,
        mscale=_optional(entry, "mscale"),
        mscale_all_dim=_optional(entry, "mscale_all_dim"),
        truncate=bool(entry.get("truncate", True)),
        low_freq_factor=_optional(entry, "low_freq_factor"),
        high_freq_factor=_optional(entry, "high_freq_factor"),
        short_factor=_factors(entry, "short_factor"),
        long_factor=_factors(entry, "long_factor"),
    )
    _check_required(rope)
    return rope


def inv_freq_and_scale(
    rope: RopeParameters, rotary_dim: int, max_model_len: int | None = None
) -> tuple[torch.Tensor, float]:
    """Inverse frequencies [rotary_dim / 2] float32 (on the CPU), and the factor on cos and sin.

    `max_model_len` (tokens; None means `max_position_embeddings`) chooses LongRoPE's factors and dynamic NTK's base.
    """
    length = rope.max_position_embeddings if max_model_len is None else max_model_len
    with torch.device("cpu"):
        return _FORMULAS[rope.rope_type](rope, rotary_dim, length)


def cos_sin_table(rope: RopeParameters, rotary_dim: int, max_model_len: int | None = None) -> torch.Tensor:
    """[max_model_len, rotary_dim] float32 on the CPU: a row's first half is cos, its second sin, both scaled."""
    length = rope.max_position_embeddings if max_model_len is None else max_model_len
    inv_freq, scale = inv_freq_and_scale(rope, rotary_dim, length)
    angles = torch.outer(torch.arange(length, dtype=torch.float32, device="cpu"), inv_freq)
    return torch.cat((angles.cos() * scale, angles.sin() * scale), dim=-1)


def yarn_softmax_scale_multiplier(rope: RopeParameters) -> float:
    """What DeepSeek models multiply the softmax scale by: the square of YaRN's `mscale_all_dim` magnitude, or 1."""
    if rope.rope_type == "default" or not rope.mscale_all_dim:
        return 1.0
    return _yarn_magnitude(_ratio(rope), rope.mscale_all_dim) ** 2


def _entry(
    config: Mapping[str, Any], layer_type: str | None, default_theta: float
) -> tuple[Mapping[str, Any], float | None]:
    """The rope dict of `layer_type` and its base."""
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"rope_scaling must be a dictionary, got {given!r}")
    theta = config.get("rope_theta", default_theta)
    local_theta = config.get("rope_local_base_freq") if layer_type == "sliding_attention" else None
    nested = {key: value for key, value in given.items() if isinstance(value, Mapping)}
    if nested:
        if layer_type not in nested:
            raise ConfigError(f"no rope for layer type {layer_type!r}; choices: {', '.join(sorted(nested))}")
        entry = nested[layer_type]
        fallback = theta if local_theta is None else local_theta
    elif local_theta is not None:
        entry, fallback = {}, local_theta
    else:
        entry, fallback = given, theta
    return entry, entry.get("rope_theta", fallback)


def _original_length(config: Mapping[str, Any], entry: Mapping[str, Any], max_position: int) -> int:
    """A top-level value wins over the dict's, as in `transformers` (Phi-3 keeps it there)."""
    for place in (config, entry):
        if place.get("original_max_position_embeddings") is not None:
            return _integer(place, "original_max_position_embeddings")
    return max_position


def _integer(place: Mapping[str, Any], name: str) -> int:
    value = place.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 1:
        raise ConfigError(f"{name} must be a positive integer, got {value!r}")
    return int(value)


def _number(place: Mapping[str, Any], name: str) -> float:
    value = place.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise ConfigError(f"{name} must be a positive number, got {value!r}")
    return float(value)


def _optional(entry: Mapping[str, Any], name: str) -> float | None:
    """A number, None where it is absent, null or 0 (which `transformers` takes as absent)."""
    return None if not entry.get(name) else _number(entry, name)


def _factors(entry: Mapping[str, Any], name: str) -> tuple[float, ...]:
    values = entry.get(name) or ()
    if not isinstance(values, list | tuple):
        raise ConfigError(f"{name} must be a list of numbers, got {values!r}")
    return tuple(_number({name: value}, name) for value in values)


_REQUIRED = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor"),
}


def _check_required(rope: RopeParameters) -> None:
    for name in _REQUIRED.get(rope.rope_type, ()):
        if not getattr(rope, name):
            raise ConfigError(f"rope type {rope.rope_type!r} needs {name!r}, which the config does not give")
    if rope.rope_type == "llama3" and rope.high_freq_factor == rope.low_freq_factor:
        raise ConfigError(f"high_freq_factor and low_freq_factor are both {rope.low_freq_factor}")


def _ratio(rope: RopeParameters) -> float:
    """How many times longer than its first training length the model was stretched to be."""
    if rope.factor is not None:
        return rope.factor
    return rope.max_position_embeddings / rope.original_max_position_embeddings


def _given(value: float | None) -> float:
    assert value is not None, "read_rope has checked that the field is there"
    return value


def _powers(theta: float, rotary_dim: int) -> torch.Tensor:
    """theta ** (2 i / rotary_dim), [rotary_dim / 2]."""
    return theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)


def _default(rope: RopeParameters, rotary_dim: int, length: int) -> tuple[torch.Tensor, float]:
    """RoFormer, arXiv:2104.09864."""
    return 1.0 / _powers(rope.rope_theta, rotary_dim), 1.0


def _linear(rope: RopeParameters, rotary_dim: int, length: int) -> tuple[torch.Tensor, float]:
    """Position interpolation, arXiv:2306.15595."""
    return 1.0 / _powers(rope.rope_theta, rotary_dim) / _given(rope.factor), 1.0


def _dynamic(rope: RopeParameters, rotary_dim: int, length: int) -> tuple[torch.Tensor, float]:
    """NTK-aware scaling with the base chosen for `length`; the default rope up to `max_position_embeddings`."""
    if rotary_dim < 4:
        raise ConfigError(f"rope type 'dynamic' needs at least 4 rotated features, got {rotary_dim}")
    factor = _given(rope.factor)
    stretch = factor * max(length, rope.max_position_embeddings) / rope.max_position_embeddings - (factor - 1)
    theta = rope.rope_theta * stretch ** (rotary_dim / (rotary_dim - 2))
    return 1.0 / _powers(theta, rotary_dim), 1.0


def _yarn_magnitude(scale: float, mscale: float = 1.0) -> float:
    return 1.0 if scale <= 1 else 0.1 * mscale * math.log(scale) + 1.0


def _yarn_attention_factor(rope: RopeParameters) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    scale = _ratio(rope)
    if rope.mscale and rope.mscale_all_dim:
        return _yarn_magnitude(scale, rope.mscale) / _yarn_magnitude(scale, rope.mscale_all_dim)
    return _yarn_magnitude(scale)


def _yarn(rope: RopeParameters, rotary_dim: int, length: int) -> tuple[torch.Tensor, float]:
    """YaRN, arXiv:2309.00071: interpolate slow features, keep fast ones, a ramp between."""

    def feature(rotations: float) -> float:
        turns = rope.original_max_position_embeddings / (rotations * 2 * math.pi)
        return rotary_dim * math.log(turns) / (2 * math.log(rope.rope_theta))

    low, high = feature(rope.beta_fast), feature(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(rotary_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    powers = _powers(rope.rope_theta, rotary_dim)
    keep = 1 - ramp
    inv_freq = 1.0 / (_ratio(rope) * powers) * (1 - keep) + 1.0 / powers * keep
    return inv_freq, _yarn_attention_factor(rope)


def _longrope(rope: RopeParameters, rotary_dim: int, length: int) -> tuple[torch.Tensor, float]:
    """LongRoPE, arXiv:2402.13753: searched factors per feature, short ones up to the original length."""
    original = rope.original_max_position_embeddings
    name = "long_factor" if length > original else "short_factor"
    factors = torch.tensor(getattr(rope, name), dtype=torch.float32)
    if len(factors) != rotary_dim // 2:
        raise ConfigError(f"{name} has {len(factors)} values; {rotary_dim // 2} are needed, one per rotated pair")
    scale = rope.attention_factor
    if scale is None:
        ratio = _ratio(rope)
        scale = 1.0 if ratio <= 1.0 else math.sqrt(1 + math.log(ratio) / math.log(original))
    return 1.0 / (factors * _powers(rope.rope_theta, rotary_dim)), scale


def _llama3(rope: RopeParameters, rotary_dim: int, length: int) -> tuple[torch.Tensor, float]:
    """Llama 3.1: divide slow features by `factor`, keep fast ones, blend between the two wavelengths."""
    factor, low, high = (_given(value) for value in (rope.factor, rope.low_freq_factor, rope.high_freq_factor))
    inv_freq = 1.0 / _powers(rope.rope_theta, rotary_dim)
    wavelength = 2 * math.pi / inv_freq
    original = rope.original_max_position_embeddings
    blend = (original / wavelength - low) / (high - low)
    blended = (1 - blend) * inv_freq / factor + blend * inv_freq
    slow, fast = wavelength > original / low, wavelength < original / high
    return torch.where(slow, inv_freq / factor, torch.where(fast, inv_freq, blended)), 1.0


_Formula = Callable[[RopeParameters, int, int], tuple[torch.Tensor, float]]
_FORMULAS: Mapping[str, _Formula] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
