"""Marks the cases that the package under test says it refuses: each must raise UnsupportedError, or the suite fails."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from pathlib import Path

import pytest

from trunnion import registry
from trunnion.errors import UnsupportedError
from trunnion.interfaces.hardware import Hardware

HERE = Path(__file__).parent


def listed(hardware: Hardware, table: str) -> Mapping[str, str]:
    """`table` of the package's `unsupported.py`; a package without one claims everything."""
    package = inspect.getmodule(type(hardware))
    assert package is not None
    name = f"{package.__name__.rpartition('.')[0]}.unsupported"
    try:
        found: Mapping[str, str] = vars(importlib.import_module(name)).get(table, {})
    except ModuleNotFoundError as error:
        assert error.name == name
        return {}
    return found


def is_case(key: str, test_id: str) -> bool:
    """Whether `key` names the case with this id, alone or among others."""
    return f"{test_id}-".startswith(f"{key}-")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    choice = str(config.getoption("--hardware"))
    package = registry.load_hardware_from(Path(choice)) if Path(choice).is_dir() else registry.hardware(choice)
    refused = listed(package, "REFUSED")
    for item in items:
        if HERE not in item.path.parents or not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        for key, reason in refused.items():
            if is_case(key, item.callspec.id):
                item.add_marker(pytest.mark.xfail(reason=reason, raises=UnsupportedError, strict=True))
