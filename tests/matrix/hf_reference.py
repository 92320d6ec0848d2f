"""The truth of the matrix: a transformers model with random weights that matter, and its logits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from trunnion_models.card import Card

SEED = 1234


@dataclass(frozen=True)
class Reference:
    """One card's checkpoint in one dtype, its sequences and what the reference implementation says of them."""

    folder: Path
    sequences: list[list[int]]
    """Each `max_model_len` tokens long; tests use prefixes."""
    logits: torch.Tensor
    """[sequences, max_model_len, vocab_size] float32, computed in float32."""
    own_error: torch.Tensor | None
    """Same shape: what the reference implementation itself loses in bfloat16; None in float32."""


def build_reference(card: Card, dtype: torch.dtype, folder: Path) -> Reference:
    """Random weights rounded to `dtype`, saved in `folder`; logits in float32 of the same weights.

    Every sequence runs at full length, so that ropes that look at the length (dynamic, longrope) see the longest.
    """
    model = _random_model(card)
    model.to(dtype).save_pretrained(folder)
    del model
    generator = torch.Generator().manual_seed(SEED)
    vocab_size = card.config["vocab_size"]
    shape = (len(card.seq_lens), card.max_model_len)
    ids = torch.randint(0, vocab_size, shape, generator=generator)
    logits = _logits(folder, torch.float32, ids)
    own_error = None if dtype == torch.float32 else _logits(folder, dtype, ids) - logits
    return Reference(folder=folder, sequences=ids.tolist(), logits=logits, own_error=own_error)


def sensitivity(reference: Reference) -> float:
    """How much the third row's logits change with the first token, relative to their size: 0 if nothing is attended."""
    ids = torch.tensor(reference.sequences)
    changed = ids.clone()
    changed[:, 0] = (changed[:, 0] + 1) % reference.logits.shape[-1]
    difference = _logits(reference.folder, torch.float32, changed)[:, 2] - reference.logits[:, 2]
    return float(difference.abs().max() / reference.logits.abs().max())


@torch.inference_mode()
def _logits(folder: Path, dtype: torch.dtype, ids: torch.Tensor) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    return model(ids, use_cache=False).logits.float()


def _random_model(card: Card) -> PreTrainedModel:
    settings = dict(card.config)
    config = AutoConfig.for_model(settings.pop("model_type"), **settings, architectures=[card.architecture])
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _randomise(name, parameter, generator)
    assert type(model).__name__ == card.architecture, f"{card.name} is a {type(model).__name__}"
    return model


def _randomise(name: str, parameter: torch.Tensor, generator: torch.Generator) -> None:
    """Weights far from degenerate: scores that vary, norms off their start, biases that show, states that last."""
    noise = torch.randn(parameter.shape, generator=generator)
    if name.endswith("A_log"):
        parameter.copy_(torch.rand(parameter.shape, generator=generator).mul(2).add(0.2).log())
    elif name.endswith("dt_bias"):
        parameter.copy_(noise * 0.5 - 2)
    elif name.endswith("conv1d.weight"):
        parameter.copy_(noise * 0.6)
    elif name.endswith("bias"):
        parameter.copy_(noise * 0.3)
    elif parameter.dim() == 1:
        # Norms start at one, or at zero where an offset of one is added.
        parameter.add_(noise * 0.2)
    elif "embed_tokens" in name:
        parameter.copy_(noise * 0.4)
    elif name.endswith("mlp.gate.weight"):
        # Routers that decide: near ties would be decided by rounding.
        parameter.copy_(noise * (6 / parameter.shape[-1] ** 0.5))
    else:
        parameter.copy_(noise * (1.4 / parameter.shape[-1] ** 0.5))
