"""The serving host as the commands see it: requests in, events out; `open_host` makes the C++ one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trunnion.contract import Limits

if TYPE_CHECKING:
    from trunnion.vision.prompt import VisionPrompt


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How one request samples: temperature 0 is greedy, `top_k` 0, `top_p` 1 and `min_p` 0 are off."""

    max_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    """None: a random one, reported when the request has finished."""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The end of a request."""

    reason: str
    """stop, length, cancelled or error"""
    stop_id: int | None
    num_prompt_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    seed: int
    error: str = ""
    embedding: Sequence[float] | None = None
    """Of a text to embed; the reason then is `stop`."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """A token of a request, or its end."""

    request_id: int
    token_id: int | None = None
    finished: Finished | None = None


class Host(Protocol):
    """The part of `trunnion_host.serving.ServingHost` that the commands need."""

    def submit(
        self,
        token_ids: Sequence[int],
        sampling: Sampling,
        end_ids: Sequence[int],
        *,
        vision: VisionPrompt | None = None,
    ) -> int:
        """The request's id; `vision` has the images of `token_ids`. ValueError if it can never run."""
        ...

    def submit_embedding(self, token_ids: Sequence[int], token_type_ids: Sequence[int] | None = None) -> int:
        """As `submit`, for a model that pools embeddings; the end of the request carries the embedding.

        `token_type_ids` is the type of each token, None = all of type 0; ValueError if the model does not take them.
        """
        ...

    def next_event(self, timeout: float) -> Event | None:
        """The next event of any request, None after `timeout` seconds without one."""
        ...

    def cancel(self, request_id: int) -> None:
        """End a request; its finished event follows."""
        ...

    def stats(self) -> Mapping[str, Any]:
        """The fields of `trn_host_stats`, and `eager`: reason -> steps."""
        ...

    def warm_up_report(self) -> Mapping[str, Any]:
        """What will run eager or on the reference: `WarmUpReport`."""
        ...

    def close(self) -> None:
        """End all requests and free the model."""
        ...


@dataclass(frozen=True, kw_only=True)
class HostOptions:
    """What the host is created with."""

    model: Path
    hardware: str
    dtype: str
    limits: Limits
    kv_blocks: int
    """Blocks of every attention group, block 0 (for padding) included."""
    prefix_caching: bool
    threads: int
    """Of each process."""
    tp_size: int
    progress: bool
    overlap: bool = False
    """Plan the next step while one runs."""
    trace_file: Path | None = None
    """Where to write a trace of every step."""
    kv_cache_dtype: str = "auto"
    """What keys and values are cached in."""
    num_drafts: int = 0
    """Tokens that the draft proposes per step of a request; 0 = no drafts."""
    draft_model: Path | None = None
    """The checkpoint of a draft that has its own; None: the head that the model carries."""
    port: Path | None = None
    """The folder of a model family that is not installed."""
    prefix_levels: int = 0
    """Tokens that reading shared cache blocks once must save in a step; 0 = never told."""
    weights: str = "auto"
    """How quantised weights are kept."""
    activations: str = "auto"
    """What rows meet integer weights in."""
