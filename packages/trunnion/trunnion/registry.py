"""Finds hardware packages and model families by entry point and by folder; with `ports` the only dynamic import.

A hardware package is named by an entry point in the group `trunnion.hardware` (name -> module or class), or is a
top-level package `trunnion_<name>` on the import path with a `hardware.py`. Model families are the subpackages of
`trunnion_models` and of every package named by an entry point in `trunnion.models`; each declares `ARCHITECTURES`
(`{"LlamaForCausalLM": "model:LlamaForCausalLM"}`) in its `__init__`, so that looking one up imports no model code, and
`POOLING_ARCHITECTURES`, of the same form, if it also runs pooling models, `DRAFTS` if it has heads that draft for its
architectures, and `DRAFT_ARCHITECTURES` (with `DRAFT_FIELD`) if it runs drafts with checkpoints of their own;
`MAX_POSITIONS` (`"config:max_positions"`) names what reads the longest sequence, where `max_position_embeddings` does
not say it. Every question about families takes a `port`, the folder of a family that is not installed: it is asked as
well, and nothing remembers it. Commands of other distributions are found by `cli.installed`.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata, util
from pathlib import Path
from typing import Any

from trunnion import hf_config
from trunnion.errors import ConfigError, UnknownArchitectureError, UnsupportedError
from trunnion.families import ModelFamily, family_of
from trunnion.interfaces.hardware import Hardware
from trunnion.interfaces.model import AuxDraftModel, DraftModel, Model
from trunnion.pooling import MODULES_FILE
from trunnion.ports import load_port

HARDWARE_GROUP = "trunnion.hardware"
MODELS_GROUP = "trunnion.models"
PACKAGE_PREFIX = "trunnion_"
MODELS_PACKAGE = "trunnion_models"


class Registry:
    """What one process has found and loaded. Use the module's functions; tests may make their own."""

    def __init__(self) -> None:
        self._instances: dict[str, Hardware] = {}

    def hardware(self, name: str) -> Hardware:
        """The instance of hardware package `name`, one per registry.

        Raises:
            UnsupportedError: there is no such package, or another one is already in use for its device type.
        """
        if name in self._instances:
            return self._instances[name]
        modules = hardware_modules()
        if name not in modules:
            raise UnsupportedError(f"unknown hardware {name!r}; installed: {', '.join(sorted(modules)) or 'none'}")
        return self._activate(name, modules[name])

    def load_hardware_from(self, folder: Path) -> Hardware:
        """The hardware package at `folder` (a `trunnion_<name>` package, or a folder that holds one), wherever it lies.

        Its parent folder is put on the import path. Raises UnsupportedError if there is none, or several.
        """
        folder = folder.resolve()
        packages = [folder] if (folder / "hardware.py").is_file() else _packages_in(folder)
        if len(packages) != 1:
            found = ", ".join(package.name for package in packages) or "none"
            raise UnsupportedError(
                f"{folder}: expected one package {PACKAGE_PREFIX}<name> with hardware.py; found: {found}"
            )
        package = packages[0]
        if str(package.parent) not in sys.path:
            sys.path.insert(0, str(package.parent))
            importlib.invalidate_caches()
        name = package.name.removeprefix(PACKAGE_PREFIX)
        if name in self._instances:
            return self._instances[name]
        return self._activate(name, f"{package.name}.hardware")

    def _activate(self, name: str, where: str) -> Hardware:
        instance = _hardware_class(name, where)()
        for other_name, other in self._instances.items():
            if other.device_type == instance.device_type:
                raise UnsupportedError(
                    f"hardware {name!r} and {other_name!r} both run device type {instance.device_type!r}; "
                    "one process uses one of them"
                )
        self._instances[name] = instance
        return instance


@functools.cache
def _process_registry() -> Registry:
    return Registry()


def hardware(name: str) -> Hardware:
    """The process's instance of hardware package `name`; UnsupportedError lists what is installed."""
    return _process_registry().hardware(name)


def load_hardware_from(folder: Path) -> Hardware:
    """As `hardware`, for a package that lies at `folder` and is not installed."""
    return _process_registry().load_hardware_from(folder)


def hardware_names() -> tuple[str, ...]:
    """All hardware packages that can be imported, sorted; none of them is imported."""
    return tuple(sorted(hardware_modules()))


def hardware_modules() -> dict[str, str]:
    """Hardware name -> `module` or `module:attribute`; UnsupportedError if two packages claim one name."""
    found: dict[str, str] = {}
    for entry in metadata.entry_points(group=HARDWARE_GROUP):
        _claim(found, entry.name, entry.value)
    for module in pkgutil.iter_modules():
        if module.ispkg and module.name.startswith(PACKAGE_PREFIX) and _has_module(module.name, "hardware"):
            _claim(found, module.name.removeprefix(PACKAGE_PREFIX), f"{module.name}.hardware")
    return found


def model_families(port: Path | None = None) -> tuple[ModelFamily, ...]:
    """All model families that are installed and the one at `port`, sorted by name.

    Raises:
        UnsupportedError: two families claim one architecture, the head that drafts for it, or drafts of its name.
        PortError: as `trunnion.ports.load_port`.
    """
    packages = {entry.value.partition(":")[0] for entry in metadata.entry_points(group=MODELS_GROUP)}
    if util.find_spec(MODELS_PACKAGE) is not None:
        packages.add(MODELS_PACKAGE)
    families = [family for package in sorted(packages) for family in _families_of(package)]
    if port is not None:
        families.append(load_port(port))
    owners: dict[str, str] = {}
    for family in families:
        for claim in _claims(family):
            if claim in owners:
                raise UnsupportedError(f"{claim} is claimed by {owners[claim]} and {family.origin}")
            owners[claim] = family.origin
    return tuple(sorted(families, key=lambda family: family.name))


def _claims(family: ModelFamily) -> Sequence[str]:
    """What no other family may run."""
    return (
        *(f"architecture {name!r}" for name in {*family.architectures, *family.pooling_architectures}),
        *(f"the draft head of architecture {name!r}" for name in family.drafts),
        *(f"draft architecture {name!r}" for name in family.draft_architectures),
    )


def model_class(config: Mapping[str, Any], *, pooling: bool = False, port: Path | None = None) -> type[Model]:
    """The class that runs a `config.json`, by its `architectures`; only this family's code is imported.

    `pooling`: the checkpoint says how it pools (`trunnion.pooling.read_pooling`), so a pooling model is wanted.

    Raises:
        UnknownArchitectureError: no family has the architecture in this role; the text lists those that exist.
        UnsupportedError: two families claim one, or it is a draft that goes by a decoder's name.
        ConfigError: the config names no architecture.
        PortError: the port at `port` cannot be used.
    """
    return find_model(config, pooling=pooling, port=port)[1]


def find_model(
    config: Mapping[str, Any], *, pooling: bool = False, port: Path | None = None
) -> tuple[ModelFamily, type[Model]]:
    """As `model_class`, and the family whose class it is."""
    name, model_type = architecture(config), config.get("model_type")
    families = model_families(port)
    for family in families:
        known = family.pooling_architectures if pooling else family.architectures
        if name in known:
            if is_own_draft(config, port=port):
                raise UnsupportedError(
                    f"this {name!r} is a draft with a checkpoint of its own: name it as the draft of its target"
                )
            return family, family.load(known[name])
    raise UnknownArchitectureError(_unknown_architecture(name, model_type, families, pooling=pooling))


def max_positions(config: Mapping[str, Any], *, port: Path | None = None) -> int | None:
    """Longest sequence that a `config.json` is made for, as its family reads it; None if it does not say.

    Raises:
        ConfigError: the family cannot read it.
        PortError: the port at `port` cannot be used.
    """
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    for family in model_families(port):
        if family.max_positions is not None and isinstance(name, str) and family.runs(name):
            found: int | None = family.load(family.max_positions)(config)
            return found
    return hf_config.max_positions(config)


def takes_images(config: Mapping[str, Any], *, port: Path | None = None) -> bool:
    """Whether the model that runs a `config.json` is a `MultiModal`: some run the text beside a vision tower alone.

    Raises:
        UnsupportedError, ConfigError, PortError: as `model_class`.
    """
    # Methods of a class that is not made yet, so that its protocol cannot be asked for.
    return hasattr(model_class(config, port=port), "encode")


def draft_class(config: Mapping[str, Any], *, port: Path | None = None) -> type[DraftModel]:
    """The class of the head that drafts for the decoder of a `config.json`; only this family's code is imported.

    Raises:
        UnsupportedError: no family has a head for the architecture; the text lists those that have one.
        ConfigError: the config names no architecture.
        PortError: the port at `port` cannot be used.
    """
    name = architecture(config)
    families = model_families(port)
    for family in families:
        if name in family.drafts:
            found: type[DraftModel] = family.load(family.drafts[name])
            return found
    known = ", ".join(sorted({name for family in families for name in family.drafts})) or "none"
    raise UnsupportedError(
        f"there is no draft head for architecture {name!r}; supported: {known}, or name a draft_model"
    )


def is_own_draft(config: Mapping[str, Any], *, port: Path | None = None) -> bool:
    """Whether a `config.json` is of a draft with a checkpoint of its own, even if it goes by a decoder's name."""
    name, families = architecture(config), model_families(port)
    is_decoder = any(name in family.architectures for family in families)
    return any(
        name in family.draft_architectures and (not is_decoder or family.draft_field in config) for family in families
    )


def own_draft_class(config: Mapping[str, Any], *, port: Path | None = None) -> type[AuxDraftModel]:
    """The class of a draft that has its own checkpoint, by its `config.json`; only this family's code is imported.

    Raises:
        UnsupportedError: no family runs such drafts; the text lists those that are run.
        ConfigError: the config names no architecture.
        PortError: the port at `port` cannot be used.
    """
    return find_own_draft(config, port=port)[1]


def find_own_draft(config: Mapping[str, Any], *, port: Path | None = None) -> tuple[ModelFamily, type[AuxDraftModel]]:
    """As `own_draft_class`, and the family whose class it is."""
    name = architecture(config)
    families = model_families(port)
    for family in families:
        if name in family.draft_architectures:
            return family, family.load(family.draft_architectures[name])
    known = ", ".join(sorted({name for family in families for name in family.draft_architectures})) or "none"
    raise UnsupportedError(f"unknown architecture {name!r} of a draft with a checkpoint of its own; supported: {known}")


def architecture(config: Mapping[str, Any]) -> str:
    """The class name that a `config.json` gives first; ConfigError if it gives none."""
    names, model_type = config.get("architectures"), config.get("model_type")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"config.json names no architecture (architectures {names!r}, model_type {model_type!r})")
    return str(names[0])


def _unknown_architecture(name: str, model_type: Any, families: Sequence[ModelFamily], *, pooling: bool) -> str:
    pools = {name for family in families for name in family.pooling_architectures}
    known = pools if pooling else {name for family in families for name in family.architectures}
    supported = ", ".join(sorted(known)) or "none"
    if name in pools and not pooling:
        return (
            f"architecture {name!r} has no language-model head, and there is no {MODULES_FILE} that says how to pool; "
            f"supported: {supported}"
        )
    role = f" of a pooling model ({MODULES_FILE})" if pooling else ""
    return f"unknown architecture {name!r}{role} (model_type {model_type!r}); supported: {supported}"


def _families_of(package: str) -> list[ModelFamily]:
    parent = importlib.import_module(package)
    families = []
    for module in pkgutil.iter_modules(parent.__path__):
        if module.ispkg:
            family = family_of(module.name, importlib.import_module(f"{package}.{module.name}"))
            if family is not None:
                families.append(family)
    return families


def _claim(found: dict[str, str], name: str, where: str) -> None:
    """Note `where` for `name`; an installed package is seen twice, by entry point and by folder."""
    known = found.setdefault(name, where)
    if known.partition(":")[0].partition(".")[0] != where.partition(":")[0].partition(".")[0]:
        raise UnsupportedError(f"hardware {name!r} is claimed by two packages: {known} and {where}")


def _has_module(package: str, module: str) -> bool:
    """Whether top-level `package` holds `module`, without importing it."""
    spec = util.find_spec(package)
    places = (spec.submodule_search_locations or []) if spec is not None else []
    return any((Path(place) / f"{module}.py").is_file() for place in places)


def _packages_in(folder: Path) -> list[Path]:
    return sorted(file.parent for file in folder.glob(f"{PACKAGE_PREFIX}*/hardware.py"))


def _hardware_class(name: str, where: str) -> type[Hardware]:
    module, _, attribute = where.partition(":")
    found = getattr(importlib.import_module(module), attribute or "HARDWARE", None)
    if not (isinstance(found, type) and issubclass(found, Hardware)):
        raise UnsupportedError(f"hardware {name!r}: {module} has no Hardware class named {attribute or 'HARDWARE'}")
    return found
