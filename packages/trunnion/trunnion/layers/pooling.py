"""Pooling: from the hidden states of the rows asked for to embeddings, as the checkpoint's pooling says."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from trunnion.config import BuildContext


class LastTokenPooling(nn.Module):
    """The rows asked for are the last tokens of their prompts: what is left is to scale them to length 1, if asked."""

    def __init__(self, *, ctx: BuildContext) -> None:
        super().__init__()
        assert ctx.pooling is not None, "a pooling model is built for a checkpoint that says how it pools"
        self.normalize = ctx.pooling.normalize

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, hidden_size] -> [N, hidden_size] float32; of length 1 if normalised, a row of zeros stays one."""
        hidden = hidden.float()
        return F.normalize(hidden, dim=-1) if self.normalize else hidden
