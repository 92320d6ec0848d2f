"""A tiny Llama and an EAGLE-3 draft that was trained for it, in checkpoints of their own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from .eagle3_reference import FOLDER, Eagle3Reference, streams

SEED = 22
CONTEXT = 0.15
"""Layers add so much to the embedding: little, so that a draft can learn in seconds what the whole decoder says."""
NUM_SEQUENCES, SEQUENCE_LENGTH, BATCH = 192, 40, 16
TRAINING_STEPS = 20
NUM_TOKENS = 110
"""That can be drafted; the target has some more, so that it says now and then what no draft can be."""
SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
DRAFT: dict[str, Any] = SIZES | {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "num_hidden_layers": 1,
    "num_key_value_heads": 4,
    "draft_vocab_size": NUM_TOKENS,
}


@dataclass(frozen=True)
class TrainedEagle3:
    """Two checkpoint folders, and the reference implementations of both."""

    folder: Path
    target: PreTrainedModel
    head: Eagle3Reference

    @property
    def draft_model(self) -> Path:
        """The folder of the draft's checkpoint."""
        return self.folder / FOLDER

    @property
    def token_ids(self) -> torch.Tensor:
        """The tokens that the columns of `draft_logits` are."""
        return self.head.token_ids

    @torch.inference_mode()
    def greedy(self, prompt: list[int], num_tokens: int) -> list[int]:
        """The target's most likely continuation, computed anew for every token."""
        tokens = list(prompt)
        for _ in range(num_tokens):
            tokens.append(int(self.target(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
        return tokens[len(prompt) :]

    def draft(self, tokens: list[int], num_drafts: int) -> list[int]:
        """What the head drafts after `tokens`, of which the target has not seen the last."""
        drafts: list[int] = self.token_ids[self.draft_logits(tokens, num_drafts).argmax(-1)].tolist()
        return drafts

    @torch.inference_mode()
    def draft_logits(self, tokens: list[int], num_drafts: int) -> torch.Tensor:
        """The logits of each draft, [num_drafts, NUM_TOKENS]."""
        hidden = self.head.combine(streams(self.target, torch.tensor([tokens[:-1]])))
        drafted, rows = list(tokens), []
        for _ in range(num_drafts):
            out = self.head(self.head.embed(torch.tensor([drafted[1:]]), self.target), hidden)
            rows.append(self.head.logits(out[:, -1], self.target))
            drafted.append(int(self.token_ids[rows[-1].argmax()]))
            # A draft has no target's state to go by, so what its layer returned stands for it.
            hidden = torch.cat((hidden, out[:, -1:]), dim=1)
        return torch.cat(rows)


def save_trained_eagle3(folder: Path, *, num_layers: int = 6) -> TrainedEagle3:
    """Make a random float32 target, train a draft for it (a few seconds), and save both, the draft within `folder`.

    The vocabulary has 131 tokens, requests reach 256.
    """
    generator = torch.Generator().manual_seed(SEED)
    torch.manual_seed(SEED)
    target = _random_target(generator, num_layers)
    head = Eagle3Reference(DRAFT, num_layers, SIZES["hidden_size"])
    head.choose_tokens(torch.randperm(SIZES["vocab_size"], generator=generator)[:NUM_TOKENS].sort().values)
    _train(head, target, generator)
    target.save_pretrained(folder)
    head.save(folder / FOLDER, torch.float32)
    return TrainedEagle3(folder, target.eval(), head.eval())


def _random_target(generator: torch.Generator, num_layers: int) -> PreTrainedModel:
    config = AutoConfig.for_model("llama", **SIZES, num_hidden_layers=num_layers, architectures=["LlamaForCausalLM"])
    target = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().requires_grad_(False)
    for name, parameter in target.named_parameters():
        if parameter.dim() > 1:
            scale = CONTEXT if any(part in name for part in ("o_proj", "down_proj")) else 1.4
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise if "embed_tokens" in name else noise * (scale / parameter.shape[-1] ** 0.5))
    return target


def _train(head: Eagle3Reference, target: PreTrainedModel, generator: torch.Generator) -> None:
    """Make the head say at each row what the target says a token later, as far as it can say it."""
    with torch.no_grad():
        _begin(head, target, generator)
        ids = torch.randint(0, target.config.vocab_size, (NUM_SEQUENCES, SEQUENCE_LENGTH), generator=generator)
        states = streams(target, ids)
        wanted = target(ids, use_cache=False).logits[..., head.token_ids].log_softmax(-1)
        embeds = head.embed(ids, target)
    optimizer = torch.optim.Adam(head.parameters(), lr=4e-3)
    for _ in range(TRAINING_STEPS):
        rows = torch.randint(0, NUM_SEQUENCES, (BATCH,), generator=generator)
        out = head(embeds[rows, 1:], head.combine(states[:, rows, :-1]))
        said = head.logits(out, target).log_softmax(-1).flatten(0, 1)
        loss = F.kl_div(said, wanted[rows, 1:].flatten(0, 1), log_target=True, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _begin(head: Eagle3Reference, target: PreTrainedModel, generator: torch.Generator) -> None:
    """Attention that passes a row's own embedding on, and the target's own head: most of what the target goes by."""
    for parameter in head.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(noise * (0.1 / parameter.shape[-1] ** 0.5) if parameter.dim() > 1 else 1 + 0.05 * noise)
    size, attn = head.config.hidden_size, head.midlayer.self_attn
    for projection, scale in ((attn.q_proj, 1.5), (attn.k_proj, 1.5), (attn.v_proj, 1.0), (attn.o_proj, 1.0)):
        projection.weight[:, :size] += scale * torch.eye(size)
    head.lm_head.weight.copy_(target.lm_head.weight[head.token_ids])
