"""The truth of models that see whole prompts: what transformers makes of every beginning of a sequence, alone."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import AutoModel, AutoModelForSequenceClassification, PreTrainedModel

from trunnion_models.card import Card


def encoder_class(card: Card) -> type[AutoModel] | type[AutoModelForSequenceClassification]:
    """Which of transformers' classes the card is one of."""
    return AutoModel if card.pooling is not None else AutoModelForSequenceClassification


@torch.inference_mode()
def rows_of_prefixes(folder: Path, dtype: torch.dtype, ids: torch.Tensor, card: Card) -> torch.Tensor:
    """[sequences, tokens, width] float32: the embedding, or the scores, of the prompt that ends at each position."""
    model = encoder_class(card).from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    rows = [_pooled(model, ids[:, :length], card) for length in range(1, ids.shape[1] + 1)]
    return torch.stack(rows, dim=1).float()


def _pooled(model: PreTrainedModel, ids: torch.Tensor, card: Card) -> torch.Tensor:
    """As sentence-transformers does it, without padding."""
    given = {}
    if card.second_texts:
        types = [card.token_types(index, len(row)) or [0] * len(row) for index, row in enumerate(ids)]
        given["token_type_ids"] = torch.tensor(types)
    if card.pooling is None:
        scores: torch.Tensor = model(ids, **given).logits
        return scores
    hidden = model(ids, **given).last_hidden_state
    pooled = hidden[:, 0] if card.pooling.mode == "cls" else hidden.sum(1) / ids.shape[1]
    return F.normalize(pooled, p=2, dim=-1) if card.pooling.normalize else pooled
