"""Chooses among a kernel's few configurations: measured while warming up, remembered in a file, never in a capture."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Key = tuple[int | str, ...]
Run = Callable[["Config"], Any]


@dataclass(frozen=True)
class Config:
    """Block sizes by the kernel's own names, and what the compiler is told."""

    blocks: Mapping[str, int] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 2

    def __getitem__(self, name: str) -> int:
        return self.blocks[name]

    @property
    def options(self) -> dict[str, int]:
        """Keywords of a launch."""
        return {"num_warps": self.num_warps, "num_stages": self.num_stages}


@dataclass(frozen=True)
class Space:
    """All configurations that one kernel may run with; the first that `fits` is the one it starts with.

    Launching a kernel of a space several times over must give what one launch gives: tuning does so.
    """

    name: str
    configs: tuple[Config, ...]

    def fitting(self, fits: Callable[[Config], bool] | None = None) -> tuple[Config, ...]:
        """The configurations that can run a call."""
        found = tuple(config for config in self.configs if fits is None or fits(config))
        assert found, f"no configuration of {self.name} fits"
        return found


class Tuner:
    """Which configuration each kernel uses for each kind of call on this process's device.

    A call outside `tuning` never measures: it takes what was chosen, or the space's first. So nothing is tuned inside a
    capture unless someone opens `tuning` there, which raises.
    """

    def __init__(self) -> None:
        self._chosen: dict[tuple[str, Key], int] = {}
        self._measure: Callable[[Callable[[], Any]], float] | None = None

    def run(self, space: Space, key: Key, run: Run, fits: Callable[[Config], bool] | None = None) -> Any:
        """`run(config)` with the configuration for `key`, which names all that the choice may depend on."""
        configs = space.fitting(fits)
        index = self._chosen.get((space.name, key))
        if index is None and self._measure is not None and len(configs) > 1:
            index = space.configs.index(self._fastest(configs, run))
            self._chosen[space.name, key] = index
        # Keys may stand for calls that not all fit what one of them chose.
        is_chosen = index is not None and index < len(space.configs) and space.configs[index] in configs
        return run(space.configs[index] if is_chosen else configs[0])

    @contextmanager
    def tuning(self, measure: Callable[[Callable[[], Any]], float], *, capturing: bool) -> Iterator[None]:
        """Within this context calls that have no choice yet measure one: `measure(call)` -> its time in seconds.

        Raises:
            ValueError: the stream is capturing.
        """
        if capturing:
            raise ValueError("kernels cannot be tuned while the stream is capturing: tune before the first graph")
        self._measure = measure
        try:
            yield
        finally:
            self._measure = None

    def _fastest(self, configs: tuple[Config, ...], run: Run) -> Config:
        assert self._measure is not None, "only called while tuning"
        times = [self._measure(lambda config=config: run(config)) for config in configs]
        return configs[times.index(min(times))]

    def choices(self) -> Mapping[str, int]:
        """`kernel|key` -> index among the space's configurations."""
        return {_label(name, key): index for (name, key), index in sorted(self._chosen.items(), key=repr)}

    def save(self, path: Path, device: str) -> None:
        """Write the choices made on `device`, whose name should say the compiler's and this package's versions."""
        path.parent.mkdir(parents=True, exist_ok=True)
        entries = [[name, list(key), index] for (name, key), index in sorted(self._chosen.items(), key=repr)]
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({"device": device, "choices": entries}, indent=1))
        partial.replace(path)

    def load(self, path: Path, device: str) -> bool:
        """Take the choices of `path`; False if there are none, or they were made on something else."""
        if not path.is_file():
            return False
        content = json.loads(path.read_text())
        if content["device"] != device:
            return False
        self._chosen.update({(name, tuple(key)): index for name, key, index in content["choices"]})
        return True

    def clear(self) -> None:
        """Forget all choices."""
        self._chosen.clear()


def _label(name: str, key: Key) -> str:
    return f"{name}|{','.join(map(str, key))}"


TUNER = Tuner()
"""The one tuner of a process, which has one device."""


def size_class(n: int) -> int:
    """Numbers of tokens that share a choice: the power of two at or above, at most 4096."""
    return min(1 << max(n - 1, 0).bit_length(), 4096)
