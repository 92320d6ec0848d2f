"""What the serving host takes and gives: configuration, sampling, events, figures and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class HostError(Exception):
    """What the serving host says, in one line."""


class InvalidError(HostError, ValueError):
    """An option or a request that can never run; the line names the value and the limit."""


class UnknownRequestError(HostError, KeyError):
    """A request that was never submitted, or whose finished event has been read."""

    __str__ = Exception.__str__


class ClosedError(HostError):
    """The host has been closed and every event has been read."""


class DeadError(HostError):
    """The executor failed for good (FATAL, or the watchdog's timeout)."""


@dataclass(frozen=True, kw_only=True)
class HostConfig:
    """What a host runs and how much it may hold. The fields of `Limits` keep their meaning."""

    model: str
    """A folder with config.json and safetensors, or a .gguf file."""
    hardware: str = "cpu"
    """`null` (no Python, for tests), `cpu`, ..."""
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    """What keys and values are cached in: `auto` (the model's dtype) or `fp8_e4m3`."""
    device_index: int = 0
    tp_size: int = 1
    """Processes the model is cut over: this one and workers, which the host starts."""
    worker_devices: Sequence[int] = ()
    """`device_index` of ranks 1, 2, ...; empty = that of rank 0, where ranks can share a device, as CPUs."""
    threads: int = 0
    """That each rank computes with, at most 1024; 0 = what the hardware package chooses: OMP_NUM_THREADS, or an equal
    share of the physical cores that this process may use."""
    worker_timeout_s: float = 600.0
    """Longest wait for a worker while starting; 0 = no limit."""
    max_num_tokens: int = 512
    max_num_seqs: int = 16
    max_model_len: int = 2048
    max_logits_rows: int = 0
    """0 = max_num_seqs, of 1 + num_drafts rows each as far as max_num_tokens goes."""
    block_size: int = 16
    max_encoder_rows: int = 0
    """Rows of the encoder pool, one for each placeholder token of the images in work; 0 = no images."""
    num_blocks: Sequence[int] = ()
    """Blocks (states) of each cache group, block 0 included; overrides `kv_blocks`."""
    kv_blocks: int = 0
    """Blocks of every attention group, block 0 included; 0 = see `kv_bytes`."""
    kv_bytes: int = 0
    """Bytes for all caches; 0 = enough for `max_num_seqs` requests of `max_model_len`."""
    queue_size: int = 1024
    """Unread tokens of a request before it is no longer scheduled."""
    prefix_caching: bool = True
    watchdog_s: float = 0.0
    """Longest time of one step; 0 = no watchdog."""
    exit_on_fatal: bool = True
    """Print one line and exit with code 70 on a fatal error; otherwise the host is dead and says so."""
    show_progress: bool = False
    overlap: bool = False
    """Plan the next step while one runs, in the other buffer set."""
    trace_file: str | Path | None = None
    """Where to write a trace of every step, for Perfetto (ui.perfetto.dev); about 1 KB a step."""
    num_drafts: int = 0
    """Tokens that the draft proposes per step of a request, at most 8; the text is the same. 0 = no drafts."""
    draft_model: str | None = None
    """A folder with a draft that has a checkpoint of its own; None = the head that the model carries."""
    port: str | None = None
    """The folder of a model family that is not installed; every rank's process loads it. None = there is none."""
    weights: str = "auto"
    """How quantised weights are kept: `auto`, or `native`, the blocks of a .gguf file as they lie."""
    activations: str = "auto"
    """What rows meet weights in 4 or 8 bits in: `auto` (as their format has it), or `int8`, rounded on the way."""
    prefix_levels: int = 0
    """Tell the executor which requests share leading cache blocks, in steps where reading those once saves at least so
    many tokens: shared tokens x (requests - 1). 0 = never. `Stats.prefix_levels_off_reason` says why it cannot be."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request picks its tokens and when it ends."""

    temperature: float = 0.0
    """0 = greedy."""
    top_k: int = 0
    """0 = all."""
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    """Random numbers are f(seed, position); None = a random seed, reported when the request finishes."""
    max_tokens: int = 0
    """0 = as many as `max_model_len` and the block pool allow."""
    min_tokens: int = 0
    """No stop or end-of-sequence id is sampled before."""
    stop_ids: Sequence[int] = ()
    eos_ids: Sequence[int] = ()
    ignore_eos: bool = False
    num_logprobs: int | None = None
    """None = no logprobs, 0 = of the sampled token, n = and of the n most likely (at most 20)."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image of a prompt; its placeholder tokens take, one by one, the rows that the model makes of it."""

    pixels: Any
    """[num_patches, patch_dim] float32, contiguous: a numpy array, or whatever else `memoryview` takes."""
    grid: Sequence[int]
    """Patches in time, height and width."""
    first_token: int
    num_tokens: int


@dataclass(frozen=True, kw_only=True)
class Event:
    """One token, or the end, of one request. The token that stops a request is reported in `stop_id` only."""

    request_id: int
    finished: bool
    token_id: int = -1
    logprob: float | None = None
    """Of the raw logits; None if not asked for."""
    top_logprobs: tuple[tuple[int, float], ...] = ()
    """(id, logprob), most likely first."""
    reason: str = ""
    """`stop`, `length`, `cancelled` or `error`."""
    stop_id: int | None = None
    error: str = ""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    seed: int = 0
    embedding: tuple[float, ...] | None = None
    """In the finished event of a text to embed, whose reason then is `stop`."""


@dataclass(frozen=True, kw_only=True)
class GroupStats:
    """Blocks (states) of one cache group, without block 0."""

    kind: str
    blocks_total: int
    blocks_used: int
    blocks_cached: int
    blocks_peak: int


@dataclass(frozen=True, kw_only=True)
class Stats:
    """Figures since the host was created, consistent with every event read before."""

    prefix_caching: bool
    prefix_caching_off_reason: str
    prefix_levels_off_reason: str
    steps: int
    execute_calls: int
    refused_steps: int
    failed_steps: int
    prefill_tokens: int
    decode_tokens: int
    """Computed and kept."""
    output_tokens: int
    prefill_seconds: float
    decode_seconds: float
    prefix_hit_tokens: int
    preemptions: int
    blocks_total: int
    blocks_used: int
    blocks_cached: int
    blocks_peak: int
    images_encoded: int
    """An image that is encoded again counts again."""
    encodes_skipped: int
    """Images wholly found in the prefix cache, by admission."""
    encoder_rows_total: int
    encoder_rows_used: int
    encoder_rows_peak: int
    kv_bytes: int
    running: int
    waiting: int
    gil_entries: int
    step_gil_entries: int
    gil_wait_seconds: float
    execute_seconds: float
    replays: int
    eager_steps: int
    padded_tokens: int
    """Rows computed beyond the steps' own."""
    overlapped_steps: int
    """Planned while the step before ran."""
    dropped_plans: int
    dropped_rows: int
    """Planned ahead for requests that ended, or failed, meanwhile."""
    plan_calls: int
    plan_seconds: float
    python_seconds: float
    """In Python, plans included, the wait for the GIL not."""
    kv_event_steps: int
    """Whose layers waited for and signalled events of the host."""
    prefix_level_steps: int
    """In which the executor was told what leading blocks requests share."""
    token_type_steps: int
    """In which a request brought token types."""
    num_drafts: int
    verify_steps: int
    """Of `steps`, those with drafts."""
    draft_steps: int
    """Executes of the draft."""
    failed_draft_steps: int
    """Of these, failed or refused."""
    drafted_tokens: int
    """Verified by the model."""
    accepted_tokens: int
    """Found right."""
    draft_replays: int
    draft_eager_steps: int
    drafted_at: Sequence[int]
    """`drafted_tokens` by place: first drafts, second ones, ..."""
    accepted_at: Sequence[int]
    draft_eager: Mapping[str, int]
    """Reason -> draft steps that ran the draft's Python."""
    eager: Mapping[str, int]
    """Reason -> steps that ran the model's Python."""
    groups: tuple[GroupStats, ...]
