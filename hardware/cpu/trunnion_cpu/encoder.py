"""Attention of an encoder on CPUs: torch's fused attention, one request at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from trunnion.reference.encoder import ReferenceEncoderGroup


class CpuEncoderGroup(ReferenceEncoderGroup):
    """The reference's plan; scores are never written out."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `ReferenceEncoderGroup.attend`."""
        cut = [x.transpose(0, 1).unsqueeze(0) for x in (q, k, v)]  # [1, H, n, D]
        return F.scaled_dot_product_attention(*cut, scale=self.spec.scale).squeeze(0).transpose(0, 1)
