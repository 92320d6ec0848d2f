"""The serving policy of one signature: how requests become batches."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from trunnion_bundle.errors import BundleError
from trunnion_bundle.fields import LARGEST, Fields, as_integer, ascending

MODES = ("merge", "alone")
PADDINGS = ("pad_up", "batch_down", "least_cost")
OVERSIZE = ("split", "refuse")
MOST_SIZES = 64
MOST_LEVELS = 16
MOST_RUNNERS = 64
LONGEST_DELAY_US = 10_000_000
LONGEST_TIMEOUT_US = 3_600_000_000


@dataclass(frozen=True, kw_only=True)
class Batching:
    """The keys of `batching` in docs/format.md, with the defaults of `save`. Times are microseconds."""

    mode: str = "merge"
    allowed_sizes: tuple[int, ...] = (1, 8, 32, 128)
    padding: str = "least_cost"
    max_delay_us: int = 0
    max_queue_rows: int = 4096
    queue_timeout_us: int | None = None
    oversize: str = "split"
    bypass_rows: int | None = None
    priority_levels: int = 1
    default_priority: int = 1
    runners: int = 1

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "allowed_sizes": list(self.allowed_sizes)}


KEYS = tuple(field.name for field in fields(Batching))


def read_batching(value: Any, where: str, largest_batch: int | None) -> Batching:
    """A policy for a module that takes up to `largest_batch` rows; None: it has no batch axis.

    Raises:
        BundleError: a key is unknown, missing or outside of its limits.
    """
    read = Fields(value, where)
    limit = largest_batch or 1
    count = (1, MOST_SIZES) if largest_batch else (0, 0)
    sizes = read.array("allowed_sizes", lambda size, at: as_integer(size, at, 1, limit), *count)
    last = ascending(sizes, read.place("allowed_sizes"))[-1] if sizes else 1
    levels = read.integer("priority_levels", 1, MOST_LEVELS)
    found = Batching(
        mode=read.choice("mode", MODES if largest_batch else ("alone",)),
        allowed_sizes=sizes,
        padding=read.choice("padding", PADDINGS),
        max_delay_us=read.integer("max_delay_us", 0, LONGEST_DELAY_US),
        max_queue_rows=read.integer("max_queue_rows", last, LARGEST),
        queue_timeout_us=read.optional("queue_timeout_us", lambda us, at: as_integer(us, at, 1, LONGEST_TIMEOUT_US)),
        oversize=read.choice("oversize", OVERSIZE),
        bypass_rows=read.optional("bypass_rows", lambda rows, at: as_integer(rows, at, 1, last)),
        priority_levels=levels,
        default_priority=read.integer("default_priority", 1, levels),
        runners=read.integer("runners", 1, MOST_RUNNERS),
    )
    read.close()
    return found


def changed(policy: Batching, changes: dict[str, Any], where: str, largest_batch: int | None) -> Batching:
    """`policy` with some keys replaced, checked as one that is read."""
    if unknown := sorted(set(changes) - set(KEYS)):
        raise BundleError(f"{where}: unknown {', '.join(map(repr, unknown))}; choices: {', '.join(KEYS)}")
    return read_batching({**policy.to_json(), **changes}, where, largest_batch)
