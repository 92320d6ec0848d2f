"""What a Python exception becomes at the boundary: the status a host acts upon, the field, and one line."""

from __future__ import annotations

import pytest
import torch

from trunnion.errors import BatchRefused, ConfigError
from trunnion.runner.host_entry import FAILED, FATAL, REFUSED, classify, classify_creation


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


def test_a_failure_of_one_of_several_ranks_is_fatal() -> None:
    assert classify(raised(RuntimeError("no")), several_ranks=True)[0] == FATAL
    assert classify(raised(BatchRefused("seq_lens: no")), several_ranks=True)[0] == REFUSED
