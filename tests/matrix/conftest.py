"""The parameters of the matrix's tests, and the benches that cases share."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from _pytest.mark.structures import ParameterSet

from trunnion import registry
from trunnion_models.card import Card

from .benches import Benches
from .cases import cards, cases, load_hardware
from .outcomes import DeviceHook, Outcomes


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--outcomes", metavar="FILE", type=Path, help="write what became of every cell of the matrix, as JSON"
    )


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(DeviceHook)


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--outcomes", None)
    if path is not None:
        config.pluginmanager.register(Outcomes(path, config))


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


@pytest.fixture(scope="session")
def benches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Benches]:
    found = Benches(tmp_path_factory)
    yield found
    found.close()
