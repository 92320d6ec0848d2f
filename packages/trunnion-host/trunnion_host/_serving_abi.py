"""serving.h as ctypes sees it: structs, constants and signatures; a test holds both against each other."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from ctypes import (
    POINTER,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import trunnion_host
from trunnion_host._api import ABI_VERSION, CONTRACT_VERSION, CreateOptions, ExecutorStats, Limits, ModelInfo
from trunnion_host.serving_types import InvalidError

if TYPE_CHECKING:
    from trunnion_host.serving_types import HostConfig, Image, SamplingParams

Struct = TypeVar("Struct", bound=ctypes.Structure)

MAX_LOGPROBS = 20
ERROR_SIZE = 256

OK, TIMEOUT, INVALID, UNKNOWN_REQUEST, CLOSED, DEAD = range(6)
EVENT_TOKEN, EVENT_FINISHED = 1, 2
REQUEST_GENERATE, REQUEST_EMBED = range(2)
FINISH_REASONS = ("", "stop", "length", "cancelled", "error")


class HostOptions(ctypes.Structure):
    """trn_host_options"""

    _fields_ = [
        ("struct_size", c_uint32),
        ("queue_size", c_int32),
        ("prefix_caching", c_int32),
        ("exit_on_fatal", c_int32),
        ("watchdog_s", c_double),
        ("num_blocks", POINTER(c_int32)),
        ("num_groups", c_int32),
        ("kv_blocks", c_int32),
        ("kv_bytes", c_int64),
        ("executor", CreateOptions),
        ("worker_sockets", POINTER(c_int32)),
        ("num_workers", c_int32),
        ("worker_timeout_s", c_double),
        ("overlap", c_int32),
        ("trace_file", c_char_p),
        ("kv_events_of", c_void_p),
        ("kv_events_context", c_void_p),
        ("num_drafts", c_int32),
        ("prefix_levels", c_int32),
    ]


class WorkerOptions(ctypes.Structure):
    """trn_worker_options"""

    _fields_ = [("struct_size", c_uint32), ("socket", c_int32), ("executor", CreateOptions)]


class HostSampling(ctypes.Structure):
    """trn_host_sampling"""

    _fields_ = [
        ("struct_size", c_uint32),
        ("top_k", c_int32),
        ("temperature", c_double),
        ("top_p", c_double),
        ("min_p", c_double),
        ("seed", c_uint64),
        ("has_seed", c_int32),
        ("max_tokens", c_int32),
        ("min_tokens", c_int32),
        ("ignore_eos", c_int32),
        ("num_logprobs", c_int32),
    ]


class HostImage(ctypes.Structure):
    """trn_host_image"""

    _fields_ = [
        ("struct_size", c_uint32),
        ("grid", c_int32 * 3),
        ("pixels", POINTER(c_float)),
        ("num_patches", c_int64),
        ("patch_dim", c_int32),
        ("first_token", c_int32),
        ("num_tokens", c_int32),
    ]


class HostRequest(ctypes.Structure):
    """trn_host_request"""

    _fields_ = [
        ("struct_size", c_uint32),
        ("num_tokens", c_int32),
        ("token_ids", POINTER(c_int32)),
        ("stop_ids", POINTER(c_int32)),
        ("eos_ids", POINTER(c_int32)),
        ("num_stop_ids", c_int32),
        ("num_eos_ids", c_int32),
        ("sampling", HostSampling),
        ("kind", c_int32),
        ("num_images", c_int32),
        ("images", POINTER(HostImage)),
        ("positions", POINTER(c_int32)),
        ("position_delta", c_int32),
        ("token_type_ids", POINTER(c_int32)),
    ]


class HostEvent(ctypes.Structure):
    """trn_host_event"""

    _fields_ = [
        ("struct_size", c_uint32),
        ("type", c_int32),
        ("request_id", c_uint64),
        ("token_id", c_int32),
        ("logprob", c_float),
        ("num_top", c_int32),
        ("top_ids", c_int32 * MAX_LOGPROBS),
        ("top_logprobs", c_float * MAX_LOGPROBS),
        ("finish_reason", c_int32),
        ("stop_id", c_int32),
        ("num_prompt_tokens", c_int32),
        ("num_cached_tokens", c_int32),
        ("num_output_tokens", c_int32),
        ("num_preemptions", c_int32),
        ("seed", c_uint64),
        ("error", c_char * ERROR_SIZE),
        ("embedding", POINTER(c_float)),
        ("embedding_capacity", c_int32),
        ("embedding_size", c_int32),
    ]


SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "trn_host_create": (c_int32, [POINTER(HostOptions), POINTER(c_void_p), c_char_p, c_size_t]),
    "trn_host_submit": (c_int32, [c_void_p, POINTER(HostRequest), POINTER(c_uint64), c_char_p, c_size_t]),
    "trn_host_next_event": (c_int32, [c_void_p, c_uint64, c_int64, POINTER(HostEvent)]),
    "trn_host_cancel": (c_int32, [c_void_p, c_uint64]),
    "trn_host_model_info": (c_int32, [c_void_p, POINTER(ModelInfo)]),
    "trn_host_stats_json": (c_size_t, [c_void_p, c_char_p, c_size_t]),
    "trn_host_warm_up_report": (c_size_t, [c_void_p, c_char_p, c_size_t]),
    "trn_host_get_worker_stats": (c_int32, [c_void_p, c_int32, POINTER(ExecutorStats)]),
    "trn_worker_run": (c_int32, [POINTER(WorkerOptions), c_char_p, c_size_t]),
    "trn_host_reset_prefix_cache": (c_int32, [c_void_p]),
    "trn_host_shutdown": (None, [c_void_p]),
    "trn_host_close": (None, [c_void_p]),
}


def load(path: Path | None = None) -> ctypes.CDLL:
    """The library with its signatures set; CDLL, so the GIL is free while C waits."""
    library = ctypes.CDLL(str(path if path is not None else trunnion_host.library_path()))
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


def _ids(ids: Sequence[int]) -> ctypes.Array[c_int32]:
    for index, value in enumerate(ids):
        if not -(2**31) <= value < 2**31:
            # ctypes would wrap it around to an id that may exist.
            raise ValueError(f"token id {value} at {index} does not fit 32 bits")
    return (c_int32 * len(ids))(*ids)


def _filled(kind: type[Struct], **values: Any) -> Struct:
    """A struct of `values`. ctypes would wrap a number that is too large around to one that may be allowed."""
    struct = kind(struct_size=ctypes.sizeof(kind)) if kind._fields_[0][0] == "struct_size" else kind()
    for name, value in values.items():
        setattr(struct, name, value)
        if isinstance(value, int) and getattr(struct, name) != value:
            raise InvalidError(f"{name} is {value}, which does not fit {8 * getattr(kind, name).size} bits")
    return struct


def create_options(config: HostConfig, rank: int, init_method: str) -> CreateOptions:
    """What the executor of one rank is created with; it keeps the memory it points to alive."""
    return _filled(
        CreateOptions,
        abi_version=ABI_VERSION,
        contract_version=CONTRACT_VERSION,
        model=config.model.encode(),
        hardware=config.hardware.encode(),
        dtype=config.dtype.encode(),
        kv_cache_dtype=config.kv_cache_dtype.encode(),
        draft_model=None if config.draft_model is None else config.draft_model.encode(),
        port=None if config.port is None else config.port.encode(),
        num_threads=config.threads,
        weights=config.weights.encode(),
        activations=config.activations.encode(),
        device_index=config.device_index,
        tp_rank=rank,
        tp_size=config.tp_size,
        tp_init_method=init_method.encode(),
        show_progress=config.show_progress and rank == 0,
        limits=_filled(
            Limits,
            max_num_tokens=config.max_num_tokens,
            max_num_seqs=config.max_num_seqs,
            max_model_len=config.max_model_len,
            max_logits_rows=config.max_logits_rows
            or min(config.max_num_seqs * (1 + config.num_drafts), max(config.max_num_seqs, config.max_num_tokens)),
            block_size=config.block_size,
            max_encoder_rows=config.max_encoder_rows,
        ),
    )


def worker_options(config: HostConfig, rank: int, socket: int, init_method: str) -> WorkerOptions:
    """A rank above 0 as the C struct; it keeps the memory it points to alive."""
    executor = create_options(config, rank, init_method)
    if config.worker_devices:
        executor.device_index = config.worker_devices[rank - 1]
    return WorkerOptions(struct_size=ctypes.sizeof(WorkerOptions), socket=socket, executor=executor)


def host_options(config: HostConfig, worker_sockets: Sequence[int] = (), init_method: str = "") -> HostOptions:
    """`config` as the C struct; it keeps the memory it points to alive."""
    return _filled(
        HostOptions,
        queue_size=config.queue_size,
        prefix_caching=config.prefix_caching,
        exit_on_fatal=config.exit_on_fatal,
        watchdog_s=config.watchdog_s,
        num_blocks=_ids(config.num_blocks) if config.num_blocks else None,
        num_groups=len(config.num_blocks),
        kv_blocks=config.kv_blocks,
        kv_bytes=config.kv_bytes,
        executor=create_options(config, 0, init_method),
        worker_sockets=_ids(worker_sockets) if worker_sockets else None,
        num_workers=len(worker_sockets),
        worker_timeout_s=config.worker_timeout_s,
        overlap=config.overlap,
        trace_file=os.fsencode(config.trace_file) if config.trace_file is not None else None,
        num_drafts=config.num_drafts,
        prefix_levels=config.prefix_levels,
    )


def _host_image(image: Image) -> HostImage:
    pixels = memoryview(image.pixels)
    if pixels.format != "f" or pixels.ndim != 2 or not pixels.c_contiguous:
        raise InvalidError(
            f"pixels have the format {pixels.format!r} and {pixels.ndim} axes, expected float32 [patches, patch_dim]"
        )
    if len(image.grid) != 3:
        raise InvalidError(f"grid is {tuple(image.grid)}, expected patches in time, height and width")
    rows, columns = pixels.shape or (0, 0)
    return _filled(
        HostImage,
        grid=_ids(image.grid),
        pixels=(c_float * (rows * columns)).from_buffer_copy(pixels) if rows * columns else None,
        num_patches=rows,
        patch_dim=columns,
        first_token=image.first_token,
        num_tokens=image.num_tokens,
    )


def _positions(positions: Sequence[Sequence[int]], num_tokens: int, num_axes: int) -> ctypes.Array[c_int32]:
    # A model with one axis refuses them unread.
    if num_axes > 1 and (len(positions) != num_tokens or any(len(row) != num_axes for row in positions)):
        raise InvalidError(
            f"positions must be [{num_tokens}, {num_axes}]: a row for each token, a column for each axis"
        )
    return _ids([int(position) for row in positions for position in row])


def host_request(
    token_ids: Sequence[int],
    sampling: SamplingParams,
    images: Sequence[Image] = (),
    positions: Sequence[Sequence[int]] | None = None,
    position_delta: int = 0,
    num_axes: int = 1,
    token_type_ids: Sequence[int] | None = None,
) -> HostRequest:
    """A request as the C struct; it keeps the memory it points to alive."""
    structs = [_host_image(image) for image in images]
    return _filled(
        HostRequest,
        num_tokens=len(token_ids),
        token_ids=_ids(token_ids),
        stop_ids=_ids(sampling.stop_ids),
        eos_ids=_ids(sampling.eos_ids),
        num_stop_ids=len(sampling.stop_ids),
        num_eos_ids=len(sampling.eos_ids),
        sampling=_filled(
            HostSampling,
            top_k=sampling.top_k,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            seed=0 if sampling.seed is None else sampling.seed & (2**64 - 1),
            has_seed=sampling.seed is not None,
            max_tokens=sampling.max_tokens,
            min_tokens=sampling.min_tokens,
            ignore_eos=sampling.ignore_eos,
            num_logprobs=-1 if sampling.num_logprobs is None else sampling.num_logprobs,
        ),
        num_images=len(structs),
        images=(HostImage * len(structs))(*structs) if structs else None,
        positions=None if positions is None else _positions(positions, len(token_ids), num_axes),
        position_delta=position_delta,
        token_type_ids=_types(token_type_ids, len(token_ids)),
    )


def _types(token_type_ids: Sequence[int] | None, num_tokens: int) -> ctypes.Array[c_int32] | None:
    if token_type_ids is None:
        return None
    if len(token_type_ids) != num_tokens:
        raise InvalidError(
            f"token_type_ids has {len(token_type_ids)} entries, expected one for each of {num_tokens} tokens"
        )
    return _ids(token_type_ids)


def embed_request(token_ids: Sequence[int], token_type_ids: Sequence[int] | None = None) -> HostRequest:
    """As `host_request`, for a model that pools: nothing is sampled."""
    return HostRequest(
        struct_size=ctypes.sizeof(HostRequest),
        num_tokens=len(token_ids),
        token_ids=_ids(token_ids),
        sampling=HostSampling(struct_size=ctypes.sizeof(HostSampling)),
        kind=REQUEST_EMBED,
        token_type_ids=_types(token_type_ids, len(token_ids)),
    )


def host_event(embedding_width: int) -> HostEvent:
    """An event to be filled, with memory for an embedding of so many floats."""
    event = HostEvent(struct_size=ctypes.sizeof(HostEvent), embedding_capacity=embedding_width)
    if embedding_width:
        event.embedding = (c_float * embedding_width)()
    return event
