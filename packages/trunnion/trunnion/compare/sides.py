"""The sides of a comparison: a port or the adapter on a hardware's groups, or transformers' module as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from trunnion import registry
from trunnion.adapter import adapter_class
from trunnion.compare.published import load_published
from trunnion.compare.recording import Call, joined, recording
from trunnion.config import DTYPES, ExecutorConfig
from trunnion.errors import UnknownArchitectureError, UnsupportedError
from trunnion.families import naming_the_line
from trunnion.interfaces.hardware import Hardware
from trunnion.interfaces.model import CausalLM, Model
from trunnion.runner.bare_steps import BareSteps, Part
from trunnion.runner.load_model import load_model
from trunnion.weights.checkpoint import open_checkpoint

PORT, ADAPTER, HF = "port", "adapter", "hf"
SIDES = (PORT, ADAPTER, HF)


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What one side did."""

    title: str
    """What ran, and where."""
    calls: Mapping[str, Call]
    """By module, and `logits`."""
    notes: Sequence[str] = ()
    """The account of its weights."""


@torch.inference_mode()
def record(
    side: str | None, config: ExecutorConfig, hardware: Hardware, requests: Sequence[Sequence[int]]
) -> Recording:
    """Load the checkpoint that `config` names, and run the requests: all in one step, or in transformers one by one.

    Args:
        side: one of SIDES; None: what would run it, the port or else the adapter.
        config: its dtype is no "auto".
        hardware: what runs a port or the adapter; transformers runs on the host.
        requests: of each its token ids.

    Raises:
        UnsupportedError: there is no such side of this checkpoint, or it is no language model.
        ConfigError, WeightsError, PortError, ValueError: as loading does.
    """
    if side == HF:
        return _record_published(config, requests)
    return _record_ours(side, config, hardware, requests)


def _record_ours(
    side: str | None, config: ExecutorConfig, hardware: Hardware, requests: Sequence[Sequence[int]]
) -> Recording:
    found, model_class, folder = _find(side, config)
    with nullcontext() if folder is None else naming_the_line(folder):
        loaded = load_model(config, hardware, None, model_class)
        model = loaded.model
        if not isinstance(model, CausalLM):
            raise UnsupportedError(f"{type(model).__name__} is no language model: there are no logits to compare")
        bare = BareSteps(
            model, hardware, loaded.device, requests, block_size=config.limits.block_size, breaks=loaded.breaks
        )
        with recording(model, found) as calls:
            hidden, logits = bare.run([Part(index, 0, len(token_ids)) for index, token_ids in enumerate(requests)])
    calls["logits"] = Call(hidden.float().cpu(), logits.float().cpu())
    notes = loaded.weight_report.lines()
    name = f"{model_class.__module__ if folder is None else folder}.{model_class.__name__}"
    return Recording(title=f"{found} ({name}) on {hardware.name}", calls=calls, notes=notes)


def _find(side: str | None, config: ExecutorConfig) -> tuple[str, type[Model], Path | None]:
    """Which side it is, the class that runs it, and the folder of a port that is not installed."""
    checkpoint = open_checkpoint(config.model)
    pools, is_file = checkpoint.pooling is not None, checkpoint.path.is_file()
    if side == ADAPTER:
        why = f"{config.model}: the adapter was asked for"
        return ADAPTER, adapter_class(checkpoint.config, why, is_other=pools or is_file), None
    try:
        family, model_class = registry.find_model(checkpoint.config, pooling=pools, port=config.port)
    except UnknownArchitectureError as error:
        if side == PORT:
            raise
        return ADAPTER, adapter_class(checkpoint.config, str(error), is_other=pools or is_file), None
    return PORT, model_class, family.folder


def _record_published(config: ExecutorConfig, requests: Sequence[Sequence[int]]) -> Recording:
    module, version = load_published(config.model, DTYPES[config.dtype])
    parts = []
    for token_ids in requests:
        try:
            with recording(module, HF) as calls:
                logits = module(input_ids=torch.tensor([list(token_ids)]), use_cache=False).logits[0].float()
        except Exception as error:
            # The module is not ours: its words are the reason.
            reason = " ".join(str(error).split())[:300]
            raise UnsupportedError(f"transformers cannot run {config.model}: {reason}") from error
        parts.append({**calls, "logits": Call(None, logits)})
    return Recording(title=f"transformers {version} ({type(module).__name__}) on the host", calls=joined(parts))
