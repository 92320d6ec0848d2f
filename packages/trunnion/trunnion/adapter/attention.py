"""Attention of an adapted model: transformers' attention interface on one side, our layers and groups on the other.

The function that transformers calls is one for all models and knows none of them. What belongs to a model hangs at its
attention modules: the calls that each makes in a forward, found once by a trial (`trial.py`), and a layer for each.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

from trunnion.adapter.masks import Mask, make_mask
from trunnion.config import BuildContext
from trunnion.errors import UnsupportedError
from trunnion.layers.attention import Attention

if TYPE_CHECKING:
    from trunnion.adapter.latent import Handed, LatentAttention

NAME = "trunnion"
"""The adapter's name among transformers' implementations of attention."""
HANDLER = "_trunnion_attention"
"""Where an attention module keeps what answers its calls."""
UNKNOWN_ARGUMENTS = ("position_bias", "indices", "block_indices")
"""Arguments that would change the result and have no place in our layers."""


def register() -> None:
    """Make `NAME` known to transformers; doing so again changes nothing."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, make_mask)


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """query [1, H, T, D], key and value [1, Hk, T, D or Dv] of all requests one after the other -> [1, T, H, Dv]."""
    if HANDLER not in module.__dict__:
        raise UnsupportedError(f"{type(module).__name__} was not among the attention modules of the trial")
    call = AttentionCall.of(module, query, key, value, attention_mask, scaling, options)
    return module.__dict__[HANDLER](call), None


def eager_configs(module: nn.Module) -> dict[nn.Module, Any]:
    """For `module` and those in it: a copy of its configuration that asks for transformers' eager attention."""
    copies: dict[int, Any] = {}
    found = {}
    for each in module.modules():
        config = getattr(each, "config", None)
        if not hasattr(config, "_attn_implementation_internal"):
            continue
        if id(config) not in copies:
            copies[id(config)] = copy.copy(config)
            copies[id(config)]._attn_implementation_internal = "eager"
        found[each] = copies[id(config)]
    return found


@dataclass(frozen=True)
class AttentionCall:
    """One call, checked: what can be told of it without looking at a value."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: Mask | None
    scale: float
    soft_cap: float | None
    sinks: torch.Tensor | None

    @classmethod
    def of(
        cls,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: Any,
        scaling: float | None,
        options: Mapping[str, Any],
    ) -> AttentionCall:
        """UnsupportedError for what our layers have no place for."""
        name = type(module).__name__
        for argument in UNKNOWN_ARGUMENTS:
            if options.get(argument) is not None:
                raise UnsupportedError(f"{name} gives attention {argument}")
        if mask is not None and not isinstance(mask, Mask):
            raise UnsupportedError(f"{name} makes a mask of its own ({type(mask).__name__})")
        if mask is None and not getattr(module, "is_causal", True):
            raise UnsupportedError(f"{name} attends without a mask")
        if query.shape[0] != 1 or key.shape[2] != query.shape[2] or value.shape[2] != query.shape[2]:
            raise UnsupportedError(f"{name} attends over {list(key.shape)} with queries {list(query.shape)}")
        sinks = next((options[key] for key in ("s_aux", "sinks") if options.get(key) is not None), None)
        if sinks is None and isinstance(own := getattr(module, "sinks", None), torch.Tensor):
            sinks = own
        if sinks is not None and sinks.dim() != 1:
            raise UnsupportedError(f"{name} has sinks of shape {list(sinks.shape)}, expected one per head")
        scale = query.shape[3] ** -0.5 if scaling is None else float(scaling)
        return cls(query, key, value, mask, scale, options.get("softcap"), sinks)

    def facts(self) -> dict[str, Any]:
        """The arguments of the layer that answers such calls; UnsupportedError of a mask that is no window."""
        return {
            "num_heads": self.query.shape[1],
            "head_dim": max(self.query.shape[3], self.value.shape[3]),
            "num_kv_heads": self.key.shape[1],
            "scale": self.scale,
            "window": None if self.mask is None else self.mask.window(),
            "soft_cap": self.soft_cap,
            "sinks": self.sinks is not None,
        }


@dataclass
class ModuleCalls:
    """The calls that one module makes in a forward, in order, and their layers: a looped module has several."""

    handed: Handed
    layers: list[Attention | LatentAttention] = field(default_factory=list)
    next: int = 0

    def __call__(self, call: AttentionCall) -> torch.Tensor:
        layer = self.layers[self.next % len(self.layers)]
        self.next += 1
        handed = self.handed.take()
        if not isinstance(layer, Attention):
            return layer.answer(call, handed)
        query, key, value = (rows[0].transpose(0, 1) for rows in (call.query, call.key, call.value))  # [T, H, D]
        out = layer(*(_widened(rows, layer.head_dim) for rows in (query, key, value)))
        return out.unflatten(1, (query.shape[1], -1))[:, :, : value.shape[2]].unsqueeze(0)


def _widened(rows: torch.Tensor, size: int) -> torch.Tensor:
    """Heads side by side, which groups need, and zeros behind their features where queries and values have different
    sizes: no score and no value changes."""
    return F.pad(rows, (0, size - rows.shape[2])).contiguous() if rows.shape[2] < size else rows.contiguous()


def make_layer(facts: Mapping[str, Any], name: str, ctx: BuildContext) -> Attention:
    """The layer of ours that answers calls with these facts; ValueError if heads do not divide."""
    return Attention(**facts, ctx=ctx, prefix=f"{name}.attn")
