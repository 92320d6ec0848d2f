"""The tokens that a draft can say: its logits of few of them, laid out over all of the target's."""

from __future__ import annotations

import math

import torch
from torch import nn

from trunnion.errors import WeightsError
from trunnion.interfaces.weights import Known, set_known


class DraftVocabulary(nn.Module):
    """Logits of the few tokens that a draft can say, as logits of all: those of the others are minus infinity.

    `d2t` [draft_vocab_size] is the checkpoint's: token i of the draft is token `i + d2t[i]`. Where the vocabularies are
    equally large a checkpoint may leave it out, and it must be zero.
    """

    def __init__(self, draft_vocab_size: int, vocab_size: int) -> None:
        super().__init__()
        self.draft_vocab_size, self.vocab_size = draft_vocab_size, vocab_size
        self.d2t: nn.Parameter | None = None
        self.token_ids: torch.Tensor | None
        """[draft_vocab_size] int64: the token that each of the draft's is; None where each is itself."""
        self.register_buffer("token_ids", None)
        if draft_vocab_size < vocab_size:
            self.d2t = nn.Parameter(torch.empty(draft_vocab_size, dtype=torch.int64), requires_grad=False)
        else:
            zero = Known(expected="zeros, for the draft can say every token", holds=lambda stored: not stored.any())
            set_known(self, {("d2t", ""): zero})

    def finalize(self) -> None:
        """Add up what the checkpoint holds as differences.

        Raises:
            WeightsError: a token that there is not, or that stands for two of the draft's.
        """
        if self.d2t is None:
            return
        ids = torch.arange(self.draft_vocab_size) + self.d2t.cpu()
        outside = (ids < 0) | (ids >= self.vocab_size)
        if outside.any():
            first = int(outside.nonzero()[0])
            raise WeightsError(
                f"d2t: token {first} of the draft is token {int(ids[first])}; choices: 0 ... {self.vocab_size - 1}"
            )
        found, counts = ids.unique(return_counts=True)
        if (counts > 1).any():
            raise WeightsError(f"d2t: several tokens of the draft are token {int(found[counts > 1][0])}")
        if self.token_ids is None:
            self.token_ids = ids.to(self.d2t.device)
        else:
            self.token_ids.copy_(ids)

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        """[N, draft_vocab_size] -> [N, vocab_size]."""
        if self.token_ids is None:
            return logits
        return logits.new_full((logits.shape[0], self.vocab_size), -math.inf).index_copy_(1, self.token_ids, logits)
