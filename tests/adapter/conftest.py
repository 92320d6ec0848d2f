"""Keeps what one file of tests initialises from the next."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from trunnion.ops.registry import OPERATORS


@pytest.fixture(scope="module", autouse=True)
def kernels_stay_in_their_file() -> Iterator[None]:
    """Hardware that one file of tests initialises runs none of the next one's operators."""
    with OPERATORS.borrowed():
        yield
