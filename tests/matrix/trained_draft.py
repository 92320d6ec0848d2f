"""A tiny Qwen3-Next with an MTP head that was trained to draft for it, as one checkpoint in the published names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from trunnion_models.qwen3_next.card import CARDS

from .hf_reference import save_with_head
from .mtp_reference import MTPReference

SEED = 22
MAX_POSITION_EMBEDDINGS = 256
CONTEXT = 0.5
"""Layers add so much to the embedding: little, so that a head can learn in seconds what the whole decoder says."""
NUM_SEQUENCES, SEQUENCE_LENGTH, BATCH = 192, 40, 16
TRAINING_STEPS = 100


@dataclass(frozen=True)
class TrainedDraft:
    """A checkpoint folder that serves as target and as draft, and the reference implementations of both."""

    folder: Path
    target: PreTrainedModel
    head: MTPReference
    draft_model: Path | None = None
    """The head lies in the target's checkpoint."""

    @property
    def token_ids(self) -> torch.Tensor:
        """The tokens that the columns of `draft_logits` are: all."""
        return torch.arange(self.target.config.vocab_size)

    @torch.inference_mode()
    def greedy(self, prompt: list[int], num_tokens: int) -> list[int]:
        """The target's most likely continuation, computed anew for every token."""
        tokens = list(prompt)
        for _ in range(num_tokens):
            tokens.append(int(self.target(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
        return tokens[len(prompt) :]

    def draft(self, tokens: list[int], num_drafts: int) -> list[int]:
        """What the head drafts after `tokens`, of which the target has not seen the last."""
        drafts: list[int] = self.draft_logits(tokens, num_drafts).argmax(-1).tolist()
        return drafts

    @torch.inference_mode()
    def draft_logits(self, tokens: list[int], num_drafts: int) -> torch.Tensor:
        """The logits of each draft, [num_drafts, vocab_size]."""
        hidden = self.target.model(torch.tensor([tokens[:-1]]), use_cache=False).last_hidden_state
        drafted, rows = list(tokens), []
        for _ in range(num_drafts):
            out = self.head(self.target.model.embed_tokens(torch.tensor([drafted[1:]])), hidden)
            rows.append(self.target.lm_head(out[:, -1]))
            drafted.append(int(rows[-1].argmax()))
            # A draft has no target's state to go by, so its own one stands for it.
            hidden = torch.cat((hidden, out[:, -1:]), dim=1)
        return torch.cat(rows)


def save_trained_draft(folder: Path, *, training_steps: int = TRAINING_STEPS) -> TrainedDraft:
    """Make a random float32 target, train a head for it (a few seconds), and save both in `folder`.

    About two of three drafts come true on greedy text, in no even way over a batch. The vocabulary
    has 131 tokens, requests reach 256.
    """
    generator = torch.Generator().manual_seed(SEED)
    target = _random_target(generator)
    head = MTPReference(target.config)
    _train(head, target, training_steps, generator)
    target.save_pretrained(folder)
    save_with_head(folder, head)
    return TrainedDraft(folder, target.eval(), head.eval())


def _random_target(generator: torch.Generator) -> PreTrainedModel:
    settings = {**CARDS[0].config, "max_position_embeddings": MAX_POSITION_EMBEDDINGS}
    config = AutoConfig.for_model(settings.pop("model_type"), **settings, architectures=[CARDS[0].architecture])
    torch.manual_seed(SEED)
    target = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().requires_grad_(False)
    for name, parameter in target.named_parameters():
        if parameter.dim() > 1 and "conv1d" not in name:
            scale = CONTEXT if any(part in name for part in ("o_proj", "out_proj", "down_proj")) else 1.4
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise if "embed_tokens" in name else noise * (scale / parameter.shape[-1] ** 0.5))
    return target


def _train(head: MTPReference, target: PreTrainedModel, steps: int, generator: torch.Generator) -> None:
    """Make the head say at each row what the target says a token later."""
    with torch.no_grad():
        for parameter in head.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * (0.3 / parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 0.05))
        # The embedding passes through: it is most of what the target goes by.
        head.fc.weight[:, : head.fc.out_features] += torch.eye(head.fc.out_features)
        ids = torch.randint(0, target.config.vocab_size, (NUM_SEQUENCES, SEQUENCE_LENGTH), generator=generator)
        hidden = target.model(ids, use_cache=False).last_hidden_state
        wanted = target.lm_head(hidden).log_softmax(-1)
        embeds = target.model.embed_tokens(ids)
    optimizer = torch.optim.Adam(head.parameters(), lr=4e-3)
    for _ in range(steps):
        rows = torch.randint(0, NUM_SEQUENCES, (BATCH,), generator=generator)
        out = head(embeds[rows, 1:], hidden[rows, :-1])
        said = target.lm_head(out).log_softmax(-1).flatten(0, 1)
        loss = F.kl_div(said, wanted[rows, 1:].flatten(0, 1), log_target=True, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
