"""What the C++ bridge calls: an executor described in plain numbers, strings and addresses, and errors as statuses."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from trunnion.config import ExecutorConfig
from trunnion.contract import (
    CONTRACT_VERSION,
    CacheGroupSpec,
    CacheKind,
    CacheTensorSpec,
    EncoderItem,
    LayerCaches,
    Limits,
    OutputKind,
    Role,
    Staging,
)
from trunnion.errors import BatchRefused, TrunnionError
from trunnion.interfaces.kv_events import KVEventSlots
from trunnion.runner.model_executor import ModelExecutor
from trunnion.runner.step_counters import StepCounters

# trn_status of trunnion/contract.h
REFUSED, FAILED, FATAL = 1, 2, 3
# trn_cache_kind
KIND_CODES = {CacheKind.FULL: 0, CacheKind.WINDOW: 1, CacheKind.MLA: 2, CacheKind.RECURRENT: 3}
# trn_output_kind
OUTPUT_CODES = {OutputKind.LOGITS: 0, OutputKind.POOLED: 1}
# trn_role
ROLES = (Role.TARGET, Role.DRAFT)
# trn_staging
STAGINGS = (Staging.HOST, Staging.DEVICE)
# DLPack's (code, bits); 2 = float, 4 = bfloat, 10 = float8_e4m3fn, 0 = int, 1 = unsigned
DLPACK_DTYPES = {
    torch.float32: (2, 32),
    torch.float16: (2, 16),
    torch.bfloat16: (4, 16),
    torch.float8_e4m3fn: (10, 8),
    torch.int32: (0, 32),
    torch.int64: (0, 64),
    torch.int8: (0, 8),
    torch.uint8: (1, 8),
}
# DLDeviceType of torch's device types; the others are kDLExtDev
DLPACK_DEVICES = {"cpu": 1, "cuda": 2}
DLPACK_EXTENSION_DEVICE = 12


def create(options: Mapping[str, Any]) -> HostedExecutor:
    """Load the model. `options` are the fields of `trn_create_options`, limits flattened; `share_with` is what an
    earlier call returned, or None.

    Raises:
        TrunnionError, ValueError, OSError: one line that names what is wrong.
    """
    limits = Limits(**{spec.name: options[spec.name] for spec in dataclasses.fields(Limits)})
    config = ExecutorConfig(
        model=Path(options["model"]),
        hardware=options["hardware"],
        dtype=options["dtype"],
        device_index=options["device_index"],
        tp_rank=options["tp_rank"],
        tp_size=options["tp_size"],
        tp_init_method=options["tp_init_method"],
        progress=bool(options["show_progress"]),
        limits=limits,
        role=ROLES[options["role"]],
        staging=STAGINGS[options["staging"]],
        keep_hidden=bool(options["keep_hidden"]),
        kv_cache_dtype=options["kv_cache_dtype"],
        port=None if options["port"] is None else Path(options["port"]),
        draft_model=None if options["draft_model"] is None else Path(options["draft_model"]),
        num_threads=options["num_threads"],
        weights=options["weights"],
        activations=options["activations"],
    )
    target: HostedExecutor | None = options["share_with"]
    return HostedExecutor(ModelExecutor.create(config, share_with=None if target is None else target.executor))


class HostedExecutor:
    """A `ModelExecutor` behind calls that carry no tensor; used from one thread."""

    def __init__(self, executor: ModelExecutor) -> None:
        self._executor = executor
        self._spec = executor.kv_cache_spec()
        self._tp_size = executor.config.tp_size
        self._counters = StepCounters(executor.counters)

    @property
    def executor(self) -> ModelExecutor:
        """What is behind the calls."""
        return self._executor

    def describe(self) -> dict[str, Any]:
        """Facts that do not change, named as in backend.h."""
        profile = self._executor.memory_profile()
        device_type = self._executor.device.type
        return {
            "contract_version": CONTRACT_VERSION,
            "vocab_size": self._executor.vocab_size,
            "output_kind": OUTPUT_CODES[self._executor.output_kind],
            "output_width": self._executor.output_width,
            "num_position_axes": self._executor.num_position_axes,
            "encoder_patch_dim": self._executor.encoder_patch_dim,
            "required_fields": int(self._executor.required_fields()),
            "accepts_upper_bound_lens": 0,
            "accepts_prefix_levels": int(self._executor.accepts_prefix_levels),
            "needs_whole_prompts": int(self._executor.needs_whole_prompts),
            "num_token_types": self._executor.num_token_types,
            "synchronous": int(self._executor.synchronous),
            "cache_device": DLPACK_DEVICES.get(device_type, DLPACK_EXTENSION_DEVICE),
            "num_buffer_sets": len(self._executor.input_buffers()),
            "weights": profile.weights,
            "activations": profile.activations,
            "graphs": profile.graphs,
            "workspaces": profile.workspaces,
            "counters": self._counters.address,
            "groups": [_describe_group(group) for group in self._spec.groups],
        }

    def addresses(self, buffer_set: int) -> dict[str, int]:
        """Host addresses of one set's lent tensors: every int32 field by its name, `counts` (int64), and
        the output rows by their kind: `logits` or `pooled`. With device staging output rows are device addresses, and
        `sampled_ids` is one more."""
        buffers = self._executor.input_buffers()[buffer_set]
        sampled = self._executor.sampled_ids
        return {
            **({} if sampled is None else {"sampled_ids": sampled.data_ptr()}),
            **{name: tensor.data_ptr() for name, tensor in buffers.fields.items()},
            "counts": buffers.counts.data_ptr(),
            self._executor.output_kind.value: buffers.output_rows.data_ptr(),
        }

    def step(self, buffer_set: int) -> Callable[[], object]:
        """The callable of every step on one set; the counts lie in the set's `counts`.

        A step that encodes images is called with (pixels as a DLPack capsule, grid, first row, rows) of each.
        """
        execute, clock, write = self._executor.execute_set, time.perf_counter_ns, self._counters.write

        def run(images: Sequence[tuple[Any, tuple[int, int, int], int, int]] = ()) -> None:
            begin = clock()
            try:
                items = [EncoderItem(torch.from_dlpack(image[0]), *image[1:]) for image in images]
                execute(buffer_set, items)
            finally:
                write(begin, clock())

        return run

    def eager_reasons(self) -> list[str]:
        """Why steps ran eager, in the order of their counts at `counters`."""
        return self._counters.reasons()

    def allocate_kv_cache(self, num_blocks: Sequence[int]) -> None:
        """As `ModelExecutor.allocate_kv_cache`."""
        self._executor.allocate_kv_cache(num_blocks)

    def bind_kv_cache(self, tensors: Sequence[tuple[int, int, str, Any]]) -> None:
        """Bind (group, layer, name, DLPack capsule) tuples, of which every one is there once."""
        caches: list[LayerCaches] = [[{} for _ in group.layers] for group in self._spec.groups]
        for group, layer, name, capsule in tensors:
            caches[group][layer][name] = torch.from_dlpack(capsule)
        self._executor.bind_kv_cache(caches)

    def bind_kv_events(self, wait: int, signal: int, addresses: Sequence[Sequence[int]]) -> None:
        """As `ModelExecutor.bind_kv_events`; the arguments are the fields of `KVEventSlots`."""
        slots = KVEventSlots(wait=wait, signal=signal, addresses=tuple(tuple(row) for row in addresses))
        self._executor.bind_kv_events(slots)

    def warm_up(self) -> str:
        """The report as JSON."""
        return json.dumps(dataclasses.asdict(self._executor.warm_up()))

    def wait(self, fence: int) -> None:
        """As `ModelExecutor.wait`."""
        self._executor.wait(fence)

    def classify(self, error: BaseException) -> tuple[int, str, str]:
        """The status, field and line of an exception that a call on this executor raised."""
        return classify(error, several_ranks=self._tp_size > 1)

    def close(self) -> None:
        """Drop the executor."""
        self._executor.close()


def classify_creation(error: BaseException) -> tuple[int, str, str]:
    """The status, field ("") and line of an exception that `create` raised: a user's mistake is REFUSED."""
    if isinstance(error, (TrunnionError, ValueError, OSError)):
        return REFUSED, "", _line(str(error) or type(error).__name__)
    return FAILED, "", _describe(error)


def classify(error: BaseException, *, several_ranks: bool) -> tuple[int, str, str]:
    """The status, field and line of an exception after creation.

    BatchRefused changed nothing. What a device reports, and lack of host memory, cannot be recovered from; with several
    ranks neither can anything else, because the others wait.
    """
    if isinstance(error, BatchRefused):
        text = _line(str(error))
        field, colon, _ = text.partition(":")
        return REFUSED, field if colon and " " not in field else "", text
    if isinstance(error, (MemoryError, torch.AcceleratorError)) or several_ranks:
        return FATAL, "", _describe(error)
    return FAILED, "", _describe(error)


def _describe_group(group: CacheGroupSpec) -> dict[str, Any]:
    return {
        "kind": KIND_CODES[group.kind],
        "block_size": group.block_size,
        "max_blocks_per_seq": group.max_blocks_per_seq,
        "window": group.window or 0,
        "layers": list(group.layers),
        "tensors": [_describe_tensor(tensor) for tensor in group.tensors],
    }


def _describe_tensor(tensor: CacheTensorSpec) -> dict[str, Any]:
    code, bits = DLPACK_DTYPES[tensor.dtype]
    return {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "code": code,
        "bits": bits,
        "bytes_per_block": tensor.bytes_per_block,
    }


def _describe(error: BaseException) -> str:
    """One line with the type, the message and where it was raised."""
    frame: TracebackType | None = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = f" ({Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno})" if frame is not None else ""
    return f"{type(error).__name__}: {_line(str(error))}{where}"


def _line(text: str) -> str:
    return " ".join(text.split())
