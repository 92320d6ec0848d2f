"""A small host that speculates: a target verifies greedily what a draft proposes, and both take back what was wrong."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from trunnion.config import ExecutorConfig
from trunnion.contract import COUNT_FIELDS, Limits, Role
from trunnion.interfaces.hardware import Hardware
from trunnion.runner.model_executor import ModelExecutor

from .host_double import Chunk, HostDouble, Request


def make_pair(
    folder: Path, hardware: str, package: Hardware | None, limits: Limits, **options: Any
) -> tuple[ModelExecutor, ModelExecutor]:
    """A target and the draft of the same checkpoint; `options` are fields of ExecutorConfig."""
    common = {"model": folder, "hardware": hardware, "limits": limits, **options}
    target = ModelExecutor.create(ExecutorConfig(**common, keep_hidden=True), package)
    return target, ModelExecutor.create(ExecutorConfig(**common, role=Role.DRAFT), package, share_with=target)


@dataclass(frozen=True)
class DraftChunk(Chunk):
    """Rows of a draft, and the rows of the source's last step whose hidden states they take."""

    hidden_rows: Sequence[int] = ()


class DraftDouble(HostDouble):
    """Feeds a draft. The tokens of its requests are the target's without the first: row p carries token p + 1."""

    hidden_source = 0

    def draft(self, chunks: Sequence[DraftChunk], hidden_source: int, query_len: int = 1) -> list[torch.Tensor]:
        """One step on hidden states of the target's last step (0) or of the draft's own (1)."""
        self.hidden_source = hidden_source
        return self.step(chunks, query_len)

    def _fill(self, buffer_set: int, batch: Sequence[Chunk], query_len: int = 1) -> int:
        num_logits = super()._fill(buffer_set, batch, query_len)
        buffers = self.executor.input_buffers()[buffer_set]
        rows = [row for chunk in batch if isinstance(chunk, DraftChunk) for row in chunk.hidden_rows]
        assert buffers.tensors.hidden_indices is not None, "a draft lends hidden_indices"
        buffers.tensors.hidden_indices[: len(rows)] = torch.tensor(rows, dtype=torch.int32)
        buffers.counts[COUNT_FIELDS.index("hidden_source")] = self.hidden_source
        return num_logits


class FollowedHost(HostDouble):
    """A target's host that lets a draft follow every step on the same rows, and returns the draft's logits instead.

    Where the draft can say few tokens, `token_ids`, they are the logits of those; the others must be impossible.
    """

    def __init__(
        self,
        target: ModelExecutor,
        draft: ModelExecutor,
        num_blocks: int,
        sequences: Sequence[list[int]],
        token_ids: torch.Tensor | None = None,
    ) -> None:
        super().__init__(target, num_blocks, target.device)
        self._token_ids = token_ids
        self._draft = DraftDouble(draft, num_blocks, draft.device, seed=1)
        self._sequences = sequences
        self._followers: dict[int, Request] = {}

    def reset(self, seed: int) -> None:
        super().reset(seed)
        self._draft.reset(seed + 1)
        self._followers.clear()

    def add(self, tokens: Sequence[int]) -> Request:
        """`tokens` begin one of the sequences, which says what the token after the last one is."""
        request = super().add(tokens)
        self._followers[id(request)] = self._draft.add(self._shifted(tokens))
        return request

    def fork(self, source: Request, tokens: Sequence[int], cached: int) -> Request:
        """A hit is one for the draft too: what it cached for these rows, it cached of the same tokens."""
        request = super().fork(source, tokens, cached)
        self._followers[id(request)] = self._draft.fork(self._followers[id(source)], self._shifted(tokens), cached)
        return request

    def _shifted(self, tokens: Sequence[int]) -> list[int]:
        known = next(sequence for sequence in self._sequences if sequence[: len(tokens)] == list(tokens))
        return known[1 : len(tokens) + 1]

    @contextmanager
    def with_events(self) -> Iterator[None]:
        with super().with_events(), self._draft.with_events():
            yield

    def preempt(self, request: Request) -> None:
        super().preempt(request)
        self._draft.preempt(self._followers[id(request)])

    def finish(self, request: Request) -> None:
        super().finish(request)
        self._draft.finish(self._followers.pop(id(request)))

    def step(self, chunks: Iterable[Chunk], query_len: int = 1) -> list[torch.Tensor]:
        given = list(chunks)
        super().step([Chunk(chunk.request, chunk.count, ()) for chunk in given], query_len)
        followers = [
            DraftChunk(
                self._followers[id(chunk.request)], chunk.count, chunk.rows, 0, range(first, first + chunk.count)
            )
            for chunk, first in zip(given, self.first_rows, strict=True)
        ]
        return [self._of_tokens(rows) for rows in self._draft.draft(followers, 0, query_len)]

    def _of_tokens(self, rows: torch.Tensor) -> torch.Tensor:
        if self._token_ids is None:
            return rows
        said = rows[:, self._token_ids]
        others = rows.index_fill(1, self._token_ids, -torch.inf)
        assert others.isneginf().all(), "a token that the draft cannot say has a logit"
        return said


@dataclass
class Speculated:
    """One request: its text, both sides' view of it, and what is drafted."""

    tokens: list[int]
    num_prompt: int
    target: Request
    draft: Request
    drafts: list[int] = field(default_factory=list)
    hidden_rows: list[int] = field(default_factory=list)
    """Where the target's last step has the hidden states of what it computed."""
    last_row: int = 0
    """Where the draft's last row lay in its last step."""

    @property
    def in_prompt(self) -> bool:
        return self.target.computed < self.num_prompt


class SpeculatingHost:
    """Prefills in chunks, drafts up to `num_drafts` tokens, verifies, and counts what came true.

    It drafts fewer tokens now and then, so that rows of verifications are placeholders, and lays the draft's own rows
    out as decodes of equal length or as they are.
    """

    def __init__(
        self, target: ModelExecutor, draft: ModelExecutor, num_drafts: int, *, num_blocks: int, seed: int = 0
    ) -> None:
        self.rng = random.Random(seed)
        self.num_drafts = num_drafts
        self.target = HostDouble(target, num_blocks, target.device, seed)
        self.draft = DraftDouble(draft, num_blocks, draft.device, seed + 1)
        self.accepted: list[Counter[int]] = []
        """Per verification step: accepted drafts -> requests."""

    def run(self, prompts: Sequence[list[int]], num_tokens: int, chunk: int = 7) -> list[list[int]]:
        """Continue all prompts at once by at least `num_tokens`; the first `num_tokens` of each."""
        requests = [self._add(prompt) for prompt in prompts]
        live = list(requests)
        while live:
            self._step_target(live, chunk)
            live = [r for r in live if len(r.tokens) - r.num_prompt < num_tokens]
            if live:
                self._step_draft(live)
        return [r.tokens[r.num_prompt :][:num_tokens] for r in requests]

    def _add(self, prompt: list[int]) -> Speculated:
        tokens = list(prompt)
        return Speculated(tokens, len(prompt), self.target.add(tokens), self.draft.add([]))

    def _step_target(self, live: Sequence[Speculated], chunk: int) -> None:
        """Prefill, or verify: the first token is known, the drafts follow, the rest is placeholders."""
        query_len = 1 + self.num_drafts
        chunks = []
        for r in live:
            if r.in_prompt:
                # A chunk as long as a verification would pass for one.
                count = min(chunk, r.target.remaining)
                count -= count == query_len and count > 1
                chunks.append(Chunk(r.target, count, (count - 1,)))
                continue
            missing = self.num_drafts - len(r.drafts)
            r.tokens += [*r.drafts, *[0] * missing]
            chunks.append(Chunk(r.target, query_len, placeholders=missing))
        rows = self.target.step(chunks, query_len)
        accepted: Counter[int] = Counter()
        for r, each, first, logits in zip(live, chunks, self.target.first_rows, rows, strict=True):
            best = logits.argmax(-1).tolist()
            known = each.count
            if each.rows is None:
                known = self._verify(r, best)
                accepted[known - 1] += 1
            elif not r.in_prompt:
                r.tokens.append(best[0])
            r.hidden_rows = list(range(first, first + known))
        if accepted:
            self.accepted.append(accepted)

    def _verify(self, r: Speculated, best: list[int]) -> int:
        """Keep the drafts that came true and what the target says after them -> tokens that count as computed."""
        agreed = 0
        while agreed < len(r.drafts) and r.drafts[agreed] == best[agreed]:
            agreed += 1
        del r.tokens[len(r.tokens) - self.num_drafts + agreed :]
        r.tokens.append(best[agreed])
        r.target.refuse(len(r.drafts) - agreed)
        return agreed + 1

    def _step_draft(self, live: Sequence[Speculated]) -> None:
        """Follow the target's step row by row, then draft on from the draft's own hidden states."""
        padded = self.rng.random() < 0.5
        query_len = 1 + self.num_drafts if padded else 1
        chunks = []
        for r in live:
            rows = r.hidden_rows
            missing = query_len - len(rows) if padded and len(rows) <= query_len else 0
            r.draft.tokens = [*r.tokens[1 : r.target.computed + 1], *[0] * missing]
            r.drafts = []
            chunks.append(
                DraftChunk(r.draft, len(rows) + missing, (len(rows) - 1,), missing, hidden_rows=[*rows, *[0] * missing])
            )
        logits = self.draft.draft(chunks, 0, query_len)
        for r, each, first, row in zip(live, chunks, self.draft.first_rows, logits, strict=True):
            assert r.draft.computed == r.target.computed, "both sides have the same tokens"
            r.last_row = first + each.wanted[0]
            if not r.in_prompt:
                r.drafts = row.argmax(-1).tolist()
        drafting = [r for r in live if r.drafts]
        for _ in range(1, self.num_drafts):
            drafting = [r for r in drafting if self.rng.random() < 0.85]
            if drafting:
                self._draft_on(drafting)
        for r in live:
            r.draft.computed = r.target.computed

    def _draft_on(self, drafting: Sequence[Speculated]) -> None:
        chunks = []
        for r in drafting:
            r.draft.tokens = [*r.tokens[1 : r.target.computed + 1], *r.drafts]
            chunks.append(DraftChunk(r.draft, 1, hidden_rows=[r.last_row]))
        logits = self.draft.draft(chunks, 1)
        for r, first, row in zip(drafting, self.draft.first_rows, logits, strict=True):
            r.last_row = first
            r.drafts += row.argmax(-1).tolist()
