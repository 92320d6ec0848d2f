"""Every family through the C++ host: log-probabilities, or embeddings, are those of transformers on the same weights.

Tokens are sampled hot, so that sequences wander; what is compared are the raw logits behind every token.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from tests.conformance.batches import block_size_for

from trunnion import registry
from trunnion.config import DTYPES
from trunnion_host.serving import HostConfig, Image, SamplingParams, ServingHost, Stats
from trunnion_models.card import ROUNDED_TOLERANCE, Card

from .bench import encoder_rows
from .cases import Case
from .hf_images import ReferenceImage, run_row
from .hf_reference import Reference, build_reference, load_reference, logits_of
from .routers import near_ties

NUM_TOKENS = 14
NUM_LOGPROBS = 20
TEMPERATURE = 8.0
MOST_ATTEMPTS = 10
"""To have prompts meet in a pool that is too small for them."""


@dataclass(frozen=True)
class Prompt:
    """Tokens with their images, which lie at positions of their own."""

    tokens: list[int]
    images: tuple[ReferenceImage, ...] = ()
    positions: list[list[int]] | None = None
    """[tokens, 3]; None where a token lies at its index."""

    def __len__(self) -> int:
        return len(self.tokens)

    def submit(self, host: ServingHost, sampling: SamplingParams) -> int:
        delta = 0 if self.positions is None else max(self.positions[-1]) + 1 - len(self)
        images = [
            Image(pixels=of.pixels.numpy(), grid=of.grid, first_token=of.first_token, num_tokens=of.num_tokens)
            for of in self.images
        ]
        return host.submit(self.tokens, sampling, images=images, positions=self.positions, position_delta=delta)


@dataclass
class Served:
    """Sequences as the host made them: the prompt, what was sampled, and the log-probabilities reported with it."""

    prompts: list[Prompt] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    top: list[torch.Tensor] = field(default_factory=list)
    """Per sequence [tokens, vocab_size]: log-probabilities where they were reported, NaN elsewhere."""


def _prompts(card: Card, reference: Reference) -> list[Prompt]:
    """Longer and shorter than windows, blocks and chunks; the last one begins as the first does."""
    room = card.max_model_len - NUM_TOKENS
    first, second, third = (_cut(reference, row, min(length, room)) for row, length in ((0, 33), (1, 1), (2, 18)))
    begin = _cut(reference, 0, min(21, room))
    rest = reference.sequences[1][1 : 1 + min(4, room - len(begin))]
    positions = begin.positions
    if positions is not None:
        following = max(positions[-1]) + 1
        positions = [*positions, *([following + index] * 3 for index in range(len(rest)))]
    return [first, second, third, Prompt([*begin.tokens, *rest], begin.images, positions)]


def _cut(reference: Reference, row: int, length: int) -> Prompt:
    """The beginning of a sequence, whole images only."""
    images = reference.images[row] if reference.images else ()
    assert all(image.end <= length or image.first_token >= length for image in images), "an image would be cut"
    positions = None if reference.positions is None else reference.positions[row][:length].tolist()
    kept = tuple(image for image in images if image.end <= length)
    return Prompt(reference.sequences[row][:length], kept, positions)


def _never_sampled(card: Card) -> tuple[int, ...]:
    """Tokens that stand for images: sampled, they would ask the reference for an image that is not there."""
    return tuple(value for name, value in card.config.items() if card.images and name.endswith("_token_id"))


def _open(case: Case, reference: Reference, **options: object) -> ServingHost:
    card = case.card
    settings: dict[str, object] = {"max_num_seqs": 4, "watchdog_s": 120.0, "exit_on_fatal": False, **options}
    settings["max_encoder_rows"] = encoder_rows(card, 4)
    return ServingHost(
        HostConfig(
            model=str(reference.folder),
            hardware=case.hardware,
            dtype=case.dtype,
            kv_cache_dtype=card.kv_cache_dtype,
            max_model_len=card.max_model_len,
            block_size=block_size_for(registry.hardware(case.hardware), card.block_size),
            **settings,  # type: ignore[arg-type]
        )
    )


def _serve(host: ServingHost, card: Card, prompts: list[Prompt], vocab_size: int, served: Served, *, seed: int) -> None:
    """All prompts at once, added to `served`."""
    # Before min_tokens no stop token is sampled.
    settings = {"max_tokens": NUM_TOKENS, "min_tokens": NUM_TOKENS, "stop_ids": _never_sampled(card)}
    sampling = [
        SamplingParams(temperature=TEMPERATURE, seed=seed + i, num_logprobs=NUM_LOGPROBS, **settings)
        for i in range(len(prompts))
    ]
    order = [prompt.submit(host, params) for prompt, params in zip(prompts, sampling, strict=True)]
    for prompt, request in zip(prompts, order, strict=True):
        *events, last = host.stream(request)
        assert (last.reason, len(events)) == ("length", NUM_TOKENS), last
        top = torch.full((NUM_TOKENS, vocab_size), torch.nan)
        for row, event in zip(top, events, strict=True):
            row[[token for token, _ in event.top_logprobs]] = torch.tensor([value for _, value in event.top_logprobs])
        served.prompts.append(prompt)
        served.tokens.append([event.token_id for event in events])
        served.top.append(top)


@torch.inference_mode()
def _truth(case: Case, reference: Reference, served: Served, dtype: torch.dtype) -> torch.Tensor:
    """[sequences, NUM_TOKENS, vocab_size]: what transformers says at the same places, computed in `dtype`."""
    model = load_reference(reference.folder, dtype)
    ids = _ids(case, served)
    if case.card.images:
        rows = [run_row(model, row, prompt.images) for row, prompt in zip(ids, served.prompts, strict=True)]
        logits = torch.stack(rows).float()
    else:
        logits = logits_of(model, ids, case.card)
    return _reported(logits, served)


def _ids(case: Case, served: Served) -> torch.Tensor:
    """[sequences, max_model_len]: at full length, for ropes that look at it; nothing sees what comes after."""
    ids = torch.zeros(len(served.prompts), case.card.max_model_len, dtype=torch.int64)
    for row, prompt, tokens in zip(ids, served.prompts, served.tokens, strict=True):
        row[: len(prompt) + len(tokens)] = torch.tensor(prompt.tokens + tokens)
    return ids


def _reported(rows: torch.Tensor, served: Served) -> torch.Tensor:
    """[sequences, NUM_TOKENS, ...] of [sequences, max_model_len, ...]: where tokens were sampled."""
    firsts = [len(prompt) - 1 for prompt in served.prompts]
    return torch.stack([row[first : first + NUM_TOKENS] for row, first in zip(rows, firsts, strict=True)])


def _is_decided(case: Case, reference: Reference, served: Served) -> torch.Tensor:
    """[sequences, NUM_TOKENS, 1] bool: rows whose experts are not for rounding to choose; which they are is luck."""
    models = (load_reference(reference.folder, dtype) for dtype in (torch.float32, DTYPES[case.dtype]))
    decided = ~_reported(near_ties(*models, _ids(case, served)), served)
    assert decided.float().mean() > 0.2, f"in {int(decided.sum())} of {decided.numel()} rows rounding does not choose"
    return decided.unsqueeze(-1)


def _check(case: Case, reference: Reference, served: Served) -> None:
    """As `Comparison.check`: the largest error in float32, the RMS in bfloat16."""
    logits = _truth(case, reference, served, torch.float32)
    reported = torch.stack(served.top)
    seen = reported.isfinite()
    assert seen.sum(-1).eq(NUM_LOGPROBS).all(), "a reported log-probability is NaN or infinite"
    error = (reported - logits.log_softmax(-1))[seen]
    if case.dtype == "float32":
        rows = (reported - logits.log_softmax(-1)).nan_to_num(0.0).abs().amax(-1) / logits.abs().max()
        best = reported.nan_to_num(-torch.inf).argmax(-1, keepdim=True)
        behind = (logits.amax(-1) - logits.gather(-1, best)[..., 0]) / logits.abs().max()
        allowed = case.card.fp32_tolerance
        if case.card.rounds:
            assert float(rows.median()) <= 2 * allowed, (
                f"half of the rows are off by {float(rows.median()):.1e} or more"
            )
            allowed = ROUNDED_TOLERANCE
        assert float(rows.max()) <= 2 * allowed, f"error {float(rows.max()):.1e} of the largest logit"
        assert float(behind.max()) <= allowed, "the best token is another one"
        return
    own = (_truth(case, reference, served, DTYPES[case.dtype]).log_softmax(-1) - logits.log_softmax(-1))[seen]
    is_decided = _is_decided(case, reference, served).expand_as(seen)[seen]
    error, own = (values[is_decided] for values in (error, own))
    ratio = float(error.square().mean().sqrt() / own.square().mean().sqrt())
    assert ratio <= case.card.bf16_ratio, f"error {ratio:.2f} times the reference implementation's own"


def _check_counts(stats: Stats) -> None:
    assert stats.steps == stats.execute_calls == stats.step_gil_entries
    assert (stats.refused_steps, stats.failed_steps, stats.blocks_used) == (0, 0, 0)


def test_served_logprobs_equal_the_reference(served_case: Case, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Chunks with prefix hits, then whole prompts in a pool that is too small for all of them."""
    case, card = served_case, served_case.card
    reference = build_reference(card, DTYPES[case.dtype], tmp_path_factory.mktemp(card.name))
    prompts, vocab_size, served = _prompts(card, reference), reference.logits.shape[-1], Served()
    with _open(case, reference, max_num_tokens=10) as host:
        _serve(host, card, prompts, vocab_size, served, seed=1)
        _serve(host, card, prompts, vocab_size, served, seed=11)
        stats = host.stats()
    _check_counts(stats)
    assert bool(stats.prefix_hit_tokens) == stats.prefix_caching
    assert stats.prefix_caching or "recurrent" in stats.prefix_caching_off_reason
    longest = max(map(len, prompts)) + NUM_TOKENS
    size = block_size_for(registry.hardware(case.hardware), card.block_size)
    kv_blocks = 2 + -(-longest // size)
    # Windows give blocks back as they move on, and states are counted by requests: only these run out, if anybody
    # takes a block after those of its prompt.
    grows = any(-(-len(prompt) // size) < -(-(len(prompt) + NUM_TOKENS) // size) for prompt in prompts)
    with _open(case, reference, max_num_tokens=128, kv_blocks=kv_blocks, prefix_caching=False) as host:
        runs_out = grows and any(group.kind in ("full", "mla") for group in host.stats().groups)
        for attempt in range(MOST_ATTEMPTS):
            _serve(host, card, prompts, vocab_size, served, seed=21 + 10 * attempt)
            stats = host.stats()
            if stats.preemptions or not runs_out:
                break  # else the machine was busy, and one prompt ended before the next one was submitted
    _check_counts(stats)
    assert stats.preemptions > 0 or not runs_out
    assert len({token for tokens in served.tokens for token in tokens}) > 30, (
        "sequences that do not wander prove little"
    )
    _check(case, reference, served)


def test_served_embeddings_equal_the_reference(embedded_case: Case, tmp_path_factory: pytest.TempPathFactory) -> None:
    """All texts at once, in chunks unless they must come whole, twice: the second time with prefix hits."""
    case, card = embedded_case, embedded_case.card
    reference = build_reference(card, DTYPES[case.dtype], tmp_path_factory.mktemp(card.name))
    places = [(0, 33), (1, 1), (2, 18), (0, 21)]
    # Each prompt makes one row, and few rows in bfloat16 are a matter of luck.
    places += [(row, length) for row in range(3) for length in (4, 11, 25, 37)] if card.whole_prompts else []
    embeddings = []
    with _open(case, reference, max_num_tokens=40 if card.whole_prompts else 10) as host:
        for _ in range(2):
            order = [
                host.submit_embedding(reference.sequences[row][:length], card.token_types(row, length))
                for row, length in places
            ]
            embeddings += [list(host.stream(request))[-1].embedding for request in order]
        stats = host.stats()
    _check_counts(stats)
    assert bool(stats.prefix_hit_tokens) == stats.prefix_caching != card.whole_prompts
    assert bool(stats.token_type_steps) == bool(card.second_texts)
    assert not card.whole_prompts or "needs whole prompts" in stats.prefix_caching_off_reason
    rows, lasts = [row for row, _ in places * 2], [length - 1 for _, length in places * 2]
    error = torch.tensor(embeddings) - reference.logits[rows, lasts]
    if reference.own_error is None:
        assert float(error.abs().max() / reference.logits.abs().max()) <= card.fp32_tolerance
        return
    own = reference.own_error[rows, lasts]
    assert float(error.square().mean().sqrt() / own.square().mean().sqrt()) <= card.bf16_ratio
