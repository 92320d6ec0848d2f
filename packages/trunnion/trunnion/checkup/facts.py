"""What is told of a checkpoint: facts as they stand in JSON, a value None where nothing could be found out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class QuantizedFacts:
    """Layers that are quantised alike."""

    layers: str
    """Names, in which `*` stands for the number of a layer."""
    count: int
    scheme: str
    """In words; "unquantised" is one."""


@dataclass(frozen=True, kw_only=True)
class GroupFacts:
    """One attention group."""

    kind: str
    """full, window, mla, recurrent or encoder."""
    shape: str
    """Heads and features of a layer, in words."""
    layers: int
    window: int | None
    bytes_per_token: int
    """Of its caches, all layers; 0 for a recurrent group, whose states do not grow."""
    bytes_per_request: int
    """Of a request as long as `memory` has it."""
    group_class: str
    on_reference: str | None
    """Why it runs on the reference; None: it has a class of its own."""


@dataclass(frozen=True, kw_only=True)
class MemoryFacts:
    """Upper bounds in bytes for the steps described."""

    hardware: str
    max_model_len: int
    max_num_seqs: int
    max_num_tokens: int
    weights: int
    activations: int
    graphs: int
    workspaces: int
    caches: int
    """For `max_num_seqs` requests of `max_model_len` tokens."""

    @property
    def total(self) -> int:
        return self.weights + self.activations + self.graphs + self.workspaces + self.caches


@dataclass(frozen=True, kw_only=True)
class TensorFacts:
    """The account of the checkpoint's tensors."""

    used: int
    ignored: Mapping[str, Sequence[str]]
    """Reason -> tensors."""
    tied: Sequence[str]
    known: Sequence[str]
    defaults: Sequence[str]
    problems: Mapping[str, Sequence[str]]
    """"missing", "unexpected", "of a wrong shape", ... -> tensors."""


@dataclass(frozen=True, kw_only=True)
class DraftFacts:
    """A head that drafts for the decoder."""

    head: str
    parameters: int | None
    in_checkpoint: bool | None
    """None: there are no weights to look into."""
    reason: str | None
    """Why it cannot be used."""


@dataclass(kw_only=True)
class CheckReport:
    """All of it. `refusals` says in one line each why the checkpoint does not run; empty: it does."""

    path: str
    refusals: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    way: str | None = None
    family: str | None = None
    model_class: str | None = None
    architecture: str | None = None
    task: str | None = None
    dtype: str | None = None
    parameters: int | None = None
    """Of the model, however few bits each has."""
    weight_bytes: int | None = None
    quantization: list[QuantizedFacts] | None = None
    """Empty: nothing is quantised."""
    groups: list[GroupFacts] | None = None
    max_model_len: int | None = None
    """The longest request that positions reach."""
    memory: MemoryFacts | None = None
    end_ids: Sequence[int] | None = None
    tensors: TensorFacts | None = None
    drafts: list[DraftFacts] | None = None
    has_chat_template: bool | None = None
    on_reference: dict[str, str] | None = None
    """Operators that the hardware leaves to the reference, and why."""

    @property
    def runs(self) -> bool:
        return not self.refusals
