"""Steps whose requests share blocks on the simulated package: attention in two levels, in pieces, in no full graph."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.matrix.host_double import Chunk, Request
from trunnion_sim.attention import Own, two_level_attention
from trunnion_sim.hardware import SimHardware

from trunnion import registry
from trunnion.contract import BatchCounts
from trunnion.errors import BatchRefused
from trunnion.interfaces.attention import AttentionSpec, StepInputs
from trunnion.interfaces.runner import Bucket, Mode
from trunnion.runner.buckets import Buckets
from trunnion_host.serving import HostConfig, SamplingParams, ServingHost
from trunnion_models.card import Card

from .rig import Rig
from .test_steps import assert_close


@pytest.mark.parametrize("rows", [(1, 1, 1), (1, 5, 2), (7,)], ids=str)
@pytest.mark.parametrize("shared", [1, 8, 63])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (3, 1)], ids=str)
def test_two_levels_are_one(rows: tuple[int, ...], shared: int, heads: tuple[int, int]) -> None:
    """Against torch's attention over all keys at once, in float64."""
    generator = torch.Generator().manual_seed(shared + sum(rows))

    def noise(*shape: int) -> torch.Tensor:
        return 3 * torch.randn(*shape, generator=generator, dtype=torch.float64)

    num_heads, num_kv_heads = heads
    spec = AttentionSpec(
        num_qo_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=16, scale=0.25, dtype=torch.float64
    )
    k_shared, v_shared = noise(shared, num_kv_heads, 16), noise(shared, num_kv_heads, 16)
    own, expected = [], []
    for index, count in enumerate(rows):
        num_keys = count + 3 * index
        q, k, v = noise(count, num_heads, 16), noise(num_keys, num_kv_heads, 16), noise(num_keys, num_kv_heads, 16)
        own.append(Own(q, k, v, num_keys - count))
        keys, values = (torch.cat(pair).transpose(0, 1) for pair in ((k_shared, k), (v_shared, v)))
        own_key = torch.arange(count).unsqueeze(1) + shared + num_keys - count
        whole = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(0, 1), keys, values, torch.arange(shared + num_keys) <= own_key, scale=0.25, enable_gqa=True
        )
        expected.append(whole.transpose(0, 1))
    actual = two_level_attention(k_shared, v_shared, own, spec)
    torch.testing.assert_close(actual, torch.cat(expected), rtol=1e-12, atol=1e-12)


def family(rig: Rig) -> list[Request]:
    """Two owners of other prompts, each with two heirs that share eight of its tokens; all ten tokens are cached."""
    owners = rig.requests(2, 18)
    requests = []
    for owner in owners:
        rig.prefill([owner], 10)
        heirs = [rig.host.fork(owner, [*owner.tokens[:8], *owner.tokens[8:][::-1]], 8) for _ in range(2)]
        rig.prefill(heirs, 2)
        requests += [owner, *heirs]
    return requests


def decode(rig: Rig, *, levels: bool) -> torch.Tensor:
    """Uniform decodes of a family, owners that decode before chunks of their heirs, and decodes nothing is said of."""
    requests = family(rig)
    rig.host.levels = levels
    rows = [rig.decode(requests) for _ in range(3)]
    mixed = [Chunk(request, 3 if index % 3 else 1) for index, request in enumerate(requests)]
    rows += rig.host.step(mixed)
    rig.host.levels = False
    rows.append(rig.decode(requests))
    return torch.cat(rows)


@pytest.mark.parametrize("mode", list(Mode), ids=lambda mode: mode.value)
def test_levels_change_no_result_in_any_way_of_execution(llama: Card, mode: Mode, rigs: Callable[..., Rig]) -> None:
    """What the same steps give without; a full graph is there, and not taken."""
    expected = decode(rigs(llama, Mode.EAGER), levels=False)
    rig = rigs(llama, mode)
    assert rig.executor.accepts_prefix_levels
    seen = Spy(rig.executor._runner)
    assert_close(decode(rig, levels=True), expected)
    assert rig.executor.counters.prefix_level_steps == 4
    assert {ran for ran, levels in seen.steps if levels} == {Mode.EAGER if mode is Mode.EAGER else Mode.PIECEWISE}
    if mode is Mode.FULL:
        assert seen.steps[Mode.FULL, False] == 1, "the last decode is in its graph again"
        assert rig.executor.counters.replays == rig.host.steps and not rig.executor.counters.eager


def test_a_full_graph_is_never_chosen(llama: Card, rigs: Callable[..., Rig]) -> None:
    """By the buckets; and a runner that chooses one all the same is an error."""
    rig = rigs(llama)
    assert rig.runner.select(BatchCounts(6, 6, 6, 6, num_prefixes=2)).mode is Mode.PIECEWISE
    requests = family(rig)
    rig.runner.select = lambda counts: Buckets.select(rig.runner.buckets, BatchCounts(6, 6, 6, 6))  # type: ignore
    rig.host.levels = True
    with pytest.raises(RuntimeError, match="a graph does not read them"):
        rig.decode(requests)


def test_levels_that_share_nothing_are_none(llama: Card, rigs: Callable[..., Rig]) -> None:
    """Requests of other prompts run in their full graph."""
    rig = rigs(llama)
    requests = rig.requests(4, 9)
    rig.prefill(requests, 5)
    seen = Spy(rig.runner)
    rig.host.levels = True
    assert rig.decode(requests).isfinite().all()
    assert seen.steps == {(Mode.FULL, False): 1}
    assert rig.executor.counters.prefix_level_steps == 0


def test_levels_are_refused_where_no_group_reads_them(llama: Card, rigs: Callable[..., Rig]) -> None:
    rig = rigs(llama)
    requests = family(rig)
    rig.executor._groups.accepts_prefix_levels = False
    rig.host.levels = True
    with pytest.raises(BatchRefused, match="num_prefixes: 2, expected 0"):
        rig.decode(requests)


class Spy:
    """Counts a runner's steps by how they run, and whether they have levels."""

    def __init__(self, runner: object) -> None:
        self.steps: Counter[tuple[Mode, bool]] = Counter()
        self._run = runner.run  # type: ignore[attr-defined]
        runner.run = self.run  # type: ignore[attr-defined]

    def run(self, step: StepInputs, bucket: Bucket) -> tuple[torch.Tensor, torch.Tensor]:
        self.steps[bucket.mode, step.host.prefix_lens is not None] += 1
        return self._run(step, bucket)


@dataclass
class Served:
    """What prompts with a common beginning were answered greedily, and how."""

    tokens: list[list[int]]
    logprobs: torch.Tensor
    steps: Counter[tuple[Mode, bool]]
    told: int
    """Steps with levels, by the host's own count."""


def serve(model: Path, card: Card, prefix_levels: int) -> Served:
    """Five prompts behind one system prompt, which the prefix cache holds already."""
    hardware = registry.load_hardware_from(Path(__file__).parent / "trunnion_sim")
    assert isinstance(hardware, SimHardware)
    create_runner, spies = hardware.create_runner, list[Spy]()

    def create(*arguments: object) -> object:
        runner = create_runner(*arguments)  # type: ignore[arg-type]
        spies.append(Spy(runner))
        return runner

    hardware.create_runner = create  # type: ignore
    config = HostConfig(
        model=str(model),
        hardware="sim",
        dtype="float32",
        max_num_tokens=32,
        max_num_seqs=6,
        max_model_len=card.max_model_len,
        block_size=card.block_size,
        exit_on_fatal=False,
        prefix_levels=prefix_levels,
    )
    system = [5, 64, 2, 8, 120, 17, 3, 9, 44, 31, 7, 90, 12, 6, 71, 23, 18]
    with ServingHost(config) as host:
        list(host.stream(host.submit(system, SamplingParams(max_tokens=1))))
        greedy = SamplingParams(max_tokens=20, num_logprobs=0)
        ids = [host.submit([*system, 3 + index, 11], greedy) for index in range(5)]
        events = [[event for event in host.stream(request) if not event.finished] for request in ids]
        stats = host.stats()
    assert stats.eager_steps == 0, stats.eager
    assert stats.replays == stats.steps
    assert stats.prefix_levels_off_reason == ("" if prefix_levels else "off by option")
    return Served(
        tokens=[[event.token_id for event in answer] for answer in events],
        logprobs=torch.tensor([[event.logprob for event in answer] for answer in events]),
        steps=spies[-1].steps,
        told=stats.prefix_level_steps,
    )


def test_served_text_is_the_same_with_levels(llama: Card, checkpoint: Callable[[Card], Path]) -> None:
    """Steps of requests that share a system prompt are told of it, run in pieces, and are counted."""
    card = dataclasses.replace(llama, max_model_len=64)
    without, with_levels = (serve(checkpoint(llama), card, least) for least in (0, 1))
    assert without.told == 0 and not any(levels for _, levels in without.steps)
    assert without.steps[Mode.FULL, False] > 10
    assert with_levels.tokens == without.tokens and all(len(tokens) == 20 for tokens in without.tokens)
    torch.testing.assert_close(with_levels.logprobs, without.logprobs, rtol=0, atol=1e-5)
    assert with_levels.told == with_levels.steps[Mode.PIECEWISE, True] > 10
    assert with_levels.steps[Mode.FULL, True] == 0
