"""Has an exact GELU computed as one: what torch calls so is the form with tanh on some devices."""

from __future__ import annotations

from torch import nn
from transformers.activations import GELUActivation

from trunnion.layers.activation import Gelu


def make_exact(model: nn.Module) -> None:
    """Put `trunnion.layers.activation.Gelu` where the model has the exact GELU as a module."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, GELUActivation) or (isinstance(child, nn.GELU) and child.approximate == "none"):
                setattr(parent, name, Gelu())
