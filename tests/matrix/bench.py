"""One card on one hardware package in one dtype: the executor, its host double, and the two measures of error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tests.conformance.batches import block_size_for

from trunnion import registry
from trunnion.config import ExecutorConfig
from trunnion.contract import Limits
from trunnion.interfaces.runner import Mode
from trunnion.runner.model_executor import ModelExecutor
from trunnion_models.card import ROUNDED_TOLERANCE, Card

from .draft_double import FollowedHost, make_pair
from .hf_reference import Reference
from .host_double import HostDouble, Request

SEQUENCES_AT_ONCE = 4
"""As many requests as any mode keeps alive at full length."""


@dataclass
class Bench:
    """What a mode works with; `rows` collects every logits row that the mode produced."""

    card: Card
    reference: Reference
    host: HostDouble
    executor: ModelExecutor
    """The one whose rows are compared."""
    block_size: int
    """The card's, or the next one that the package takes."""

    def sequence(self, index: int) -> list[int]:
        """The tokens of the card's sequence `index`."""
        return self.reference.sequences[index][: self.card.seq_lens[index]]

    def add(self, index: int, length: int | None = None) -> Request:
        """The card's sequence `index`, or its first `length` tokens, as a new request."""
        tokens, positions = self.sequence(index)[:length], self.reference.positions
        if positions is not None:
            return self.host.add(tokens, positions[index], self.reference.images[index])
        types = self.card.token_types(index, len(tokens))
        return self.host.add(tokens) if types is None else self.host.add(tokens, token_types=types)

    def close(self) -> None:
        self.executor.close()
        if self.host.executor is not self.executor:
            self.host.executor.close()


def load_bench(
    card: Card,
    hardware: str,
    dtype: str,
    reference: Reference,
    *,
    execution: Mode | None = None,
    max_num_tokens: int | None = None,
    **parallel: Any,
) -> Bench:
    """Load the reference's checkpoint through an executor; `parallel` are the `tp_` fields of ExecutorConfig.

    With an `execution` the package goes no further than that. Steps have room for all sequences of the card, or for
    `max_num_tokens`.
    """
    package = registry.hardware(hardware)
    block_size = block_size_for(package, card.block_size)
    largest_step = max_num_tokens or sum(card.seq_lens)
    limits = Limits(
        max_num_tokens=largest_step,
        max_num_seqs=SEQUENCES_AT_ONCE,
        max_model_len=card.max_model_len,
        max_logits_rows=largest_step,
        block_size=block_size,
        max_encoder_rows=encoder_rows(card, SEQUENCES_AT_ONCE),
    )
    package = package if execution is None else package.limited_to(execution)
    num_blocks = 1 + SEQUENCES_AT_ONCE * -(-card.max_model_len // block_size)
    # Nobody runs these shapes again: timing kernels for them would take longer than running them.
    options = {"dtype": dtype, "tuning_seconds": 0.0, **parallel}
    if card.draft:
        options["draft_model"] = reference.draft_folder
        target, draft = make_pair(reference.folder, hardware, package, limits, **options)
        host = FollowedHost(target, draft, num_blocks, reference.sequences, reference.token_ids)
        return Bench(card, reference, host, draft, block_size)
    executor = ModelExecutor.create(
        ExecutorConfig(
            model=reference.folder,
            hardware=hardware,
            limits=limits,
            kv_cache_dtype=card.kv_cache_dtype,
            **options,
        ),
        package,
    )
    return Bench(card, reference, HostDouble(executor, num_blocks, executor.device), executor, block_size)


def encoder_rows(card: Card, num_seqs: int) -> int:
    """Rows of a pool in which `num_seqs` requests find room, however it is used up; 0 without images."""
    merged = card.config.get("vision_config", {}).get("spatial_merge_size", 1) ** 2
    largest = max((image.grid[0] * image.grid[1] * image.grid[2] // merged for image in card.images), default=0)
    return 2 * num_seqs * len(card.images) * largest


class Comparison:
    """Collects rows of logits beside the reference's, and judges them together."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.errors: list[torch.Tensor] = []
        self.own_errors: list[torch.Tensor] = []
        self.places: list[tuple[int, int]] = []

    def add(self, sequence: int, first: int, rows: torch.Tensor) -> None:
        """`rows` [n, vocab_size] are the logits of positions `first ...` of `sequence`."""
        for offset, row in enumerate(rows):
            self.add_row(sequence, first + offset, row)

    def add_row(self, sequence: int, position: int, row: torch.Tensor) -> None:
        """`row` [vocab_size] are the logits of one position of `sequence`."""
        reference = self.bench.reference
        expected = reference.logits[sequence, position]
        assert row.shape == expected.shape, f"a row of {tuple(row.shape)}, expected {tuple(expected.shape)}"
        self.errors.append(row - expected)
        self.places.append((sequence, position))
        if reference.own_error is not None:
            self.own_errors.append(reference.own_error[sequence, position])

    def check(self) -> None:
        """Hold the rows against the card's tolerance: the largest error in float32, the RMS of all in bfloat16."""
        card, reference = self.bench.card, self.bench.reference
        errors = torch.stack(self.errors)
        assert errors.isfinite().all(), (
            f"{card.name}: NaN or infinity at {self._worst(errors.isfinite().logical_not())}"
        )
        if reference.own_error is None:
            rows = errors.abs().amax(-1) / reference.logits.abs().max()
            relative, allowed = float(rows.max()), card.fp32_tolerance
            if card.rounds:
                median, allowed = float(rows.median()), ROUNDED_TOLERANCE
                assert median <= card.fp32_tolerance, (
                    f"{card.name}: half of the rows are off by {median:.2e} of the largest logit or more, "
                    f"allowed {card.fp32_tolerance:.0e}"
                )
            assert relative <= allowed, (
                f"{card.name}: error {relative:.2e} of the largest logit at {self._worst(errors.abs())}, "
                f"allowed {allowed:.0e}"
            )
            return
        rms, own = errors.square().mean().sqrt(), torch.stack(self.own_errors).square().mean().sqrt()
        ratio = float(rms / own)
        assert ratio <= card.bf16_ratio, (
            f"{card.name}: error {float(rms):.3e} is {ratio:.2f} times the reference implementation's own, "
            f"worst at {self._worst(errors.abs())}, allowed {card.bf16_ratio}"
        )

    def _worst(self, badness: torch.Tensor) -> str:
        sequence, position = self.places[int(badness.float().amax(-1).argmax())]
        return f"sequence {sequence} position {position}"
