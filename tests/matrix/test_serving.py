"""Every family through the C++ host: log-probabilities, or embeddings, are those of transformers on the same weights.

Tokens are sampled hot, so that sequences wander; what is compared are the raw logits behind every token.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from transformers import AutoModelForCausalLM

from trunnion.config import DTYPES
from trunnion_host.serving import HostConfig, SamplingParams, ServingHost, Stats
from trunnion_models.card import Card

from .conftest import Case
from .hf_reference import Reference, build_reference

NUM_TOKENS = 14
NUM_LOGPROBS = 20
TEMPERATURE = 8.0


@dataclass
class Served:
    """Sequences as the host made them: the prompt, what was sampled, and the log-probabilities reported with it."""

    prompts: list[list[int]] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    top: list[torch.Tensor] = field(default_factory=list)
    """Per sequence [tokens, vocab_size]: log-probabilities where they were reported, NaN elsewhere."""


def _prompts(card: Card, reference: Reference) -> list[list[int]]:
    """Longer and shorter than windows, blocks and chunks; the last one begins as the first does."""
    first, second, third = reference.sequences[:3]
    room = card.max_model_len - NUM_TOKENS
    return [prompt[:room] for prompt in (first[:33], second[:1], third[:18], [*first[:21], *second[1:5]])]


def _open(case: Case, reference: Reference, **options: object) -> ServingHost:
    card = case.card
    settings: dict[str, object] = {"max_num_seqs": 4, "watchdog_s": 120.0, "exit_on_fatal": False, **options}
    return ServingHost(
        HostConfig(
            model=str(reference.folder),
            hardware=case.hardware,
            dtype=case.dtype,
            max_model_len=card.max_model_len,
            block_size=card.block_size,
            **settings,  # type: ignore[arg-type]
        )
    )


def _serve(host: ServingHost, prompts: list[list[int]], vocab_size: int, served: Served, *, seed: int) -> None:
    """All prompts at once, added to `served`."""
    sampling = [
        SamplingParams(temperature=TEMPERATURE, seed=seed + i, max_tokens=NUM_TOKENS, num_logprobs=NUM_LOGPROBS)
        for i in range(len(prompts))
    ]
    order = [host.submit(prompt, params) for prompt, params in zip(prompts, sampling, strict=True)]
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
    model = AutoModelForCausalLM.from_pretrained(reference.folder, dtype=dtype, attn_implementation="eager").eval()
    # At full length, for ropes that look at it; nothing sees what comes after.
    ids = torch.zeros(len(served.prompts), case.card.max_model_len, dtype=torch.int64)
    for row, prompt, tokens in zip(ids, served.prompts, served.tokens, strict=True):
        row[: len(prompt) + len(tokens)] = torch.tensor(prompt + tokens)
    logits = model(ids, use_cache=False).logits.float()
    firsts = [len(prompt) - 1 for prompt in served.prompts]
    return torch.stack([row[first : first + NUM_TOKENS] for row, first in zip(logits, firsts, strict=True)])


def _check(case: Case, reference: Reference, served: Served) -> None:
    """As `Comparison.check`: the largest error in float32, the RMS in bfloat16."""
    logits = _truth(case, reference, served, torch.float32)
    reported = torch.stack(served.top)
    seen = reported.isfinite()
    assert seen.sum(-1).eq(NUM_LOGPROBS).all(), "a reported log-probability is NaN or infinite"
    error = (reported - logits.log_softmax(-1))[seen]
    if case.dtype == "float32":
        relative = float(error.abs().max() / logits.abs().max())
        assert relative <= 2 * case.card.fp32_tolerance, f"error {relative:.1e} of the largest logit"
        behind = logits.amax(-1) - logits.gather(-1, reported.nan_to_num(-torch.inf).argmax(-1, keepdim=True))[..., 0]
        assert float(behind.max() / logits.abs().max()) <= case.card.fp32_tolerance, "the best token is another one"
        return
    own = (_truth(case, reference, served, DTYPES[case.dtype]).log_softmax(-1) - logits.log_softmax(-1))[seen]
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
        _serve(host, prompts, vocab_size, served, seed=1)
        _serve(host, prompts, vocab_size, served, seed=11)
        stats = host.stats()
    _check_counts(stats)
    assert bool(stats.prefix_hit_tokens) == stats.prefix_caching
    assert stats.prefix_caching or "recurrent" in stats.prefix_caching_off_reason
    longest = max(map(len, prompts)) + NUM_TOKENS
    kv_blocks = 2 + -(-longest // card.block_size)
    with _open(case, reference, max_num_tokens=128, kv_blocks=kv_blocks, prefix_caching=False) as host:
        _serve(host, prompts, vocab_size, served, seed=21)
        stats = host.stats()
    _check_counts(stats)
    # Windows give blocks back as they move on, and states are counted by requests: only these run out.
    assert stats.preemptions > 0 or not any(group.kind in ("full", "mla") for group in stats.groups)
    assert len({token for tokens in served.tokens for token in tokens}) > 30, (
        "sequences that do not wander prove little"
    )
    _check(case, reference, served)


def test_served_embeddings_equal_the_reference(embedded_case: Case, tmp_path_factory: pytest.TempPathFactory) -> None:
    """All texts at once, in chunks, twice: the second time with prefix hits."""
    case, card = embedded_case, embedded_case.card
    reference = build_reference(card, DTYPES[case.dtype], tmp_path_factory.mktemp(card.name))
    places = [(0, 33), (1, 1), (2, 18), (0, 21)]
    embeddings = []
    with _open(case, reference, max_num_tokens=10) as host:
        for _ in range(2):
            order = [host.submit_embedding(reference.sequences[row][:length]) for row, length in places]
            embeddings += [list(host.stream(request))[-1].embedding for request in order]
        stats = host.stats()
    _check_counts(stats)
    assert stats.prefix_hit_tokens > 0
    rows, lasts = [row for row, _ in places * 2], [length - 1 for _, length in places * 2]
    error = torch.tensor(embeddings) - reference.logits[rows, lasts]
    if reference.own_error is None:
        assert float(error.abs().max() / reference.logits.abs().max()) <= card.fp32_tolerance
        return
    own = reference.own_error[rows, lasts]
    assert float(error.square().mean().sqrt() / own.square().mean().sqrt()) <= card.bf16_ratio
