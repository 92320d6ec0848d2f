"""What a Python exception becomes at the boundary: the status a host acts upon, the field, and one line."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from trunnion.config import ExecutorConfig
from trunnion.contract import Limits
from trunnion.errors import BatchRefused, ConfigError
from trunnion.interfaces.hardware import Fence
from trunnion.interfaces.runner import RunnerCounters
from trunnion.reference import ReferenceHardware
from trunnion.runner.host_entry import FAILED, FATAL, REFUSED, HostedExecutor, classify, classify_creation
from trunnion.runner.model_executor import ModelExecutor
from trunnion.runner.step_counters import FIELDS, MAX_REASONS, StepCounters

from .tiny_models import save_model


def raised(error: BaseException) -> BaseException:
    """The exception with a traceback."""
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ConfigError("vocab_size is missing"), REFUSED, "vocab_size is missing"),
        (ValueError("two\nlines"), REFUSED, "two lines"),
        (FileNotFoundError(2, "No such file", "x"), REFUSED, "[Errno 2] No such file: 'x'"),
        (KeyError("a bug"), FAILED, "KeyError: 'a bug' (test_host_entry.py:"),
        (KeyboardInterrupt(), FAILED, "KeyboardInterrupt:"),
    ],
)
def test_creation(error: BaseException, status: int, line: str) -> None:
    found, field, text = classify_creation(raised(error))
    assert (found, field) == (status, "")
    assert text.startswith(line)


@pytest.mark.parametrize(
    ("error", "status", "field"),
    [
        (BatchRefused("groups[0].kv_start: 3 is odd"), REFUSED, "groups[0].kv_start"),
        (BatchRefused("a text without a field: none"), REFUSED, ""),
        (RuntimeError("a kernel said no"), FAILED, ""),
        (ValueError("a bug"), FAILED, ""),
        (MemoryError(), FATAL, ""),
        (torch.AcceleratorError("device fault"), FATAL, ""),
    ],
)
def test_steps(error: BaseException, status: int, field: str) -> None:
    assert classify(raised(error), several_ranks=False)[:2] == (status, field)


def values(counters: StepCounters) -> list[int]:
    """What lies at the address."""
    return list((ctypes.c_int64 * (len(FIELDS) + MAX_REASONS)).from_address(counters.address))


def test_step_counters_are_what_the_runner_counted() -> None:
    runner = RunnerCounters(
        replays=3, plans=8, plan_ns=250_000_000, last_plan_ns=(1_500_000_000, 1_750_000_000), padded_tokens=5
    )
    runner.kv_event_steps = 6
    runner.prefix_level_steps = 7
    runner.token_type_steps = 8
    counters = StepCounters(runner)
    assert values(counters) == [0] * (len(FIELDS) + MAX_REASONS)
    runner.eager.update({"a": 2, "b": 1})
    counters.write(100, 400)
    counters.write(1000, 1700)
    found = dict(zip(FIELDS, values(counters), strict=False))
    assert found == {
        "replays": 3, "eager_steps": 3, "padded_tokens": 5, "plan_calls": 8, "plan_ns": 250_000_000,
        "python_ns": 1000, "last_python_begin_ns": 1000, "last_python_end_ns": 1700,
        "last_plan_begin_ns": 1_500_000_000, "last_plan_end_ns": 1_750_000_000, "num_eager_reasons": 2,
        "kv_event_steps": 6, "prefix_level_steps": 7, "token_type_steps": 8,
    }  # fmt: skip
    assert values(counters)[len(FIELDS) :][:3] == [2, 1, 0]
    assert counters.reasons() == ["a", "b"]


def test_step_counters_hold_any_number_of_reasons() -> None:
    runner = RunnerCounters()
    counters = StepCounters(runner)
    for number in range(MAX_REASONS + 5):
        runner.eager[f"reason {number}"] += 1
        counters.write(0, 0)
    found = values(counters)
    assert found[FIELDS.index("num_eager_reasons")] == len(counters.reasons()) == MAX_REASONS
    assert found[len(FIELDS) :] == [1] * (MAX_REASONS - 1) + [6]
    assert found[FIELDS.index("eager_steps")] == MAX_REASONS + 5
    assert counters.reasons()[-1] == "other reasons"


class LateHardware(ReferenceHardware):
    """Its steps end after their call, on the memory of the host."""

    name = "late"
    device_type = "cpu"

    def record_fence(self, buffer_set: int) -> Fence | None:
        return LateFence()


class LateFence:
    def wait(self) -> None:
        """Nothing to wait for here."""


@pytest.mark.parametrize(("hardware", "synchronous"), [(ReferenceHardware(), 1), (LateHardware(), 0)])
def test_host_is_told_whether_there_are_fences(tmp_path: Path, hardware: ReferenceHardware, synchronous: int) -> None:
    """Where there are none, C++ never enters Python to wait; where there are it must, whatever the device."""
    save_model("llama", tmp_path)
    limits = Limits(max_num_tokens=4, max_num_seqs=2, max_model_len=8, max_logits_rows=2)
    executor = ModelExecutor.create(ExecutorConfig(model=tmp_path, hardware="reference", limits=limits), hardware)
    assert HostedExecutor(executor).describe()["synchronous"] == synchronous


def test_a_failure_of_one_of_several_ranks_is_fatal() -> None:
    assert classify(raised(RuntimeError("no")), several_ranks=True)[0] == FATAL
    assert classify(raised(BatchRefused("seq_lens: no")), several_ranks=True)[0] == REFUSED
