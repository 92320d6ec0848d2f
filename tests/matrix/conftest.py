"""The parameters of the matrix: every card of every family, on one hardware package, in every mode."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest
from _pytest.mark.structures import ParameterSet

from trunnion import registry
from trunnion.config import DTYPES
from trunnion.interfaces.runner import Mode
from trunnion_models.card import Card

from .bench import Bench, load_bench
from .hf_reference import Reference, build_reference
from .modes import MODES

SERVED = "served"
"""The mode of cases that run through the C++ host instead of the host double."""
SHORT = {"float32": "fp32", "bfloat16": "bf16"}
"""Dtypes of the matrix, and how test ids call them."""


@dataclass(frozen=True)
class Case:
    """One cell of the matrix."""

    card: Card
    hardware: str
    dtype: str
    mode: str
    execution: Mode | None = None
    """How steps are executed, where the hardware has several ways."""

    @property
    def name(self) -> str:
        execution = "" if self.execution is None else f"-{self.execution.value}"
        return f"{self.card.name}-{self.hardware}-{SHORT[self.dtype]}-{self.mode}{execution}"

    @property
    def fixture(self) -> str:
        """What a test that runs the case calls it."""
        if self.mode != SERVED:
            return "case"
        return "served_case" if self.card.pooling is None else "embedded_case"

    @property
    def keys(self) -> tuple[str, ...]:
        """How a package's `UNSUPPORTED` may name this case, alone or with others."""
        card, dtype = self.card.name, f"{self.card.name}-{SHORT[self.dtype]}"
        return card, dtype, f"{dtype}-{self.mode}"


def cards() -> list[Card]:
    """The cards of every model family, quick ones first."""
    found = [
        card for family in registry.model_families() for card in importlib.import_module(f"{family.package}.card").CARDS
    ]
    return sorted(found, key=lambda card: not card.quick)


def cases(hardware: str) -> list[Case]:
    """All cells, those of one card, dtype and execution side by side. Hosts are served as the package executes."""
    executions = registry.hardware(hardware).execution_modes or (None,)
    ways = [*((mode, execution) for execution in executions for mode in MODES), (SERVED, None)]
    return [
        Case(card, hardware, dtype, mode, execution)
        for card in cards()
        for dtype in (SHORT if card.bf16 else ("float32",))
        for mode, execution in ways
        # A draft is served with its target (test_draft.py).
        if mode != SERVED or not card.draft
    ]


def quick_cards() -> list[Card]:
    """The cards that run with every change, but for drafts, which do not run alone: one per family and its pooling."""
    return [card for card in cards() if card.quick and not card.draft]


def load_hardware(choice: str) -> str:
    """The name of the package that `--hardware` picks; one that is given by its folder is loaded from there."""
    return registry.load_hardware_from(Path(choice)).name if Path(choice).is_dir() else choice


def unsupported(hardware: str) -> Mapping[str, str]:
    """What the package says it cannot run, with reasons; pytest.UsageError for a case that does not exist."""
    package = type(registry.hardware(hardware)).__module__.rpartition(".")[0]
    listed: Mapping[str, str] = importlib.import_module(f"{package}.unsupported").UNSUPPORTED
    unknown = set(listed) - {key for case in cases(hardware) for key in case.keys}
    if unknown:
        raise pytest.UsageError(f"{package}.unsupported names cases that do not exist: {', '.join(sorted(unknown))}")
    return listed


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name in {"case", "served_case", "embedded_case"}.intersection(metafunc.fixturenames):
        hardware = load_hardware(str(metafunc.config.getoption("--hardware")))
        listed = unsupported(hardware)
        chosen = [case for case in cases(hardware) if case.fixture == name]
        metafunc.parametrize(name, [_parameter(case.card, case, case.name, listed, case.keys) for case in chosen])
    if "card" in metafunc.fixturenames:
        metafunc.parametrize("card", [_parameter(card, card, card.name) for card in cards()])


def _parameter(
    card: Card, value: object, name: str, listed: Mapping[str, str] = MappingProxyType({}), keys: tuple[str, ...] = ()
) -> ParameterSet:
    marks = [] if card.quick else [pytest.mark.nightly]
    # Strict: a case that is listed and passes fails the run.
    marks += [pytest.mark.xfail(reason=listed[key], strict=True) for key in keys if key in listed]
    return pytest.param(value, id=name, marks=marks)


class Benches:
    """The bench of the last case and its reference: cases that can share one follow each other."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._reference: tuple[tuple[str, str], Reference] | None = None
        self._bench: tuple[tuple[str, str, str, Mode | None], Bench] | None = None

    def open(self, case: Case) -> Bench:
        """The bench of a case."""
        key = (case.card.name, case.hardware, case.dtype, case.execution)
        if self._bench is None or self._bench[0] != key:
            self.close()
            bench = load_bench(case.card, case.hardware, case.dtype, self._refer_to(case), execution=case.execution)
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


@pytest.fixture(scope="session")
def benches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Benches]:
    found = Benches(tmp_path_factory)
    yield found
    found.close()
