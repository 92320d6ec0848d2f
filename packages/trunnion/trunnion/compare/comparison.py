"""What two recordings differ by, and which module is to blame: it was given the same, and made something else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from trunnion.compare.recording import Call

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.03}
"""Root mean square of the difference from which two outputs count as different, in units of the output's own."""

LOOK_AT = (
    (r"norm", "eps, an offset of 1, a bias, over what it norms"),
    (
        r"attn|attention",
        "the rope (base, which pairs, how much of a head), the scale, norms of q and k, windows, biases",
    ),
    (r"mlp|feed_forward|ffn|moe|expert", "the activation, which half is the gate, weights of chosen experts, biases"),
    (r"layers\.\d+$", "residuals: where they are added, and whether scaled"),
    (r"embed", "a scale of embeddings, positions that are added"),
    (r"lm_head|logits", "a scale or a cap of logits, whether the head is tied"),
)
"""What is usually wrong, by what the module is called."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One module that both sides have, with outputs of one shape."""

    module: str
    largest: float
    """Largest difference of a value."""
    relative: float
    """Root mean square of the difference over that of the other side's output."""
    cosine: float
    given: float
    """`relative` of what went in; NaN where that cannot be told."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All modules in the order in which the other side's ended."""

    rows: tuple[Row, ...]
    tolerance: float

    @property
    def logits(self) -> Row:
        """The last row."""
        return self.rows[-1]

    @property
    def verdict(self) -> str:
        """In words."""
        first = self.first_different
        if first is None:
            return f"no difference: logits are off by {self.logits.relative:.1e}, allowed {self.tolerance:.0e}"
        return f"first difference: {first.module}, off by {first.relative:.1e}, allowed {self.tolerance:.0e}"

    @property
    def look_at(self) -> str | None:
        """What is usually wrong with such a module; None if nothing differs, or nothing is known of it."""
        first = self.first_different
        return None if first is None else next((what for name, what in LOOK_AT if re.search(name, first.module)), None)

    @property
    def first_different(self) -> Row | None:
        """The first that was given the same and made something else; else the first that made something else.

        None if the logits agree: what differs before them is a matter of where a scale or a residual is applied.
        """
        if self.logits.relative <= self.tolerance:
            return None
        different = [row for row in self.rows if not row.relative <= self.tolerance]
        guilty = (row for row in different if row.given <= self.tolerance)
        return next(guilty, different[0] if different else None)


def compare(here: Mapping[str, Call], there: Mapping[str, Call], dtype: torch.dtype) -> Comparison:
    """Rows of the modules that both recordings have."""
    rows = []
    for name, wanted in there.items():
        found = here.get(name)
        if found is None or found.made.shape != wanted.made.shape or _are_given_others(found, wanted):
            continue
        rows.append(
            Row(
                module=name,
                largest=float((found.made - wanted.made).abs().max()),
                relative=_relative(found.made, wanted.made),
                cosine=float(torch.cosine_similarity(found.made.flatten(), wanted.made.flatten(), dim=0)),
                given=_relative(found.given, wanted.given),
            )
        )
    return Comparison(rows=tuple(rows), tolerance=TOLERANCE[dtype])


def _are_given_others(found: Call, wanted: Call) -> bool:
    """Whether modules of one name do different things: an activation that also multiplies."""
    return found.given is not None and wanted.given is not None and found.given.shape != wanted.given.shape


def _relative(found: torch.Tensor | None, wanted: torch.Tensor | None) -> float:
    """NaN where one side has no such rows, or rows of another shape."""
    if found is None or wanted is None or found.shape != wanted.shape:
        return float("nan")
    return float((found - wanted).square().mean().sqrt() / wanted.square().mean().sqrt().clamp(min=1e-12))
