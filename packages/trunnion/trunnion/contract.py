"""What crosses the boundary between the C++ host and Python, and nothing else.

The same facts stand in `trunnion/contract.h` (C) and in `docs/contract.md` (a table); a test holds the three against
each other. Terms, one word per notion:

* `T` tokens in the step, `B` requests, `N` output rows asked for: logits, or embeddings of a pooling model.
* `P` ranges of consecutive requests whose leading tokens lie in the same blocks; 0 where the host says nothing of it.
* `seq_lens[b]` counts the tokens of request `b` in the cache *after* this step.
* Block 0 and state 0 are reserved for padding; the host never hands them to a request.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, IntFlag

import torch

CONTRACT_VERSION = 3
"""Raised with every change that an older host could misread."""


class CacheKind(str, Enum):
    """How a cache group keeps what its layers have seen."""

    FULL = "full"
    WINDOW = "window"
    MLA = "mla"
    RECURRENT = "recurrent"


class OutputKind(str, Enum):
    """What the output rows of an executor are; settled when it is created, by the model."""

    LOGITS = "logits"
    POOLED = "pooled"
    """One embedding per row asked for."""


class Role(str, Enum):
    """What an executor is to the others of its process."""

    TARGET = "target"
    DRAFT = "draft"
    """A small head that drafts tokens for a target, from the target's hidden states."""


class Staging(str, Enum):
    """Where a host with or without a device runtime meets the executor."""

    HOST = "host"
    """Inputs and output rows lie in host memory."""
    DEVICE = "device"
    """Output rows lie on the device, and so do the ids that the host samples of them there."""


class Field(IntFlag):
    """Metadata fields that a backend may ask the host to build. `REQUIRED` is always built."""

    REQUIRED = 0
    """input_ids, positions, query_start_loc, seq_lens, logits_indices; per group slot_mapping, block_table, kv_start
    (state_indices and has_initial_state for recurrent groups)."""
    KV_CSR = 1 << 0
    """Per group kv_indptr, kv_indices and kv_last_page_len: the block table in CSR form."""
    NUM_ACCEPTED = 1 << 1
    """Recurrent groups of a target that verifies drafts: the column of `state_indices` a request starts from."""
    HIDDEN_INDICES = 1 << 2
    """Drafts: which hidden states go with the tokens."""
    ENCODER_INDICES = 1 << 3
    """Models that take images: which rows of the encoder pool stand for tokens."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The largest step the host will ever send. Everything persistent is sized from it.

    Raises:
        ValueError: a limit is out of range, or two of them contradict each other.
    """

    max_num_tokens: int
    """Tokens per step (T)."""
    max_num_seqs: int
    """Requests per step (B)."""
    max_model_len: int
    """Tokens per request, prompt and output together."""
    max_logits_rows: int
    """Output rows per step (N): of logits, or of pooled embeddings."""
    block_size: int = 16
    """Tokens per cache block."""
    max_decode_query_len: int = 1
    """Tokens per request of a uniform decode: 1, or 1 + k to verify k drafts."""
    max_encoder_rows: int = 0
    """Rows of the encoder pool, which holds what images were encoded to; 0 = no images."""

    def __post_init__(self) -> None:
        for spec in dataclasses.fields(self):
            value = getattr(self, spec.name)
            least = 0 if spec.name == "max_encoder_rows" else 1
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{spec.name} must be an integer of at least {least}, got {value!r}")
        if self.max_num_seqs > self.max_num_tokens:
            raise ValueError(
                f"max_num_seqs {self.max_num_seqs} is above max_num_tokens {self.max_num_tokens}: "
                "a decode step needs one token per request"
            )
        for name in ("max_logits_rows", "max_decode_query_len"):
            if getattr(self, name) > self.max_num_tokens:
                raise ValueError(f"{name} {getattr(self, name)} is above max_num_tokens {self.max_num_tokens}")


@dataclass(frozen=True, kw_only=True)
class CacheTensorSpec:
    """One named cache tensor of one layer; its full shape is `[num_blocks, *shape]`, contiguous."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes_per_block(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class CacheGroupSpec:
    """Layers that share one block table (or one state index per request).

    All layers of a group have the same `tensors`. A recurrent group counts *states* where the others count blocks:
    `block_size` 0, and `max_decode_query_len` states per request, so that what a verification refuses can be undone.
    """

    kind: CacheKind
    layers: tuple[str, ...]
    """Dotted names of the layers, in execution order."""
    tensors: tuple[CacheTensorSpec, ...]
    block_size: int
    max_blocks_per_seq: int
    """Width of the block table: enough for `max_model_len`, or for the window and one step's tokens. Of a recurrent
    group the width of `state_indices`."""
    window: int | None = None
    """Tokens a query can see, itself included. The host may drop whole blocks before it and advance `kv_start`."""

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers of the group."""
        return len(self.layers) * sum(tensor.bytes_per_block for tensor in self.tensors)


@dataclass(frozen=True, kw_only=True)
class KVCacheSpec:
    """What the host must allocate (or ask `allocate_kv_cache` for) before `bind_kv_cache`."""

    groups: tuple[CacheGroupSpec, ...]


LayerCaches = list[dict[str, torch.Tensor]]
"""Per layer of a cache group, in the group's order: tensor name -> `[num_blocks, *shape]`."""


@dataclass(slots=True)
class BatchCounts:
    """The integers of one step. The field order is the order of the lent `counts` buffer (int64)."""

    num_tokens: int = 0
    num_reqs: int = 0
    num_logits: int = 0
    num_decodes: int = 0
    """The first `num_decodes` requests have exactly `decode_query_len` tokens each."""
    decode_query_len: int = 1
    max_query_len: int = 0
    max_seq_len: int = 0
    lens_are_exact: int = 1
    """0 when the host lengths are upper bounds (overlapped speculation)."""
    hidden_source: int = 0
    """Drafts: whose last step `hidden_indices` mean: 0 = the target's, 1 = the draft's own."""
    has_kv_events: int = 0
    """1 when the host gave events per cache layer: no full graph."""
    num_prefixes: int = 0
    """P: ranges of requests that share leading blocks, only to an executor that accepts them: no full graph."""
    has_token_types: int = 0
    """1 when the batch has `token_type_ids`, only to a model that takes them; 0 = all tokens are of type 0."""


COUNT_FIELDS: tuple[str, ...] = tuple(spec.name for spec in dataclasses.fields(BatchCounts))


@dataclass(slots=True)
class GroupTensors:
    """Metadata of one cache group. int32, contiguous, rows beyond the step's counts are undefined.

    Attention groups carry the first six, recurrent groups the last three; the others are None.
    """

    slot_mapping: torch.Tensor | None = None
    """[T]: `block * block_size + offset` where the token's K/V goes; -1 = do not write.

    Rows with -1 are placeholders (a draft that came out short) and the last rows of their request. What they return is
    undefined, and neither they nor what lies in the cache at their positions may reach another row, NaN included. A
    full prefix hit is not such a case: its last block is computed again into a block of its own.
    """
    block_table: torch.Tensor | None = None
    """[B, max_blocks_per_seq]: column j holds tokens `kv_start + j * block_size` onwards; 0 past the end."""
    kv_start: torch.Tensor | None = None
    """[B]: leading tokens that a window has dropped, a multiple of `block_size`; 0 elsewhere."""
    kv_indptr: torch.Tensor | None = None
    """[B + 1]: CSR row pointers into `kv_indices`."""
    kv_indices: torch.Tensor | None = None
    """[kv_indptr[B]]: block ids, row by row."""
    kv_last_page_len: torch.Tensor | None = None
    """[B]: tokens in the last block, 1 ... block_size."""
    state_indices: torch.Tensor | None = None
    """[B, max_decode_query_len]: the request's states, never 0.

    Column i is where the state after token i of a decode goes; a request beyond `num_decodes` leaves its last state in
    column 0. Drafts come in decodes only.
    """
    has_initial_state: torch.Tensor | None = None
    """[B]: 1 if the state holds what earlier steps left, 0 if it must be taken as zero."""
    num_accepted: torch.Tensor | None = None
    """[B]: the state to start from, as a column counted from 1: how many tokens of the request's last decode were
    accepted, or 1 after a step beyond `num_decodes`. Read only where there is an initial state (only if asked for)."""


@dataclass(slots=True)
class BatchTensors:
    """The tensors of one step: int32 and contiguous, at least as long as the counts say."""

    input_ids: torch.Tensor
    """[T]: token ids; with device staging -1 - r stands for what lies in row r of `sampled_ids` when the step runs."""
    positions: torch.Tensor
    """[T, num_position_axes]: position of each token, counted from 0 (one axis: [T]); its place in the request, but
    where images span time, height and width."""
    query_start_loc: torch.Tensor
    """[B + 1]: request `b` owns tokens `query_start_loc[b] ... query_start_loc[b + 1] - 1`."""
    seq_lens: torch.Tensor
    """[B]: tokens of the request in the cache after this step."""
    logits_indices: torch.Tensor
    """[N]: rows of the step's tokens whose logits are wanted, or at which a pooling model pools."""
    hidden_indices: torch.Tensor | None = None
    """[T]: for each token of a draft the row of the source's last step whose hidden state it takes.

    The row at position p carries token p + 1 and the hidden state of token p. The source is `counts.hidden_source`.
    """
    encoder_indices: torch.Tensor | None = None
    """[T]: the row of the encoder pool that stands for the token; -1 = the token's own embedding."""
    prefix_indptr: torch.Tensor | None = None
    """[P + 1]: range p holds the requests `prefix_indptr[p] ... prefix_indptr[p + 1] - 1`; the ranges partition all B.

    On the host only, as `prefix_lens`; both are None in a step without prefix levels.
    """
    prefix_lens: torch.Tensor | None = None
    """[P]: so many leading tokens of every request of the range were cached before this step, in the same blocks of all
    full and MLA cache groups: a multiple of `block_size`; 0 = the range shares nothing."""
    token_type_ids: torch.Tensor | None = None
    """[T]: the type of each token, below the model's `num_token_types`; a cross-encoder's query is of type 0, its
    document of type 1.

    None for a model that takes none, and on the host in a step without them, in which all tokens are of type 0.
    """
    groups: tuple[GroupTensors, ...] = ()
    """One per cache group, in the order of `KVCacheSpec.groups`."""


@dataclass(frozen=True, slots=True)
class EncoderItem:
    """An image to encode in this step; its rows lie in the encoder pool until they are written again."""

    pixels: torch.Tensor
    """[num_patches, patch_dim] float32, on the host; read during the step only."""
    grid: tuple[int, int, int]
    """Patches in time, height and width."""
    first_row: int
    """Where its rows go in the pool."""
    num_rows: int
    """Tokens that the image stands for."""


@dataclass(slots=True)
class ForwardBatch:
    """One step as the host built it. Nothing in it is computed again in Python."""

    counts: BatchCounts
    tensors: BatchTensors
    encoder_items: Sequence[EncoderItem] = ()


@dataclass(slots=True)
class ForwardOutput:
    """What one `execute` returns; tensors are views of persistent rows of the buffer set the batch came in.

    Exactly one of `logits` and `pooled` is there, as the executor's output kind says.
    """

    logits: torch.Tensor | None = None
    """[N, vocab_size] float32, without vocabulary padding; the host may overwrite it."""
    pooled: torch.Tensor | None = None
    """[N, output_width] float32: the embedding pooled at each row; the host may overwrite it."""
    fence: int = 0
    """Passed to `wait`; the buffer set may be refilled after it."""


@dataclass(frozen=True, kw_only=True)
class MemoryProfile:
    """Upper bounds in bytes of what an executor needs beside its caches."""

    weights: int
    activations: int
    graphs: int = 0
    workspaces: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.activations + self.graphs + self.workspaces


@dataclass(kw_only=True)
class WarmUpReport:
    """What `warm_up` did, and what will run slower than one might hope, with the reason."""

    captured: list[str] = field(default_factory=list)
    eager: dict[str, str] = field(default_factory=dict)
    """mode -> reason"""
    on_reference: dict[str, str] = field(default_factory=dict)
    """operator or group -> why the package does not have its own"""
    compiled: dict[str, str] = field(default_factory=dict)
    """kernel -> why it was compiled here, of a package that carries compiled ones"""
    missing: dict[str, str] = field(default_factory=dict)
    """library or tool -> what the package, which runs without it, would have it for"""
    tuned: dict[str, str] = field(default_factory=dict)
    """kernel -> how many choices among its configurations are made, or kept from an earlier start, and timings"""
    untuned: dict[str, str] = field(default_factory=dict)
    """kernel, a kind of its calls, or what there is of tuning as a whole -> why its choice was not timed"""
    implementations: dict[str, str] = field(default_factory=dict)
    """operator, and one of several implementations that a package has of it -> where it runs, or why it does not"""
    seconds: float = 0.0
    bytes: int = 0
