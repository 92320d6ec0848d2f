"""Joins a draft to the executor of its target: whether the two fit, and which of the target's modules it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from trunnion.config import ExecutorConfig
from trunnion.contract import CacheKind, Role
from trunnion.errors import UnsupportedError
from trunnion.interfaces.model import DraftModel, ModelConfig
from trunnion.layers.group_layer import GroupLayer

if TYPE_CHECKING:
    from trunnion.runner.model_executor import ModelExecutor

SAME_LIMITS = ("max_num_tokens", "max_num_seqs", "max_model_len")
"""Limits that a draft has in common with its target, whose requests and rows it follows."""
SAME_SETTINGS = ("hardware", "device_index", "tp_rank", "tp_size", "kv_cache_dtype")


def check_role(config: ExecutorConfig, target: ModelExecutor | None) -> None:
    """Before anything is loaded: a draft has a target that keeps its hidden states, nothing else has one.

    Raises:
        ValueError: the role, a setting or a limit does not go with the target.
    """
    if (config.role is Role.DRAFT) != (target is not None):
        raise ValueError(
            "a draft needs share_with, the executor of its target"
            if target is None
            else f"share_with is for a draft: role is {config.role.value!r}, choices: {Role.DRAFT.value!r}"
        )
    if target is None:
        return
    if target.config.role is Role.DRAFT or target.hidden is None:
        raise ValueError("share_with must be a target that was created with keep_hidden: a draft reads what it keeps")
    for name in SAME_SETTINGS:
        _check_same(name, getattr(config, name), getattr(target.config, name))
    for name in SAME_LIMITS:
        _check_same(name, getattr(config.limits, name), getattr(target.config.limits, name))


def check_model(config: ModelConfig, dtype: torch.dtype, target: ModelExecutor) -> None:
    """Before weights are loaded.

    Raises:
        ValueError: the draft's sizes or dtype are not its target's.
    """
    assert target.hidden is not None, "check_role has seen the target's hidden states"
    _check_same("vocab_size", config.vocab_size, target.vocab_size)
    _check_same("hidden_size", config.hidden_size, target.hidden.rows.shape[1])
    _check_same("dtype", str(dtype).removeprefix("torch."), str(target.hidden.rows.dtype).removeprefix("torch."))


def check_layers(draft: nn.Module) -> None:
    """Before weights are loaded.

    Raises:
        UnsupportedError: the draft has recurrent layers, whose states its own steps would use up.
    """
    for module in draft.modules():
        if isinstance(module, GroupLayer) and module.spec.kind is CacheKind.RECURRENT:
            raise UnsupportedError(
                f"{type(draft).__name__}: {module.prefix} is recurrent; a draft cannot take back what it drafted"
            )


def share_modules(draft: nn.Module, target: nn.Module) -> tuple[str, ...]:
    """Put the target's modules in the places of the draft's own -> their names.

    Raises:
        UnsupportedError: the target has no such module.
    """
    assert isinstance(draft, DraftModel), f"{type(draft).__name__} is not a draft"
    for name in draft.shared_modules:
        parent, _, leaf = name.rpartition(".")
        try:
            shared = target.get_submodule(name)
        except AttributeError:
            raise UnsupportedError(
                f"{type(draft).__name__} shares {name} with its target, and {type(target).__name__} has none"
            ) from None
        setattr(draft.get_submodule(parent), leaf, shared)
    return tuple(draft.shared_modules)


def shared_bytes(draft: nn.Module) -> int:
    """What the modules of its target take, which a draft's own account leaves out."""
    assert isinstance(draft, DraftModel), f"{type(draft).__name__} is not a draft"
    shared = {
        tensor.data_ptr(): tensor.numel() * tensor.element_size()
        for name in draft.shared_modules
        for tensor in (*draft.get_submodule(name).parameters(), *draft.get_submodule(name).buffers())
    }
    return sum(shared.values())


def _check_same(what: str, value: object, wanted: object) -> None:
    if value != wanted:
        raise ValueError(f"{what} {value!r} of the draft is not its target's, {wanted!r}")
