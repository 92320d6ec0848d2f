"""Joins a draft to the executor of its target: whether the two fit, what of the target it takes, and what it reads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from trunnion import registry
from trunnion.config import ExecutorConfig
from trunnion.contract import CacheKind, Role
from trunnion.errors import UnsupportedError
from trunnion.interfaces.model import AuxDraftModel, DraftModel, ModelConfig
from trunnion.layers.aux_hidden_states import AuxHiddenStates
from trunnion.layers.group_layer import GroupLayer
from trunnion.weights.checkpoint import open_checkpoint
from trunnion.weights.name_map import WeightMap
from trunnion.weights.plan import lies_in

if TYPE_CHECKING:
    from trunnion.runner.model_executor import ModelExecutor

SAME_LIMITS = ("max_num_tokens", "max_num_seqs", "max_model_len")
"""Limits that a draft has in common with its target, whose requests and rows it follows."""
SAME_SETTINGS = ("hardware", "device_index", "tp_rank", "tp_size", "kv_cache_dtype", "num_threads")


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
    for name in ("draft_model", "port"):
        _check_same(name, str(getattr(config, name)), str(getattr(target.config, name)))
    for name in SAME_LIMITS:
        _check_same(name, getattr(config.limits, name), getattr(target.config.limits, name))


def check_model(config: ModelConfig, dtype: torch.dtype, target: ModelExecutor) -> None:
    """Before weights are loaded.

    Raises:
        ValueError: the draft's sizes or dtype are not its target's.
    """
    assert target.hidden is not None, "check_role has seen the target's hidden states"
    _check_same("vocab_size", config.vocab_size, target.vocab_size)
    # A draft with a checkpoint of its own may be of another width, and says then which one it combines.
    own, wanted = getattr(config, "target_hidden_size", config.hidden_size), target.hidden_size
    _check_same("hidden_size" if own == config.hidden_size else "target_hidden_size", own, wanted)
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


def aux_layers(draft_model: Path, target: nn.Module, num_layers: int, port: Path | None = None) -> tuple[int, ...]:
    """After how many of its `num_layers` layers `target` must keep states for the draft at `draft_model`.

    `port`: see `ExecutorConfig.port`.

    Raises:
        UnsupportedError, ConfigError: it keeps none, or not there; there is no such draft.
    """
    config = open_checkpoint(draft_model).config
    draft_class = registry.own_draft_class(config, port=port)
    layers: tuple[int, ...] = draft_class.config_class.from_hf(config).aux_layers(num_layers)
    found = aux_hidden_states(target)
    if found is None:
        raise UnsupportedError(
            f"{draft_class.__name__} ({draft_model}) reads states between its target's layers, "
            f"and {type(target).__name__} keeps none"
        )
    try:
        found.check(layers)
    except ValueError as error:
        raise UnsupportedError(f"{draft_class.__name__} ({draft_model}) reads {list(layers)}: {error}") from None
    return layers


def aux_hidden_states(target: nn.Module) -> AuxHiddenStates | None:
    """What writes the states between the layers of `target`, if it has it."""
    return next((module for module in target.modules() if isinstance(module, AuxHiddenStates)), None)


def bind_aux_hidden_states(target: nn.Module, layers: Sequence[int], rows: torch.Tensor) -> None:
    """Let `target` write its states after `layers` into `rows` in every step."""
    found = aux_hidden_states(target)
    assert found is not None, "aux_layers has seen what writes them"
    found.bind(layers, rows)


def modules_to_share(draft: nn.Module, weight_map: WeightMap, stored: Iterable[str]) -> tuple[str, ...]:
    """The modules that `draft` takes from its target, its own checkpoint having the tensors `stored`."""
    assert isinstance(draft, DraftModel), f"{type(draft).__name__} is not a draft"
    if not isinstance(draft, AuxDraftModel):
        return tuple(draft.shared_modules)
    resolved = (weight_map.resolve(name) for name in stored)
    params = [target.param for targets in resolved if isinstance(targets, list) for target in targets]
    absent = (name for name in draft.shared_if_absent if not any(lies_in(param, (name,)) for param in params))
    return (*draft.shared_modules, *absent)


def share_modules(draft: nn.Module, target: nn.Module, names: Collection[str]) -> None:
    """Put the target's modules `names` in the places of the draft's own.

    Raises:
        UnsupportedError: the target has no such module.
    """
    for name in names:
        parent, _, leaf = name.rpartition(".")
        try:
            shared = target.get_submodule(name)
        except AttributeError:
            raise UnsupportedError(
                f"{type(draft).__name__} shares {name} with its target, and {type(target).__name__} has none"
            ) from None
        setattr(draft.get_submodule(parent), leaf, shared)


def shared_bytes(draft: nn.Module, names: Collection[str]) -> int:
    """What the modules `names` of its target take, which a draft's own account leaves out."""
    shared = {
        tensor.data_ptr(): tensor.numel() * tensor.element_size()
        for name in names
        for tensor in (*draft.get_submodule(name).parameters(), *draft.get_submodule(name).buffers())
    }
    return sum(shared.values())


def _check_same(what: str, value: object, wanted: object) -> None:
    if value != wanted:
        raise ValueError(f"{what} {value!r} of the draft is not its target's, {wanted!r}")
