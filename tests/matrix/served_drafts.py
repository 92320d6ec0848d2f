"""Serves prompts through the C++ host at once, and says what plain torch would have drafted for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trunnion_host.serving import HostConfig, SamplingParams, ServingHost, Stats


class Drafter(Protocol):
    """The reference implementation of a draft."""

    def draft(self, tokens: list[int], num_drafts: int) -> list[int]:
        """What it drafts after `tokens`, of which the target has not seen the last."""
        ...


def serve(config: HostConfig, prompts: Sequence[list[int]], sampling: SamplingParams) -> tuple[list[list[int]], Stats]:
    """All prompts at once."""
    with ServingHost(config) as host:
        tokens: dict[int, list[int]] = {host.submit(prompt, sampling): [] for prompt in prompts}
        for request, said in tokens.items():
            for event in host.stream(request):
                assert not event.error
                said += [] if event.finished else [event.token_id]
        return list(tokens.values()), host.stats()


def speculate(
    trained: Drafter, prompts: list[list[int]], outputs: list[list[int]], num_drafts: int
) -> tuple[list[int], list[int]]:
    """How many drafts there are at each place, and how many of them come true, when plain torch drafts."""
    drafted, accepted = [0] * num_drafts, [0] * num_drafts
    for prompt, output in zip(prompts, outputs, strict=True):
        said = 1
        while said < len(output) - 1:
            drafts = trained.draft(prompt + output[:said], min(num_drafts, len(output) - said - 1))
            rest = output[said : said + len(drafts)]
            right = next(
                (i for i, pair in enumerate(zip(drafts, rest, strict=True)) if pair[0] != pair[1]), len(drafts)
            )
            for place in range(len(drafts)):
                drafted[place] += 1
                accepted[place] += place < right
            said += right + 1
    return drafted, accepted
