"""What the executor asks of a model: typed protocols, nothing of runners, graphs or requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import torch

from trunnion.contract import OutputKind

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


@runtime_checkable
class PoolingModel(Protocol):
    """A decoder that embeds text: its output rows are pooled hidden states instead of logits."""

    config_class: ClassVar[type[Any]]
    weight_map: ClassVar[WeightMap]
    embedding_size: int
    """D, the width of a pooled row."""

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, inputs_embeds: torch.Tensor | None = None
    ) -> torch.Tensor:
        """As `CausalLM.forward`."""
        ...

    def pool(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states of the rows asked for [N, hidden_size] -> embeddings [N, D]."""
        ...


Model = CausalLM | PoolingModel
"""What an executor runs."""


def output_kind(model: Model) -> OutputKind:
    """What the rows of `model` are. With `output_head` the only place that asks which protocol a model follows."""
    return OutputKind.POOLED if isinstance(model, PoolingModel) else OutputKind.LOGITS


def output_head(model: Model) -> Callable[[torch.Tensor], torch.Tensor]:
    """What makes output rows of hidden states: `pool` of a pooling model, else `compute_logits`."""
    return model.pool if isinstance(model, PoolingModel) else model.compute_logits
