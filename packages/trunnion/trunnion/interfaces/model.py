"""What the executor asks of a model: typed protocols, nothing of runners, graphs or requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import torch

if TYPE_CHECKING:
    from trunnion.weights.name_map import WeightMap


class ModelConfig(Protocol):
    """A family's configuration: HF's field names, read from a published `config.json`."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    max_position_embeddings: int
    tie_word_embeddings: bool

    @property
    def max_model_len(self) -> int:
        """Longest request the positions reach: `max_position_embeddings`, or what a rope was stretched to."""
        ...

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> ModelConfig:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        ...


@runtime_checkable
class CausalLM(Protocol):
    """A decoder with a language-model head. Its class carries its configuration and its weight names."""

    config_class: ClassVar[type[Any]]
    weight_map: ClassVar[WeightMap]

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, inputs_embeds: torch.Tensor | None = None
    ) -> torch.Tensor:
        """input_ids [T], positions [T] -> hidden states after the final norm [T, hidden_size]."""
        ...

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, hidden_size] -> [N, vocab_size], soft-capped and scaled as the model wants."""
        ...
