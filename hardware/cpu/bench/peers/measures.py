"""The columns: what is measured of each engine, from what calls, and which way is better."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

PROMPT_LEN = 32
PREFILL_LEN = 1024


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of `generate` that gives a rate; a prefill if it makes one token."""

    name: str
    batch: int
    prompt_len: int
    new_tokens: int

    def prompts(self, seed: int, vocabulary: int) -> list[list[int]]:
        """The same for every engine in one round, others in the next: nobody's prefix cache knows them."""
        draw = random.Random(f"{self.name} {seed}")
        return [[draw.randrange(100, vocabulary) for _ in range(self.prompt_len)] for _ in range(self.batch)]

    def rate(self, times: Sequence[Sequence[float]]) -> float:
        """Tokens per second: of the prompt up to its first answer, or of a full batch that decodes."""
        if self.new_tokens == 1:
            return self.batch * self.prompt_len / max(row[0] for row in times)
        begin, end = max(row[0] for row in times), min(row[-1] for row in times)
        tokens = sum(begin < moment <= end for row in times for moment in row)
        return tokens / (end - begin)


def calls(*, is_quick: bool) -> tuple[Call, ...]:
    """The four rates, with fewer tokens if `is_quick`."""
    tokens = {1: 9, 8: 5, 32: 5} if is_quick else {1: 49, 8: 33, 32: 25}
    decodes = (
        Call(name=f"decode {batch}", batch=batch, prompt_len=PROMPT_LEN, new_tokens=tokens[batch]) for batch in tokens
    )
    return (*decodes, Call(name=f"prefill {PREFILL_LEN}", batch=1, prompt_len=PREFILL_LEN, new_tokens=1))


RATES = tuple(call.name for call in calls(is_quick=True))
COSTS = ("start cold", "start warm", "memory")
"""Seconds, seconds and bytes: less is better."""
COLUMNS = (*RATES, *COSTS)
