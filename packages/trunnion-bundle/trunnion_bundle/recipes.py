"""What the command line is told in words: a recipe of a model, and changes of a policy."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from trunnion_bundle.errors import BundleError

DEFAULT_FUNCTION = "recipe"


def load_recipe(words: str) -> dict[str, Any]:
    """Arguments of `save`, as the function that `words` name returns them: `module:function` or `file.py:function`.

    Raises:
        BundleError: there is no such module or function, or it returns no dict.
    """
    place, _, name = words.partition(":")
    module = _load_file(Path(place)) if place.endswith(".py") else _import(place)
    function = getattr(module, name or DEFAULT_FUNCTION, None)
    if not callable(function):
        choices = ", ".join(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise BundleError(f"{place} has no function {name or DEFAULT_FUNCTION!r}; it has: {choices or 'none'}")
    found = function()
    if not isinstance(found, dict):
        raise BundleError(f"{words} returns {type(found).__name__}; it must return a dict of arguments of save")
    return found


def _import(name: str) -> ModuleType:
    if not name or importlib.util.find_spec(name.partition(".")[0]) is None:
        raise BundleError(f"no module {name!r}; give a module on the import path, or a file that ends in .py")
    return importlib.import_module(name)


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise BundleError(f"no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None, "a file that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    # Modules beside it are found, as when the file is run.
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def read_changes(words: Sequence[str]) -> dict[str, Any]:
    """`["max_delay_us=500", "padding=pad_up"]` as keys and values; a value that is no JSON is a string.

    Raises:
        BundleError: a word without `=`.
    """
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise BundleError(f"{word!r} is no change; write KEY=VALUE")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found
