"""A model family: a package whose `__init__` says which architectures it runs, so that asking imports no model code."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from trunnion.errors import PortError, TrunnionError

FAMILY_TABLES = ("architectures", "pooling_architectures", "drafts", "draft_architectures")
"""Fields of ModelFamily that a family's package declares, in capitals."""


@dataclass(frozen=True, kw_only=True)
class ModelFamily:
    """A folder of `trunnion_models` (or of another package): its name is the Hugging Face model type."""

    name: str
    package: str
    """Dotted name of the family's package."""
    architectures: Mapping[str, str]
    """Class name in `config.json` -> `module:class` within the package."""
    pooling_architectures: Mapping[str, str] = field(default_factory=dict)
    """The same, for checkpoints that say how they pool; the class name alone does not tell the two apart."""
    drafts: Mapping[str, str] = field(default_factory=dict)
    """Class name of a decoder -> `module:class` of the head that drafts for it, from the same checkpoint."""
    draft_architectures: Mapping[str, str] = field(default_factory=dict)
    """Class name in the `config.json` of a draft with its own checkpoint -> `module:class`; may be a decoder's name."""
    draft_field: str | None = None
    """What the `config.json` of such a draft has, where its class name is a decoder's, and the decoder's has not."""
    max_positions: str | None = None
    """`module:function` that reads the longest sequence from a `config.json`; None: `max_position_embeddings`."""
    folder: Path | None = None
    """Where a family lies that is not installed (`trunnion.ports`)."""

    @property
    def origin(self) -> str:
        """What messages call it: the folder of one that is not installed, else the package."""
        return self.package if self.folder is None else str(self.folder)

    def runs(self, architecture: str) -> bool:
        """Whether the family names a class of `config.json` in any of its tables."""
        return any(architecture in getattr(self, table) for table in FAMILY_TABLES)

    def load(self, where: str) -> Any:
        """Import `module:class` of the package.

        Raises:
            PortError: a family that is not installed cannot be imported, or has no such class.
        """
        module, _, attribute = where.partition(":")
        name = f"{self.package}.{module}"
        if self.folder is None:
            return getattr(importlib.import_module(name), attribute)
        with naming_the_line(self.folder):
            found = importlib.import_module(name)
        if not hasattr(found, attribute):
            raise PortError(f"port {self.folder}: {module}.py has no {attribute}, which its __init__.py names")
        return getattr(found, attribute)


def family_of(name: str, package: ModuleType, folder: Path | None = None) -> ModelFamily | None:
    """The family that an imported package declares; None if it declares none."""
    tables = {table: dict(getattr(package, table.upper(), {})) for table in FAMILY_TABLES}
    if not any(tables.values()):
        return None
    return ModelFamily(
        name=name,
        package=package.__name__,
        folder=folder,
        draft_field=getattr(package, "DRAFT_FIELD", None),
        max_positions=getattr(package, "MAX_POSITIONS", None),
        **tables,
    )


@contextmanager
def naming_the_line(folder: Path) -> Iterator[None]:
    """Inside, whatever the code of the port at `folder` raises becomes a PortError that names the file and the line."""
    try:
        yield
    except TrunnionError:
        raise
    except Exception as error:
        text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
        raise PortError(f"port {folder}: {type(error).__name__}: {text}{_place(error, folder)}") from error


def _place(error: Exception, folder: Path) -> str:
    """The innermost line of the folder's own code that led to `error`."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f" ({error.filename}:{error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
