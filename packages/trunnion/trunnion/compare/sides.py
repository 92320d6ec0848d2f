"""The two sides of a comparison: one prompt, whole, through this repository's model and through transformers'."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trunnion.compare.recording import Call, recording
from trunnion.config import ExecutorConfig
from trunnion.errors import UnsupportedError
from trunnion.interfaces.model import CausalLM
from trunnion.runner.bare_steps import BareSteps, Part
from trunnion.runner.load_model import LoadedModel, load_model


@torch.inference_mode()
def record_here(config: ExecutorConfig, token_ids: Sequence[int]) -> tuple[LoadedModel, dict[str, Call]]:
    """Load what `config` names, and run the tokens eagerly on its hardware's groups.

    Raises:
        UnsupportedError: it is no language model; and as `load_model`.
    """
    loaded = load_model(config, None, None)
    model = loaded.model
    if not isinstance(model, CausalLM):
        raise UnsupportedError(f"{type(model).__name__} is no language model: there are no logits to compare")
    bare = BareSteps(
        model, loaded.hardware, loaded.device, [token_ids], block_size=config.limits.block_size, breaks=loaded.breaks
    )
    with recording(model) as calls:
        hidden, logits = bare.run([Part(0, 0, len(token_ids))])
    calls["logits"] = Call(hidden.float().cpu(), logits.float().cpu())
    return loaded, calls


@torch.inference_mode()
def record_there(loaded: LoadedModel, config: ExecutorConfig, token_ids: Sequence[int]) -> dict[str, Call]:
    """Transformers' module of the same checkpoint in the same dtype, on the host, with its eager attention."""
    from transformers import AutoModelForCausalLM

    try:
        module = AutoModelForCausalLM.from_pretrained(
            config.model, dtype=loaded.dtype, attn_implementation="eager", local_files_only=True
        ).eval()
        with recording(module) as calls:
            logits = module(input_ids=torch.tensor([list(token_ids)]), use_cache=False).logits[0]
    except Exception as error:
        # The module is not ours: its words are the reason.
        raise UnsupportedError(
            f"transformers cannot run {config.model}: {' '.join(str(error).split())[:300]}"
        ) from None
    calls["logits"] = Call(None, logits.float())
    return calls
