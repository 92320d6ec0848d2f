"""What a verification refuses, a recurrent group takes back: it goes on from the last state that was accepted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from trunnion.contract import BatchCounts, BatchTensors, GroupTensors
from trunnion.interfaces.attention import RecurrentSpec, StepInputs
from trunnion.reference.captured import CapturedRecurrentGroup
from trunnion.reference.recurrent import ReferenceRecurrentGroup

SPEC = RecurrentSpec(num_k_heads=2, num_v_heads=4, head_k_dim=8, head_v_dim=6, conv_kernel_size=4, dtype=torch.float32)
WIDTH = 4
CPU = torch.device("cpu")
Tokens = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Served:
    """One layer with `WIDTH` states per request, NaN wherever nothing was kept, and junk that must not be read."""

    def __init__(self, group_class: type[ReferenceRecurrentGroup], full: bool) -> None:
        self.group = group_class(SPEC, 1, CPU)
        self.full = full
        specs = group_class.cache_tensors(SPEC, 0)
        self.caches = {spec.name: torch.full((40, *spec.shape), torch.nan, dtype=spec.dtype) for spec in specs}
        self.group.bind_kv_cache(0, [self.caches])
        self.weight = torch.randn(SPEC.conv_dim, SPEC.conv_kernel_size, generator=torch.Generator().manual_seed(1))

    def step(self, parts: Sequence[tuple[int, Tokens, int]], num_decodes: int, padding: int = 0) -> list[torch.Tensor]:
        """(request, its tokens, the column to start from or -1 for nothing) -> outputs. The other columns become NaN.

        In a full graph `padding` requests follow, with states of 0.
        """
        lens = [len(tokens[0]) for _, tokens, _ in parts]
        states = [list(range(1 + request * WIDTH, 1 + (request + 1) * WIDTH)) for request, _, _ in parts]
        for own, (_, _, column) in zip(states, parts, strict=True):
            for cache in self.caches.values():
                cache[[state for index, state in enumerate(own) if index != column]] = torch.nan
        query_len = lens[0] if num_decodes else 1
        group = GroupTensors(
            state_indices=_ints([state for own in states for state in own] + [0] * WIDTH * padding).view(-1, WIDTH),
            has_initial_state=_ints([int(column >= 0) for _, _, column in parts] + [0] * padding),
            num_accepted=_ints([column + 1 if column >= 0 else -77 for _, _, column in parts] + [0] * padding),
        )
        starts = torch.tensor([0, *lens]).cumsum(0).int()
        empty = torch.empty(0, dtype=torch.int32)
        tensors = BatchTensors(empty, empty, starts, empty, empty, groups=(group,))
        counts = BatchCounts(
            num_tokens=sum(lens), num_reqs=len(parts), num_decodes=num_decodes, decode_query_len=query_len
        )
        self.group.plan(StepInputs(counts, tensors, tensors, self.full and num_decodes == len(parts)))
        inputs = [torch.cat([tokens[index] for _, tokens, _ in parts]) for index in range(3)]
        junk = [torch.full((padding * query_len, *rows.shape[1:]), torch.nan) for rows in inputs]
        inputs = [torch.cat(pair) for pair in zip(inputs, junk, strict=True)]
        out = self.group.run(0, *inputs, self.weight, None)
        return list(out[: sum(lens)].split(lens))


def _ints(values: Sequence[int]) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


def tokens(count: int, seed: int) -> Tokens:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(count, SPEC.conv_dim, generator=generator),
        -torch.rand(count, SPEC.num_v_heads, generator=generator),
        torch.rand(count, SPEC.num_v_heads, generator=generator),
    )


def joined(*parts: Tokens) -> Tokens:
    first, second, third = (torch.cat(rows) for rows in zip(*parts, strict=True))
    return first, second, third


def cut(part: Tokens, count: int) -> Tokens:
    first, second, third = (rows[:count] for rows in part)
    return first, second, third


def plain(part: Tokens) -> torch.Tensor:
    """All tokens of one request in one step."""
    return Served(ReferenceRecurrentGroup, False).step([(0, part, -1)], 0)[0]


def assert_rows(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


GROUPS = [
    pytest.param(ReferenceRecurrentGroup, False, id="reference"),
    pytest.param(CapturedRecurrentGroup, False, id="captured-eager"),
    pytest.param(CapturedRecurrentGroup, True, id="captured-full"),
]


@pytest.mark.parametrize(("group_class", "full"), GROUPS)
@pytest.mark.parametrize("accepted", [1, 2, 3, 4])
def test_any_number_of_accepted_tokens_then_on(
    group_class: type[ReferenceRecurrentGroup], full: bool, accepted: int
) -> None:
    """Prefill, verify four tokens, keep 1 ... 4, decode one, verify again: as if the refused had never been there."""
    served = Served(group_class, full)
    prompt, tried, single, again = tokens(5, 1), tokens(4, 2), tokens(1, 3), tokens(4, 4)
    expected = plain(joined(prompt, cut(tried, accepted), single, again))
    assert_rows(served.step([(0, prompt, -1)], 0)[0], expected[:5])
    assert_rows(served.step([(0, tried, 0)], 1)[0][:accepted], expected[5 : 5 + accepted])
    assert_rows(served.step([(0, single, accepted - 1)], 1)[0], expected[5 + accepted : 6 + accepted])
    assert_rows(served.step([(0, again, 0)], 1)[0], expected[6 + accepted :])


@pytest.mark.parametrize(("group_class", "full"), GROUPS)
def test_a_batch_accepts_unevenly_beside_padding(group_class: type[ReferenceRecurrentGroup], full: bool) -> None:
    """Four requests keep 1, 4, 2 and 3 tokens of one step, and all go on in the next; one more starts from nothing."""
    served, kept = Served(group_class, full), (1, 4, 2, 3)
    prompts = [tokens(3 + index, 10 + index) for index in range(4)]
    tried = [tokens(4, 20 + index) for index in range(4)]
    rest = [tokens(4, 30 + index) for index in range(4)]
    fresh = tokens(4, 40)
    expected = [plain(joined(p, cut(t, n), r)) for p, t, n, r in zip(prompts, tried, kept, rest, strict=True)]
    served.step([(index, prompt, -1) for index, prompt in enumerate(prompts)], 0)
    served.step([(index, part, 0) for index, part in enumerate(tried)], 4, padding=2 * full)
    parts = [(index, part, kept[index] - 1) for index, part in enumerate(rest)]
    out = served.step([*parts, (6, fresh, -1)], 5, padding=3 * full)
    for found, whole in zip(out, [*expected, plain(fresh)], strict=True):
        assert_rows(found, whole[-4:])


@pytest.mark.parametrize(("group_class", "full"), GROUPS)
def test_a_request_beyond_the_decodes_leaves_one_state(group_class: type[ReferenceRecurrentGroup], full: bool) -> None:
    """A chunk after a verification starts from the chosen column and ends in the first one, whatever its length."""
    served = Served(group_class, full)
    prompt, tried, chunk, other = tokens(4, 1), tokens(3, 2), tokens(6, 3), tokens(3, 4)
    expected = plain(joined(prompt, cut(tried, 2), chunk, other))
    served.step([(0, prompt, -1)], 0)
    served.step([(0, tried, 0)], 1)
    (_, found) = served.step([(5, other, -1), (0, chunk, 1)], 1)
    assert_rows(found, expected[6:12])
    for cache in served.caches.values():
        assert cache[1].isfinite().all() and cache[3:5].isnan().all()
    assert_rows(served.step([(0, other, 0)], 1)[0], expected[12:])
