"""The way in which a checkpoint runs: a port of its family, or else transformers' module on the adapter."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from trunnion import registry
from trunnion.adapter import adapter_class
from trunnion.checkup.opened import Opened
from trunnion.errors import UnknownArchitectureError
from trunnion.families import ModelFamily, naming_the_line
from trunnion.text.model_text import CLASSIFIER


class Way(Enum):
    """What runs a checkpoint."""

    PORT = "port"
    """A family's own class."""
    ADAPTER = "adapter"
    """Transformers' class, on this repository's attention."""


class Task(Enum):
    """What a checkpoint is for; the value is the command that runs it."""

    GENERATE = "generate"
    EMBED = "embed"
    RERANK = "rerank"
    DRAFT = "draft_model of its target"


ADAPTER = ModelFamily(name="adapter", package="trunnion.adapter", architectures={})


@dataclass(frozen=True, kw_only=True)
class Found:
    """The class that runs a checkpoint, and whose it is."""

    way: Way
    family: ModelFamily
    model_class: type[Any]
    task: Task

    @property
    def class_name(self) -> str:
        """Where the class is to be found."""
        module = self.model_class.__module__
        name = self.model_class.__name__
        return f"{module}.{name}" if self.family.folder is None else f"{self.family.folder}: {name}"

    def guard(self) -> AbstractContextManager[None]:
        """Around code of the family: what the code of a port raises is one line that names its file."""
        return nullcontext() if self.family.folder is None else naming_the_line(self.family.folder)


def find_way(opened: Opened, port: Path | None) -> Found:
    """What runs the checkpoint.

    Raises:
        UnsupportedError: nothing does; the line says what would be known.
        ConfigError, PortError: the configuration names no architecture, or the port cannot be used.
    """
    if registry.is_own_draft(opened.config, port=port):
        family, draft_class = registry.find_own_draft(opened.config, port=port)
        return Found(way=Way.PORT, family=family, model_class=draft_class, task=Task.DRAFT)
    try:
        family, model_class = registry.find_model(opened.config, pooling=opened.pooling is not None, port=port)
    except UnknownArchitectureError as error:
        adapted = adapter_class(opened.config, str(error), is_other=opened.pooling is not None)
        return Found(way=Way.ADAPTER, family=ADAPTER, model_class=adapted, task=Task.GENERATE)
    return Found(way=Way.PORT, family=family, model_class=model_class, task=_task(opened))


def find_head(opened: Opened, found: Found) -> Callable[[], type[Any]] | None:
    """What imports the head that drafts for the checkpoint's decoder; None if its family has none."""
    where = found.family.drafts.get(registry.architecture(opened.config))
    return None if where is None else lambda: found.family.load(where)


def _task(opened: Opened) -> Task:
    if opened.pooling is not None:
        return Task.EMBED
    return Task.RERANK if registry.architecture(opened.config).endswith(CLASSIFIER) else Task.GENERATE
