"""From a checkpoint to a loaded model and what it was loaded with: the part of `create` that knows no steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trunnion import registry
from trunnion.adapter import adapter_class
from trunnion.config import DTYPES, KV_CACHE_DTYPES, BuildContext, ExecutorConfig
from trunnion.errors import UnknownArchitectureError, UnsupportedError, WeightsError
from trunnion.hf_config import checkpoint_dtype
from trunnion.interfaces.break_points import BreakableCollectives, BreakPoints
from trunnion.interfaces.collectives import NoCollectives, ParallelGroup
from trunnion.interfaces.hardware import Hardware
from trunnion.interfaces.model import LoadsItself, Model, ModelConfig
from trunnion.interfaces.quantization import Quantization
from trunnion.runner import draft
from trunnion.weights.checkpoint import Checkpoint, open_checkpoint
from trunnion.weights.gguf_blocks import KeptBlocks, keep_blocks
from trunnion.weights.loader import load_weights
from trunnion.weights.name_map import WeightMap
from trunnion.weights.quantization_config import read_quantization
from trunnion.weights.quantization_of_layers import QuantizedLayers
from trunnion.weights.report import WeightReport, first_names
from trunnion.weights.source import WeightSource

if TYPE_CHECKING:
    from trunnion.runner.model_executor import ModelExecutor


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model with its weights on a device, its ranks and its break points."""

    model: torch.nn.Module
    config: ModelConfig
    dtype: torch.dtype
    device: torch.device
    hardware: Hardware
    parallel: ParallelGroup
    breaks: BreakPoints
    weight_report: WeightReport
    shared_modules: tuple[str, ...] = ()
    """Of a draft: those that are its target's."""
    aux_layers: tuple[int, ...] = ()
    """Of a target: after how many of its layers lie the states that its draft reads; empty: it reads the last ones."""


def load_model(
    config: ExecutorConfig,
    hardware: Hardware | None,
    target: ModelExecutor | None,
    chosen: type[Model] | None = None,
) -> LoadedModel:
    """Load the model that `config` names, or the draft for it if there is a target to share with.

    `chosen` runs it in the place of the class that its architecture has.

    Raises:
        UnsupportedError, ConfigError, WeightsError, ValueError: one line that names what is wrong.
    """
    draft.check_role(config, target)
    if target is not None:
        hardware = target.hardware
    hardware = registry.hardware(config.hardware) if hardware is None else hardware
    hardware = hardware.choosing(weights=config.weights, activations=config.activations)
    check_environment(hardware)
    check_block_size(config.limits.block_size, hardware)
    checkpoint, model_class = _find(config, target is not None, chosen)
    if checkpoint.path == config.model:
        check_weights(config.weights, checkpoint.path)
    model_config = model_class.config_class.from_hf(checkpoint.config)
    weight_map = model_class.weight_map.for_config(model_config)
    check_reach(config.limits.max_model_len, model_config.max_model_len, "model" if target is None else "draft")
    device = hardware.initialize(config.device_index)
    dtype = _dtype(config, checkpoint, target)
    if target is None:
        torch.set_num_threads(config.num_threads or hardware.default_threads(config.tp_size))
        breaks = BreakPoints()
        parallel = _join(hardware, config, breaks)
    else:
        # Its ranks are together already, and what is shared has its break points there.
        draft.check_model(model_config, dtype, target)
        breaks, parallel = target.breaks, target.parallel
    quantization, source = how_weights_are_kept(checkpoint, weight_map, hardware.weights)
    ctx = BuildContext(
        hardware=hardware,
        dtype=dtype,
        parallel=parallel,
        quantization=quantization,
        max_model_len=config.limits.max_model_len,
        pooling=checkpoint.pooling,
        kv_cache_dtype=KV_CACHE_DTYPES.get(config.kv_cache_dtype),
    )
    with torch.device("meta"):
        model = model_class(model_config, ctx)
    shared: tuple[str, ...] = ()
    aux_layers: tuple[int, ...] = ()
    if target is not None:
        draft.check_layers(model)
        shared = draft.modules_to_share(model, weight_map, checkpoint.source.infos)
        draft.share_modules(model, target.model, shared)
    elif config.draft_model is not None:
        aux_layers = draft.aux_layers(config.draft_model, model, model_config.num_hidden_layers, config.port)
    how: dict[str, Any] = {"dtype": dtype, "device": device, "progress": config.progress}
    if isinstance(model, LoadsItself):
        report = model.load(checkpoint, **how)
    else:
        report = load_weights(model, source, weight_map, shared_modules=shared, **how)
    if isinstance(quantization, KeptBlocks):
        report = dataclasses.replace(report, notes=(*report.notes, f"weights: {quantization.describe()}"))
    check_cache_scales(str(checkpoint.path), checkpoint.config, ctx, report.defaults)
    return LoadedModel(
        model=model.eval(),
        config=model_config,
        dtype=dtype,
        device=device,
        hardware=hardware,
        parallel=parallel,
        breaks=breaks,
        weight_report=report,
        shared_modules=shared,
        aux_layers=aux_layers,
    )


def _find(config: ExecutorConfig, is_draft: bool, chosen: type[Model] | None) -> tuple[Checkpoint, type[Model]]:
    """What is loaded, and the class that runs it."""
    if chosen is not None:
        return open_checkpoint(config.model), chosen
    if is_draft and config.draft_model is not None:
        checkpoint = open_checkpoint(config.draft_model)
        return checkpoint, registry.own_draft_class(checkpoint.config, port=config.port)
    checkpoint = open_checkpoint(config.model)
    if is_draft:
        return checkpoint, registry.draft_class(checkpoint.config, port=config.port)
    pooling = checkpoint.pooling is not None
    try:
        return checkpoint, registry.model_class(checkpoint.config, pooling=pooling, port=config.port)
    except UnknownArchitectureError as error:
        is_other = pooling or checkpoint.path.is_file()
        return checkpoint, adapter_class(checkpoint.config, str(error), is_other=is_other)


def _dtype(config: ExecutorConfig, checkpoint: Checkpoint, target: ModelExecutor | None) -> torch.dtype:
    """What is asked for, or the checkpoint's; a draft with its own runs in its target's, whatever it was saved in."""
    if config.dtype != "auto":
        return DTYPES[config.dtype]
    if target is not None and target.hidden is not None and config.draft_model is not None:
        return target.hidden.rows.dtype
    return checkpoint_dtype(checkpoint.config)


def how_weights_are_kept(
    checkpoint: Checkpoint, weight_map: WeightMap, weights: str
) -> tuple[Quantization | None, WeightSource]:
    """What its layers are told of the checkpoint's quantisation, and where their weights come from.

    Args:
        weights: of `trunnion.config.WEIGHTS`; "native" keeps blocks of GGUF as they lie.
    """
    if weights == "native" and checkpoint.path.suffix == ".gguf":
        return keep_blocks(checkpoint.source, weight_map)
    found = read_quantization(checkpoint.config)
    layers = None if found is None else QuantizedLayers(found, weight_map, checkpoint.source.infos)
    return layers, checkpoint.source


def check_cache_scales(
    source: str, config: Mapping[str, Any], ctx: BuildContext, defaults: Mapping[str, float]
) -> None:
    """WeightsError if `source` promises scales of an fp8 cache, and `defaults` had to be taken instead."""
    found = read_quantization(config)
    if ctx.kv_cache_dtype is not None and found is not None and found.has_cache_scales and defaults:
        raise WeightsError(
            f"{source}: config.json says (kv_cache_scheme) that every layer has scales of an fp8 cache; "
            f"missing: {first_names(tuple(defaults))}"
        )


def check_weights(weights: str, path: Path) -> None:
    """UnsupportedError if what lies at `path` has no weights to keep as they lie."""
    if weights == "native" and path.suffix != ".gguf":
        raise UnsupportedError(f"weights 'native' is for .gguf files, and {path} is none; choices: auto")


def check_environment(hardware: Hardware) -> None:
    """UnsupportedError if this machine lacks what `hardware` needs."""
    problems = [problem for problem in hardware.check_environment() if problem.fatal]
    if problems:
        first = problems[0]
        raise UnsupportedError(f"{first.what}: found {first.found}, {hardware.name} needs {first.needed}")


def check_block_size(block_size: int, hardware: Hardware) -> None:
    """ValueError if `hardware` has no such cache blocks."""
    if block_size % hardware.block_size_multiple:
        raise ValueError(
            f"block_size {block_size} is not for hardware {hardware.name!r}; "
            f"choices: multiples of {hardware.block_size_multiple}"
        )


def check_reach(max_model_len: int, longest: int, what: str) -> None:
    """ValueError if the positions of `what` do not reach so far."""
    if max_model_len > longest:
        raise ValueError(
            f"max_model_len {max_model_len} is above the {longest} tokens that the {what}'s positions reach"
        )


def _join(hardware: Hardware, config: ExecutorConfig, breaks: BreakPoints) -> ParallelGroup:
    if config.tp_size == 1:
        return ParallelGroup(rank=0, size=1, collectives=NoCollectives())
    collectives = hardware.collectives(config.tp_rank, config.tp_size, config.tp_init_method)
    return ParallelGroup(
        rank=config.tp_rank, size=config.tp_size, collectives=BreakableCollectives(collectives, breaks)
    )
