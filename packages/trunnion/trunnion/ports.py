"""Imports a model family from a folder that is not installed: a port in the making, or one of another repository."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from pathlib import Path

from trunnion.errors import PortError
from trunnion.families import FAMILY_TABLES, ModelFamily, family_of, naming_the_line

PREFIX = "trunnion_port_"


def load_port(folder: Path) -> ModelFamily:
    """The family at `folder`, whose modules import each other relatively (`from .config import ...`).

    Its package has a name of its own in `sys.modules`, made of the folder's whole path, and nothing is put on the
    import path: a port shadows no other package, and two folders of one name are two families. A folder is imported
    once per process.

    Raises:
        PortError: there is no such folder, it is no family, or its `__init__` cannot be imported.
    """
    folder = folder.expanduser().resolve()
    if not folder.is_dir():
        raise PortError(f"port {folder}: {'is not a folder' if folder.exists() else 'no such folder'}")
    init = folder / "__init__.py"
    tables = ", ".join(table.upper() for table in FAMILY_TABLES)
    if not init.is_file():
        raise PortError(f"port {folder}: no __init__.py, which declares what a family runs: one or more of {tables}")
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
    name = f"{PREFIX}{digest}_" + re.sub(r"\W", "_", folder.name)
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[str(folder)])
        assert spec is not None and spec.loader is not None, f"{init} is a file"
        package = importlib.util.module_from_spec(spec)
        sys.modules[name] = package
        try:
            with naming_the_line(folder):
                spec.loader.exec_module(package)
        except BaseException:
            del sys.modules[name]
            raise
    family = family_of(folder.name, sys.modules[name], folder)
    if family is None:
        raise PortError(f"port {folder}: its __init__.py declares none of {tables}")
    return family
