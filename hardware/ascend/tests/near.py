"""How near a simulated operator's result must be to what is exact."""

from __future__ import annotations

import torch


def assert_near(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 0.02) -> None:
    torch.testing.assert_close(found.cpu().double(), expected.double(), rtol=tolerance, atol=tolerance)
