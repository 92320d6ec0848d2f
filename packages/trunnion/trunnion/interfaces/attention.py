"""Attention groups: layers with the same attention shape, planned once per step and run once per layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch

from trunnion.contract import (
    BatchCounts,
    BatchTensors,
    CacheKind,
    CacheTensorSpec,
    Field,
    GroupTensors,
    LayerCaches,
)


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """Paged attention of one shape on this rank. Layers with equal specs form a group."""

    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    dtype: torch.dtype
    window: int | None = None
    """Tokens a query sees, itself included: key j is visible to query i when `i - window < j <= i`."""
    soft_cap: float | None = None
    """`soft_cap * tanh(scores / soft_cap)` before the mask."""
    has_sinks: bool = False
    """Each head has a learned logit in the softmax's denominator, given to `run`."""
    cache_dtype: torch.dtype | None = None
    """Of cached keys and values; None: `dtype`. Another one holds them scaled, see `AttentionGroup.set_kv_scales`."""

    @property
    def stored_dtype(self) -> torch.dtype:
        """Of the cache tensors."""
        return self.dtype if self.cache_dtype is None else self.cache_dtype

    @property
    def kind(self) -> CacheKind:
        return CacheKind.FULL if self.window is None else CacheKind.WINDOW


@dataclass(frozen=True, kw_only=True)
class MLASpec:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) with the projections absorbed.

    Query and key have `kv_lora_rank + rope_head_dim` features, the value is the first `kv_lora_rank` of the key.
    """

    num_qo_heads: int
    kv_lora_rank: int
    rope_head_dim: int
    scale: float
    dtype: torch.dtype

    kind = CacheKind.MLA
    window = None


@dataclass(frozen=True, kw_only=True)
class RecurrentSpec:
    """A gated delta net (arXiv:2412.06464): a short causal convolution, then a state of `[Hv, Dk, Dv]` per request."""

    num_k_heads: int
    num_v_heads: int
    head_k_dim: int
    head_v_dim: int
    conv_kernel_size: int
    dtype: torch.dtype
    state_dtype: torch.dtype = torch.float32

    kind = CacheKind.RECURRENT
    window = None

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution: q, k and v side by side."""
        return 2 * self.num_k_heads * self.head_k_dim + self.num_v_heads * self.head_v_dim


@dataclass(frozen=True, kw_only=True)
class EncoderSpec:
    """Attention without a mask and without a cache: a token sees all tokens of its request, which come in one step."""

    num_heads: int
    head_dim: int
    scale: float
    dtype: torch.dtype

    kind = None
    window = None


@dataclass(frozen=True, kw_only=True)
class LayerStateSpec:
    """States of a layer that computes by itself: named tensors per request, whatever they mean."""

    tensors: tuple[CacheTensorSpec, ...]
    """Shapes are those of one request."""

    kind = CacheKind.RECURRENT
    window = None


@dataclass(frozen=True, kw_only=True)
class LayerRowsSpec:
    """Rows that a layer which computes by itself keeps of every token, and reads back whole."""

    tensors: tuple[CacheTensorSpec, ...]
    """Shapes are those of one token."""
    num_qo_heads: int
    """Query heads that the layer has scores of, in float32: for the account of memory alone."""

    kind = CacheKind.FULL
    window = None


GroupSpec = AttentionSpec | MLASpec | RecurrentSpec | EncoderSpec | LayerStateSpec | LayerRowsSpec


@dataclass(slots=True)
class StepInputs:
    """One step as groups see it: the host's copy and the device's (the same tensors where the device is the host).

    Host tensors are cut to the step's counts. Device tensors are cut to the bucket the step runs in: the same in eager
    execution, longer in a graph, where rows past the counts are padding: slot -1, no cached tokens, block and state 0.
    Prefix levels lie in `host` alone. Token types are missing where a step without them reads the host's tensors, and
    all 0 elsewhere.
    """

    counts: BatchCounts
    host: BatchTensors
    device: BatchTensors
    in_full_graph: bool = False
    """Groups run inside the graph: each of the device's requests, padding included, has `T / B` tokens."""
    hidden_states: torch.Tensor | None = None
    """Of a draft: the hidden states that go with the device's tokens, [T, hidden_size], always at the same address."""
    encoder_pool: torch.Tensor | None = None
    """[max_encoder_rows, hidden_size] on the device: what images were encoded to; `encoder_indices` name its rows."""
    sampled_ids: torch.Tensor | None = None
    """[max_logits_rows] int32 on the device: what negative `input_ids` stand for; None with host staging."""
    target_states: torch.Tensor | None = None
    """Of a draft: [max_num_tokens, width], what its target keeps of its last step; `hidden_indices` name rows of it."""


class Group(ABC):
    """What all groups share. A group owns its cache writes, its plan and its workspaces.

    `num_layers` layers use it; `cache_index` says which of the contract's cache groups it reads.
    """

    def __init__(self, spec: GroupSpec, num_layers: int, device: torch.device) -> None:
        self.num_layers = num_layers
        self.device = device
        self.cache_index = -1
        self.caches: LayerCaches = []

    @classmethod
    @abstractmethod
    def cache_tensors(cls, spec: GroupSpec, block_size: int) -> tuple[CacheTensorSpec, ...]:
        """The cache tensors of one layer, per block (per state for a recurrent group)."""

    @classmethod
    def required_fields(cls, spec: GroupSpec) -> Field:
        """Metadata fields beyond the required ones."""
        return Field.REQUIRED

    @classmethod
    def accepts_prefix_levels(cls, spec: GroupSpec) -> bool:
        """Whether the group makes use of `prefix_indptr` and `prefix_lens` of the host's tensors, where they are there.

        It attends to what a range of requests shares once for all their queries, without a causal mask, and to the rest
        of each request as ever, and merges the two by their log-sum-exp. The result is that of any other group, which
        leaves both fields alone. An executor accepts prefix levels if one of its groups does.
        """
        return False

    @classmethod
    def why_not_captured(cls, spec: GroupSpec) -> str | None:
        """Why `run` cannot stand inside a full graph of uniform decodes, or None if it can.

        A group that can reads only device tensors in `run`, at the addresses `plan` last saw, and has no shape that
        depends on a step's values.
        """
        return "its shapes come from the host's lengths"

    @classmethod
    def why_no_verification(cls, spec: GroupSpec) -> str | None:
        """Why the tokens of a step cannot be taken back, as a refused draft's are, or None if they can."""
        return None

    def bind_kv_cache(self, cache_index: int, caches: LayerCaches) -> None:
        """Bind the layers' cache tensors; called once."""
        if len(caches) != self.num_layers:
            raise ValueError(f"expected the caches of {self.num_layers} layers, got {len(caches)}")
        self.cache_index = cache_index
        self.caches = caches

    def tensors(self, side: BatchTensors) -> GroupTensors:
        """This group's metadata on one side of `StepInputs`."""
        return side.groups[self.cache_index]

    @abstractmethod
    def plan(self, step: StepInputs) -> None:
        """Host work, once per step before any layer runs; reads host copies, never the device."""


class Rotation(NamedTuple):
    """How the rows of a step are rotated: a rotary embedding at their positions."""

    positions: torch.Tensor
    """[T] int32, or [T, 3] with a section."""
    cos_sin_cache: torch.Tensor
    """[max_position, rotary_dim] float32, as `trunnion::rotary_embedding` takes it."""
    interleaved: bool
    section: tuple[int, ...] = ()
    """Of `trunnion::mrope_embedding`; empty where positions have one axis."""


class AttentionGroup(Group):
    """Paged attention."""

    rotates: ClassVar[bool] = False
    """Whether `run` takes a rotation, which a kernel can do on the way to the cache; else the layer rotates before."""

    def __init__(self, spec: GroupSpec, num_layers: int, device: torch.device) -> None:
        super().__init__(spec, num_layers, device)
        self.kv_scales = [(1.0, 1.0)] * num_layers
        """Of each layer's keys and values: a cache of another dtype holds them divided by it."""

    def set_kv_scales(self, layer: int, k_scale: float, v_scale: float) -> None:
        """Scales of a layer's cached keys and values, at most once per layer, after its weights are loaded.

        Stored is the value divided by its scale and cut to what `cache_dtype` holds; used is what is stored times the
        scale. A group whose spec has no `cache_dtype` stores values as they are, and uses no scales.

        Raises:
            ValueError: a scale is not positive.
        """
        if not (k_scale > 0 and v_scale > 0):
            raise ValueError(
                f"layer {layer}: scales of cached keys and values are positive, got {k_scale} and {v_scale}"
            )
        self.kv_scales[layer] = (k_scale, v_scale)

    @abstractmethod
    def run(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None = None,
        rotation: Rotation | None = None,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write k, v into layer `layer`'s cache by the step's slots, then attend.

        q [T, num_qo_heads, head_dim]; k, v [T, num_kv_heads, head_dim]; sinks [num_qo_heads] float32
        -> [T, num_qo_heads, head_dim], in `out` if it is given. `layer` counts from 0 within the group. With a
        `rotation`, which only groups that say `rotates` get, q and k are rotated first.
        """


class EncoderGroup(Group):
    """Attention within the requests of a step. It has no cache, and a host that cuts no prompt."""

    @classmethod
    def cache_tensors(cls, spec: GroupSpec, block_size: int) -> tuple[CacheTensorSpec, ...]:
        return ()

    @abstractmethod
    def run(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """q, k, v [T, num_heads, head_dim] -> [T, num_heads, head_dim], in `out` if it is given."""


class MLAGroup(Group):
    """Latent attention."""

    @abstractmethod
    def run(
        self,
        layer: int,
        q_latent: torch.Tensor,
        q_rope: torch.Tensor,
        kv_latent: torch.Tensor,
        k_rope: torch.Tensor,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """q_latent [T, H, kv_lora_rank], q_rope [T, H, rope_head_dim], kv_latent [T, kv_lora_rank],
        k_rope [T, rope_head_dim] -> [T, H, kv_lora_rank], in `out` if it is given."""


class RecurrentGroup(Group):
    """A gated delta net's convolution and recurrence."""

    @abstractmethod
    def run(
        self,
        layer: int,
        mixed_qkv: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        conv_weight: torch.Tensor,
        conv_bias: torch.Tensor | None,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """mixed_qkv [T, conv_dim]; g [T, Hv] float32 log decay; beta [T, Hv]; conv_weight [conv_dim, kernel]
        -> [T, Hv, Dv], in `out` if it is given. SiLU follows the convolution; q and k are l2-normalised, q scaled by
        Dk ** -0.5."""
