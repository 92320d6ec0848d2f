"""Keeps the last bench and its reference open: cases that can share one follow each other."""

from __future__ import annotations

import pytest

from trunnion.config import DTYPES

from .bench import Bench, load_bench
from .cases import Case
from .hf_reference import Reference, build_reference


class Benches:
    """The bench of the last case and its reference: cases that can share one follow each other."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._reference: tuple[tuple[str, str], Reference] | None = None
        self._bench: tuple[tuple[object, ...], Bench] | None = None

    def open(self, case: Case, *, max_num_tokens: int | None = None) -> Bench:
        """The bench of a case; `max_num_tokens` as `load_bench` takes it."""
        options = {"execution": case.execution, "max_num_tokens": max_num_tokens}
        key = (case.card.name, case.hardware, case.dtype, *options.values())
        if self._bench is None or self._bench[0] != key:
            self.close()
            bench = load_bench(case.card, case.hardware, case.dtype, self._refer_to(case), **options)
            self._bench = key, bench
        return self._bench[1]

    def close(self) -> None:
        """Close the last bench."""
        if self._bench is not None:
            self._bench[1].close()
        self._bench = None

    def _refer_to(self, case: Case) -> Reference:
        key = (case.card.name, case.dtype)
        if self._reference is None or self._reference[0] != key:
            folder = self._folders.mktemp(case.card.name)
            self._reference = key, build_reference(case.card, DTYPES[case.dtype], folder)
        return self._reference[1]
