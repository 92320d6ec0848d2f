"""What the executor asks of a model: typed protocols, nothing of runners, graphs or requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import torch

from trunnion.contract import OutputKind

if TYPE_CHECKING:
    from trunnion.weights.checkpoint import Checkpoint
    from trunnion.weights.name_map import WeightMap
    from trunnion.weights.report import WeightReport
    from trunnion.weights.source import TensorInfo


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


@runtime_checkable
class TypedTokens(PoolingModel, Protocol):
    """A pooling model whose tokens have types, which tell the two texts of a pair apart."""

    num_token_types: int
    """Types are 0 ... num_token_types - 1; with one, all tokens are alike and nobody gives them any."""

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        inputs_embeds: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As `PoolingModel.forward`; token_type_ids [T], None = all of type 0."""
        ...


@runtime_checkable
class DraftModel(Protocol):
    """A head that drafts tokens for a decoder, from the decoder's hidden states.

    Row p of a step stands at position p and carries the token at p + 1 and the hidden state of the token at p, so that
    its logits are those of the token at p + 2. What a hidden state is, the models say: it is what `forward` returns,
    the target's for the first draft after a step of the target, the draft's own for those after it.
    """

    config_class: ClassVar[type[Any]]
    weight_map: ClassVar[WeightMap]
    shared_modules: ClassVar[tuple[str, ...]]
    """Dotted names of modules, the same in draft and target, of which the draft uses the target's."""

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        hidden_states: torch.Tensor,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """input_ids [T], positions [T], hidden_states [T, hidden_size] -> hidden states [T, hidden_size]."""
        ...

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """As `CausalLM.compute_logits`."""
        ...


@runtime_checkable
class AuxDraftModel(DraftModel, Protocol):
    """A draft with a checkpoint of its own, which reads states between its target's layers (`AuxHiddenStates`).

    Its configuration has `aux_layers(num_layers)`, after how many of the target's layers they lie, their width
    `target_hidden_size`, and the target's `vocab_size`.
    """

    shared_if_absent: tuple[str, ...]
    """As `shared_modules`, of which the draft uses the target's if its own checkpoint has none of their tensors."""

    def combine_hidden_states(self, aux_hidden_states: torch.Tensor) -> torch.Tensor:
        """The target's states side by side, [T, states * target_hidden_size] -> what `forward` takes of them."""
        ...


@runtime_checkable
class MultiModal(CausalLM, Protocol):
    """A language model that also takes images: a `CausalLM` whose tokens may be rows of an encoder's output.

    `forward` is given `inputs_embeds` in which rows of `encode` stand for the tokens of images.
    """

    encoder_patch_dim: int
    """Numbers of one patch."""
    patches_per_row: int
    """Patches that become one row."""

    def num_encoder_rows(self, grid: tuple[int, int, int]) -> int:
        """Rows, and placeholder tokens, of an image of `grid` (t, h, w) patches; ValueError if it cannot be cut so."""
        ...

    def encode(self, pixels: torch.Tensor, grid: tuple[int, int, int]) -> torch.Tensor:
        """One image's patches [t * h * w, encoder_patch_dim] float32 on the device -> [num_rows, hidden_size]."""
        ...

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        """input_ids [T] -> [T, hidden_size]: what `forward` does without `inputs_embeds`."""
        ...


@dataclass(frozen=True, kw_only=True)
class TensorAccount:
    """What becomes of the tensors of a checkpoint."""

    used: int
    ignored: Mapping[str, Sequence[str]]
    """Reason -> tensors."""
    problems: Mapping[str, Sequence[str]]
    """"missing", "unexpected", "of a wrong shape", ... -> tensors; any of them keeps the checkpoint from loading."""


@runtime_checkable
class LoadsItself(Protocol):
    """A model whose weights another library loads."""

    def load(self, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device, progress: bool) -> WeightReport:
        """Fill the model, built on the meta device, and say what was done.

        Raises:
            WeightsError: the checkpoint and the model do not add up.
            UnsupportedError: what was loaded does not do what it should.
        """
        ...

    def describe(self) -> str:
        """How it runs, in one line."""
        ...

    @property
    def why_eager(self) -> str | None:
        """Why its steps cannot be captured, so that the eager runner runs it on every package; None if they can."""
        ...

    @property
    def widest_row(self) -> int:
        """Features that a token has at once where the shapes of the weights do not tell; 0 if they do."""
        ...

    def account(self, infos: Mapping[str, TensorInfo]) -> TensorAccount:
        """By their headers, as `load` would use them; the model lies on meta, and what it holds is not used after."""
        ...


Model = CausalLM | PoolingModel | DraftModel
"""What an executor runs."""


def num_token_types(model: Model) -> int:
    """How many types the tokens of a batch may have; 0 = the model takes none."""
    count = model.num_token_types if isinstance(model, TypedTokens) else 0
    return count if count > 1 else 0


def output_kind(model: Model) -> OutputKind:
    """What the rows of `model` are. With `output_head` the only place that asks which protocol a model follows."""
    return OutputKind.POOLED if isinstance(model, PoolingModel) else OutputKind.LOGITS


def output_head(model: Model) -> Callable[[torch.Tensor], torch.Tensor]:
    """What makes output rows of hidden states: `pool` of a pooling model, else `compute_logits`."""
    return model.pool if isinstance(model, PoolingModel) else model.compute_logits
