"""The reference serving host from Python: submit token ids, read events or embeddings; its loop is a C++ thread."""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from trunnion_host import _api
from trunnion_host import _serving_abi as abi
from trunnion_host.serving_types import (
    ClosedError,
    DeadError,
    Event,
    GroupStats,
    HostConfig,
    HostError,
    Image,
    InvalidError,
    SamplingParams,
    Stats,
    UnknownRequestError,
)
from trunnion_host.worker_processes import END_SECONDS, WorkerProcesses

__all__ = [
    "ClosedError",
    "DeadError",
    "Event",
    "GroupStats",
    "HostConfig",
    "HostError",
    "Image",
    "InvalidError",
    "SamplingParams",
    "ServingHost",
    "Stats",
    "UnknownRequestError",
]

POLL_MS = 100
"""The longest wait inside C: Ctrl-C is noticed between two waits."""


class ServingHost:
    """One executor behind continuous batching, usable from any thread.

    Creating it blocks until the model is loaded and warm. `close()` (or leaving the `with` block) cancels what runs; a
    host that nobody refers to any more is freed.

    Args:
        config: the model and the limits.
        library: the shared library; by default the installed extension module.

    Raises:
        InvalidError: an option, or a model that cannot be loaded.
        DeadError: the executor failed for good while starting.
    """

    def __init__(self, config: HostConfig, *, library: Path | None = None) -> None:
        self._handle = ctypes.c_void_p()
        self._library = abi.load(library)
        self._logprobs: set[int] = set()
        if config.tp_size < 1:
            raise InvalidError(f"tp_size is {config.tp_size}, expected at least 1")
        if config.worker_devices and len(config.worker_devices) != config.tp_size - 1:
            raise InvalidError(
                f"worker_devices names {len(config.worker_devices)}, tp_size {config.tp_size} needs one "
                f"for each of {config.tp_size - 1} workers"
            )
        self._workers = WorkerProcesses(config, library)
        try:
            self._create(config)
        except BaseException:
            self._workers.end()
            raise
        self._workers.forget_rendezvous()

    def _create(self, config: HostConfig) -> None:
        error = ctypes.create_string_buffer(2048)
        options = abi.host_options(config, self._workers.sockets, self._workers.init_method)
        status = self._library.trn_host_create(ctypes.byref(options), ctypes.byref(self._handle), error, len(error))
        _check(status, error.value.decode(errors="replace"))
        info = _api.ModelInfo(struct_size=ctypes.sizeof(_api.ModelInfo))
        _check(self._library.trn_host_model_info(self._handle, ctypes.byref(info)), "model_info")
        self.embedding_width = info.output_width if info.output_kind == _api.OUTPUT_POOLED else 0
        """Length of an embedding; 0: the model generates."""
        self.num_position_axes: int = info.num_position_axes
        """Columns of `positions`: 1, or 3 where images span time, height and width."""
        self.encoder_patch_dim: int = info.encoder_patch_dim
        """Numbers of an image's patch; 0: the model takes no images."""
        self.num_token_types: int = info.num_token_types
        """Types of tokens are below it; 0: the model takes none."""

    def submit(
        self,
        token_ids: Sequence[int],
        sampling: SamplingParams | None = None,
        *,
        images: Sequence[Image] = (),
        positions: Sequence[Sequence[int]] | None = None,
        position_delta: int = 0,
        token_type_ids: Sequence[int] | None = None,
    ) -> int:
        """Queue a prompt and return the request's id; without `sampling` it is greedy to the limit.

        Args:
            images: in the order of their placeholders in `token_ids`.
            positions: [num_tokens, num_position_axes] of a model with several axes; None in a prompt without images: a
                token lies at its index on each.
            position_delta: a generated token lies at its index + this on every axis.
            token_type_ids: the type of each token, of a model that takes them; None: all of type 0.

        Raises:
            InvalidError: an id outside the vocabulary, a parameter outside its limits, a prompt that can never fit,
                images or types that the model or the encoder pool cannot take; or the model pools embeddings.
            ClosedError, DeadError: the host takes no requests any more.
        """
        sampling = sampling if sampling is not None else SamplingParams()
        request_id = self._submit(
            abi.host_request(
                token_ids, sampling, images, positions, position_delta, self.num_position_axes, token_type_ids
            )
        )
        if sampling.num_logprobs is not None:
            self._logprobs.add(request_id)
        return request_id

    def submit_embedding(self, token_ids: Sequence[int], token_type_ids: Sequence[int] | None = None) -> int:
        """Queue a text to embed, or a pair to score, and return the request's id; its finished event carries the
        embedding, or the scores. `token_type_ids` are as in `submit`.

        Raises:
            InvalidError: as `submit`; or the model generates.
            ClosedError, DeadError: the host takes no requests any more.
        """
        return self._submit(abi.embed_request(token_ids, token_type_ids))

    def embed(self, token_ids: Sequence[int], token_type_ids: Sequence[int] | None = None) -> tuple[float, ...]:
        """The embedding of a text, `embedding_width` floats.

        Raises:
            InvalidError, ClosedError, DeadError: as `submit_embedding`.
            HostError: the request ended without an embedding.
        """
        (event,) = self.stream(self.submit_embedding(token_ids, token_type_ids))
        if event.embedding is None:
            raise HostError(event.error or f"the request was {event.reason}")
        return event.embedding

    def _submit(self, request: abi.HostRequest) -> int:
        request_id = ctypes.c_uint64()
        error = ctypes.create_string_buffer(512)
        status = self._library.trn_host_submit(
            self._handle, ctypes.byref(request), ctypes.byref(request_id), error, len(error)
        )
        _check(status, error.value.decode(errors="replace"))
        return request_id.value

    def next_event(self, request_id: int | None = None, timeout: float | None = None) -> Event | None:
        """The next event of a request, or of any; None after `timeout` seconds (None = wait for ever).

        Raises:
            UnknownRequestError: the request's finished event has been read, or there is no such request.
            ClosedError, DeadError: no event will come any more.
        """
        event = abi.host_event(self.embedding_width)
        rest_ms = None if timeout is None else max(0, round(timeout * 1000))
        while True:
            wait_ms = POLL_MS if rest_ms is None else min(POLL_MS, rest_ms)
            status = self._library.trn_host_next_event(self._handle, request_id or 0, wait_ms, ctypes.byref(event))
            if status == abi.OK:
                return self._read(event)
            if status != abi.TIMEOUT:
                _check(status, f"no more events of {'any request' if request_id is None else f'request {request_id}'}")
            if rest_ms is not None:
                rest_ms -= wait_ms
                if rest_ms <= 0:
                    return None

    def stream(self, request_id: int) -> Iterator[Event]:
        """The events of one request up to and with its finished event. Left early, the request is cancelled."""
        try:
            while True:
                event = self.next_event(request_id)
                assert event is not None, "without a timeout an event comes or an error is raised"
                yield event
                if event.finished:
                    return
        finally:
            self.cancel(request_id)

    def cancel(self, request_id: int) -> None:
        """End a request; its finished event says `cancelled`, its blocks are free by then. Too late is harmless."""
        _check(self._library.trn_host_cancel(self._handle, request_id), f"there is no request {request_id}")

    def stats(self) -> Stats:
        """Figures as of the last step."""
        facts = self.stats_dict()
        groups = tuple(GroupStats(**group) for group in facts.pop("groups"))
        return Stats(groups=groups, **facts)

    def stats_dict(self) -> dict[str, Any]:
        """The same, as the host's JSON."""
        facts: dict[str, Any] = json.loads(self._text(self._library.trn_host_stats_json))
        return facts

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of ranks 1, 2, ..."""
        return tuple(process.pid for process in self._workers.processes)

    def worker_stats(self, rank: int) -> dict[str, Any]:
        """What the executor of rank 1 ... `tp_size` - 1 counted, the fields of `trn_executor_stats`."""
        figures = _api.ExecutorStats(struct_size=ctypes.sizeof(_api.ExecutorStats))
        _check(
            self._library.trn_host_get_worker_stats(self._handle, rank, ctypes.byref(figures)),
            f"rank {rank} is none of the {len(self._workers.processes)} workers",
        )
        return {name: getattr(figures, name) for name, *_ in figures._fields_}

    def warm_up_report(self) -> dict[str, Any]:
        """What the executor's `warm_up` reported."""
        text = self._text(self._library.trn_host_warm_up_report)
        report: dict[str, Any] = json.loads(text) if text else {}
        return report

    def reset_prefix_cache(self) -> None:
        """Forget every cached block; requests that run keep theirs."""
        _check(self._library.trn_host_reset_prefix_cache(self._handle), "the host has been closed")

    def close(self) -> None:
        """Cancel what runs and close the executor. Events that wait can still be read. May be called twice."""
        if not self._handle:
            return
        # Of a host that is dead the loop may wait for a worker that hangs.
        patience = threading.Timer(END_SECONDS, self._workers.kill)
        patience.daemon = True
        if self._workers.processes:
            patience.start()
        self._library.trn_host_shutdown(self._handle)
        patience.cancel()
        self._workers.end()

    def __enter__(self) -> ServingHost:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # No call can be in flight on an object that nobody refers to.
        handle = getattr(self, "_handle", None)
        if handle:
            self._library.trn_host_close(handle)
            handle.value = None
            self._workers.end()

    def _text(self, function: Any) -> str:
        text = ctypes.create_string_buffer(4096)
        length = function(self._handle, text, len(text))
        if length >= len(text):
            # The figures may have grown by some digits since.
            text = ctypes.create_string_buffer(length + 256)
            function(self._handle, text, len(text))
        return text.value.decode()

    def _read(self, event: abi.HostEvent) -> Event:
        if event.type == abi.EVENT_TOKEN:
            top = tuple((event.top_ids[i], event.top_logprobs[i]) for i in range(event.num_top))
            logprob = event.logprob if event.request_id in self._logprobs else None
            return Event(
                request_id=event.request_id,
                finished=False,
                token_id=event.token_id,
                logprob=logprob,
                top_logprobs=top,
            )
        self._logprobs.discard(event.request_id)
        return Event(
            request_id=event.request_id,
            finished=True,
            reason=abi.FINISH_REASONS[event.finish_reason],
            stop_id=None if event.stop_id < 0 else event.stop_id,
            error=event.error.decode(errors="replace"),
            num_prompt_tokens=event.num_prompt_tokens,
            num_cached_tokens=event.num_cached_tokens,
            num_output_tokens=event.num_output_tokens,
            num_preemptions=event.num_preemptions,
            seed=event.seed,
            embedding=tuple(event.embedding[: event.embedding_size]) if event.embedding_size else None,
        )


def _check(status: int, text: str) -> None:
    if status == abi.OK:
        return
    kinds = {abi.INVALID: InvalidError, abi.UNKNOWN_REQUEST: UnknownRequestError, abi.CLOSED: ClosedError}
    raise kinds.get(status, DeadError)(text)
