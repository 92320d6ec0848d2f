"""Makes a port's folder from a checkpoint, and says what is left to do, by the report of `trunnion check`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from trunnion import registry
from trunnion.checkup.checkup import CheckOptions, check_checkpoint
from trunnion.checkup.facts import CheckReport
from trunnion.errors import ConfigError, PortError, UnsupportedError
from trunnion.hf_config import read_config
from trunnion.interfaces.hardware import Hardware
from trunnion.porting.choices import Choices, choose
from trunnion.porting.scaffold import class_of, render, towers
from trunnion.porting.structure import read_structure
from trunnion.weights.report import first_names
from trunnion.weights.safetensors_source import SafetensorsSource, read_index


@dataclass(frozen=True, kw_only=True)
class NewPort:
    """A folder that was written, what was guessed, and what the checkpoint's account says of it."""

    folder: Path
    choices: Choices
    report: CheckReport


def new_port(family: str, checkpoint: Path, folder: Path, hardware: Hardware) -> NewPort:
    """Write the port of `family` to `folder`, which must not be there, and check `checkpoint` with it.

    Raises:
        PortError: the name or the folder will not do.
        UnsupportedError: the architecture has a port, or no list of layers is found.
        ConfigError, WeightsError: the checkpoint cannot be read.
    """
    if not re.fullmatch(r"[a-z_][a-z0-9_]*", family):
        raise PortError(f"family {family!r} is no name of a Python package: lower-case letters, digits and _")
    if folder.exists():
        raise PortError(f"port {folder}: there is something already; name another folder with --out")
    config = read_config(checkpoint)
    name = registry.architecture(config)
    for known in registry.model_families():
        if name in known.architectures or name in known.pooling_architectures:
            raise UnsupportedError(f"architecture {name!r} has a port already: family {known.name} ({known.origin})")
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ConfigError(f"config.json: architecture {name!r} is no name of a class")
    choices = choose(family, config, read_structure(_shapes(checkpoint)))
    files = render(choices)
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    report = check_checkpoint(checkpoint, CheckOptions(hardware=hardware, port=folder))
    return NewPort(folder=folder, choices=choices, report=report)


def _shapes(checkpoint: Path) -> dict[str, tuple[int, ...]]:
    """By tensor; of an index whose shards are not there all are ()."""
    index = read_index(checkpoint)
    if index is not None and not any((checkpoint / file).is_file() for file in index.values()):
        return dict.fromkeys(index, ())
    return {name: info.shape for name, info in SafetensorsSource(checkpoint).infos.items()}


def left_to_do(made: NewPort) -> list[str]:
    """What a porter should look at, one line each."""
    choices = made.choices
    lines = [
        f"to write in model.py, {class_of(choices, part)}: {first_names(names)}"
        for part, names in choices.unwritten.items()
    ]
    lines += [f"guessed: {doubt}" for doubt in choices.doubts]
    beside = towers(choices.structure.unknown)
    if beside:
        lines.append(f"left out: what lies in {', '.join(beside)}")
    lines += [f"config.json has {name} {value!r}, which nothing reads" for name, value in choices.unread.items()]
    return lines
