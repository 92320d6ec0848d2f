"""A draft beside its target: what they share, what goes from one to the other, and text that does not show it."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.conformance.batches import block_size_for

from trunnion import registry
from trunnion.config import ExecutorConfig
from trunnion.contract import Field, Limits, Role
from trunnion.errors import UnsupportedError, WeightsError
from trunnion.interfaces.runner import Mode
from trunnion.runner.draft import check_layers
from trunnion.runner.model_executor import ModelExecutor

from .cases import load_hardware
from .draft_double import DraftChunk, DraftDouble, SpeculatingHost, make_pair
from .host_double import Chunk, HostDouble
from .trained_draft import TrainedDraft, save_trained_draft

NUM_DRAFTS = 3
LIMITS = Limits(
    max_num_tokens=40,
    max_num_seqs=5,
    max_model_len=64,
    max_logits_rows=40,
    block_size=4,
    max_decode_query_len=1 + NUM_DRAFTS,
)
NUM_BLOCKS = 100
SHARED = ("model.embed_tokens.weight", "lm_head.weight")
Pair = tuple[ModelExecutor, ModelExecutor]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every way in which the package executes steps."""
    if "execution" in metafunc.fixturenames:
        name = load_hardware(str(metafunc.config.getoption("--hardware")))
        ways = registry.hardware(name).execution_modes or (None,)
        metafunc.parametrize("execution", ways, ids=[way.value if way else "default" for way in ways])


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedDraft:
    return save_trained_draft(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="session")
def hardware(pytestconfig: pytest.Config) -> str:
    return load_hardware(str(pytestconfig.getoption("--hardware")))


@pytest.fixture
def pairs(trained: TrainedDraft, hardware: str) -> Iterator[Callable[..., Pair]]:
    """Makes targets with their drafts, and closes them."""
    made: list[ModelExecutor] = []

    def make(execution: Mode | None = None, limits: Limits = LIMITS, folder: Path = trained.folder) -> Pair:
        package = registry.hardware(hardware)
        limits = rounded(limits, hardware)
        pair = make_pair(folder, hardware, package if execution is None else package.limited_to(execution), limits)
        made.extend(pair)
        return pair

    yield make
    for executor in reversed(made):
        executor.close()


def rounded(limits: Limits, hardware: str) -> Limits:
    """The same with blocks that the package takes."""
    return dataclasses.replace(limits, block_size=block_size_for(registry.hardware(hardware), limits.block_size))


def prompts_of(*lengths: int, seed: int = 3) -> list[list[int]]:
    rng = random.Random(seed)
    return [rng.choices(range(1, 131), k=length) for length in lengths]


def test_speculation_gives_the_greedy_text(
    trained: TrainedDraft, pairs: Callable[..., Pair], execution: Mode | None
) -> None:
    """Chunked prefill, short drafts, and batches that accept unevenly: nothing of it shows in the text."""
    host = SpeculatingHost(*pairs(execution), NUM_DRAFTS, num_blocks=NUM_BLOCKS)
    prompts = prompts_of(9, 1, 17, 4, 12)
    texts = host.run(prompts, 24)
    assert texts == [trained.greedy(prompt, 24) for prompt in prompts]
    assert any(len(step) > 2 for step in host.accepted), "no batch has accepted unevenly"
    kept = sum(accepted * count for step in host.accepted for accepted, count in step.items())
    assert kept > sum(step.total() for step in host.accepted), "less than one draft per verification came true"


def test_a_verification_leaves_no_trace_of_what_it_refused(
    trained: TrainedDraft, pairs: Callable[..., Pair], execution: Mode | None
) -> None:
    """Any number of drafts comes true, in one batch and alone: what follows is what a plain run gives."""
    target, _ = pairs(execution)
    host = HostDouble(target, NUM_BLOCKS, target.device)
    prompts = prompts_of(18, 18, 18, 18, seed=6)
    with torch.inference_mode():
        expected = trained.target(torch.tensor(prompts), use_cache=False).logits
    for batch in ([0, 1, 2, 3], [2], [1, 3]):
        requests = {index: host.add(prompts[index]) for index in batch}
        for request in requests.values():
            host.step([Chunk(request, 6, ())])
        for turn in range(2):
            first = {index: request.computed for index, request in requests.items()}
            for index, request in requests.items():
                # Request i keeps its first token and i drafts; the others are wrong.
                kept = first[index] + 1 + index
                wrong = [(token + 1) % 131 for token in prompts[index][kept:]]
                request.tokens = [*prompts[index][:kept], *wrong]
            for index, rows in zip(batch, host.step([Chunk(r, 4) for r in requests.values()], 4), strict=True):
                assert_near(rows[: 1 + index], expected[index, first[index] : first[index] + 1 + index])
                requests[index].refuse(NUM_DRAFTS - index)
                requests[index].tokens = prompts[index]
            if turn:
                # Then one of single tokens.
                singles = host.step([Chunk(request, 1) for request in requests.values()])
                for index, rows in zip(batch, singles, strict=True):
                    assert_near(rows[0], expected[index, requests[index].computed - 1])
        for index, request in requests.items():
            start = request.computed
            (rows,) = host.step([Chunk(request, request.remaining)])
            assert_near(rows, expected[index, start:])
            host.finish(request)


def test_drafts_are_those_of_plain_torch(
    trained: TrainedDraft, pairs: Callable[..., Pair], execution: Mode | None
) -> None:
    """A prompt, then draft after draft on the draft's own hidden states."""
    target, draft = pairs(execution)
    host, follower = HostDouble(target, NUM_BLOCKS, target.device), DraftDouble(draft, NUM_BLOCKS, draft.device)
    (tokens,) = prompts_of(13)
    host.step([Chunk(host.add(tokens), 12, ())])
    request = follower.add(tokens[1:])
    (logits,) = follower.draft([DraftChunk(request, 12, (11,), hidden_rows=range(12))], 0)
    drafts, rows = [int(logits.argmax())], [logits]
    for row in (11, 0, 0, 0):
        request.tokens = [*request.tokens, drafts[-1]]
        (logits,) = follower.draft([DraftChunk(request, 1, hidden_rows=[row])], 1)
        drafts.append(int(logits.argmax()))
        rows.append(logits)
    assert drafts == trained.draft(tokens, 5)
    assert_near(torch.cat(rows), trained.draft_logits(tokens, 5))


def test_a_draft_takes_what_forward_returned(
    trained: TrainedDraft, pairs: Callable[..., Pair], execution: Mode | None
) -> None:
    """First the target's states after its final norm, by row; then the draft's own, after the draft's final norm."""
    target, draft = pairs(execution)
    host, follower = HostDouble(target, NUM_BLOCKS, target.device), DraftDouble(draft, NUM_BLOCKS, draft.device)
    (tokens,) = prompts_of(9)
    ids = torch.tensor([tokens])
    with torch.inference_mode():
        hidden = trained.target.model(ids[:, :-1], use_cache=False).last_hidden_state
        drafted = trained.head(trained.target.model.embed_tokens(ids[:, 1:]), hidden)
    taken = draft._inputs.hidden_states
    assert target.hidden is not None and draft.hidden is not None and taken is not None
    host.step([Chunk(host.add(tokens), 8, ())])
    assert_near(target.hidden.rows[:8], hidden[0])
    request = follower.add(tokens[1:])
    follower.draft([DraftChunk(request, 8, (7,), hidden_rows=range(8))], 0)
    assert_near(taken.rows[:8], hidden[0])
    assert_near(draft.hidden.rows[:8], drafted[0])
    request.tokens = [*request.tokens, 5]
    follower.draft([DraftChunk(request, 1, hidden_rows=[7])], 1)
    assert_near(taken.rows[:1], drafted[0, 7:])


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.float().cpu(), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_a_placeholder_touches_no_slot(pairs: Callable[..., Pair], execution: Mode | None) -> None:
    """Uneven drafts in one step: keys lie where tokens are, and the slots of placeholders keep what they had."""
    target, _ = pairs(execution)
    host = HostDouble(target, NUM_BLOCKS, target.device)
    requests = [host.add(tokens) for tokens in prompts_of(12, 12, 12)]
    for request in requests:
        host.step([Chunk(request, 6, ())])
    missing = (0, 2, 3)
    host.step([Chunk(r, 4, placeholders=n) for r, n in zip(requests, missing, strict=True)], query_len=4)
    paged = next(index for index, pool in enumerate(host.pools) if not pool.is_recurrent)
    size = host.pools[paged].spec.block_size
    for layer in host.pools[paged].caches:
        for cache in layer.values():
            for request, count in zip(requests, missing, strict=True):
                rows = torch.cat([cache[block] for block in request.blocks[paged]])
                assert len(rows) == max(12, size)
                assert rows[: 10 - count].isfinite().all()
                assert rows[10 - count :].isnan().all()


def test_a_batch_at_the_limit(trained: TrainedDraft, pairs: Callable[..., Pair], execution: Mode | None) -> None:
    """Six requests with six drafts each: 42 rows, which is all there are, in target and draft."""
    limits = dataclasses.replace(LIMITS, max_num_tokens=42, max_num_seqs=6, max_logits_rows=42, max_decode_query_len=7)
    target, draft = pairs(execution, limits)
    host = SpeculatingHost(target, draft, 6, num_blocks=150)
    prompts = prompts_of(7, 3, 5, 7, 2, 6, seed=8)
    assert host.run(prompts, 16) == [trained.greedy(prompt, 16) for prompt in prompts]
    if execution is Mode.FULL:
        assert not target.counters.eager and not draft.counters.eager


def test_what_is_shared_is_the_same_memory(trained: TrainedDraft, pairs: Callable[..., Pair]) -> None:
    """One tensor, by identity, named in the report and counted once."""
    target, draft = pairs()
    for name in SHARED:
        assert draft.model.get_parameter(name) is target.model.get_parameter(name)
    report = draft.weight_report
    assert report.shared == SHARED
    assert set(report.ignored["shared with the target"]) == set(SHARED)
    assert set(target.weight_report.ignored) == {"of the draft head"}
    stored = load_file(trained.folder / "model.safetensors")
    heads = {name for name in stored if name.startswith("mtp.")}
    assert set(target.weight_report.ignored["of the draft head"]) == heads
    assert report.num_used == len(heads)
    assert set(report.ignored["of the decoder that is drafted for"]) == set(stored) - heads - set(SHARED)
    assert any("2 parameters shared with the target: model.embed_tokens.weight" in line for line in report.lines())
    shared = sum(target.model.get_parameter(name).nbytes for name in SHARED)
    buffers = sum(buffer.nbytes for buffer in draft.model.buffers())
    assert draft.memory_profile().weights == sum(p.nbytes for p in draft.model.parameters()) + buffers - shared


def test_hidden_states_are_in_the_profile(trained: TrainedDraft, pairs: Callable[..., Pair], hardware: str) -> None:
    """One buffer of a target that keeps them, two of a draft; none of a target that does not."""
    target, draft = pairs()
    plain = ModelExecutor.create(
        ExecutorConfig(model=trained.folder, hardware=hardware, limits=rounded(LIMITS, hardware))
    )
    rows = LIMITS.max_num_tokens * 64 * 4
    assert target.memory_profile().workspaces - plain.memory_profile().workspaces == rows
    package = registry.hardware(hardware).memory_profile(draft.model, LIMITS)
    assert draft.memory_profile().workspaces - package.workspaces == 2 * rows
    assert plain.hidden is None
    plain.close()


def test_fields(pairs: Callable[..., Pair]) -> None:
    """A draft asks for hidden_indices; a target with states for num_accepted, unless nothing can be refused."""
    target, draft = pairs()
    assert Field.HIDDEN_INDICES in draft.required_fields() and Field.HIDDEN_INDICES not in target.required_fields()
    assert Field.NUM_ACCEPTED in target.required_fields() and Field.NUM_ACCEPTED not in draft.required_fields()
    (states,) = (group for group in target.kv_cache_spec().groups if group.block_size == 0)
    assert states.max_blocks_per_seq == LIMITS.max_decode_query_len
    single, _ = pairs(limits=dataclasses.replace(LIMITS, max_decode_query_len=1))
    assert single.required_fields() == Field.REQUIRED | (target.required_fields() & Field.KV_CSR)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "share_with without the role": ({"role": Role.TARGET}, "share_with is for a draft: role is 'target'"),
    "fewer tokens": ({"max_num_tokens": 41}, "max_num_tokens 41 of the draft is not its target's, 40"),
    "shorter requests": ({"max_model_len": 32}, "max_model_len 32 of the draft is not its target's, 64"),
    "fewer requests": ({"max_num_seqs": 4}, "max_num_seqs 4 of the draft is not its target's, 5"),
    "another dtype": ({"dtype": "bfloat16"}, "dtype 'bfloat16' of the draft is not its target's, 'float32'"),
    "other ranks": ({"tp_size": 2}, "tp_size 2 of the draft is not its target's, 1"),
    "another size": ({"hidden_size": 32}, "hidden_size 32 of the draft is not its target's, 64"),
    "another vocabulary": ({"vocab_size": 99}, "vocab_size 99 of the draft is not its target's, 131"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_a_draft_that_does_not_fit_is_named(
    changes: dict[str, Any],
    message: str,
    trained: TrainedDraft,
    pairs: Callable[..., Pair],
    hardware: str,
    tmp_path: Path,
) -> None:
    target, _ = pairs()
    sizes = {name: value for name, value in changes.items() if name.startswith("max_")}
    settings = {name: value for name, value in changes.items() if name in ("role", "dtype", "tp_size")}
    others = {name: value for name, value in changes.items() if name not in {*sizes, *settings}}
    config = json.loads((trained.folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | others))
    save_file(load_file(trained.folder / "model.safetensors"), tmp_path / "model.safetensors")
    given: dict[str, Any] = {"role": Role.DRAFT, "hardware": hardware, "model": tmp_path, **settings}
    with pytest.raises(ValueError, match=message) as caught:
        limits = dataclasses.replace(rounded(LIMITS, hardware), **sizes)
        ModelExecutor.create(ExecutorConfig(**given, limits=limits), share_with=target)
    assert "\n" not in str(caught.value)


def test_a_draft_needs_a_target_that_keeps_its_hidden_states(trained: TrainedDraft, hardware: str) -> None:
    config = ExecutorConfig(model=trained.folder, hardware=hardware, limits=rounded(LIMITS, hardware), role=Role.DRAFT)
    with pytest.raises(ValueError, match="a draft needs share_with, the executor of its target"):
        ModelExecutor.create(config)
    plain = ModelExecutor.create(dataclasses.replace(config, role=Role.TARGET))
    with pytest.raises(ValueError, match="a target that was created with keep_hidden"):
        ModelExecutor.create(config, share_with=plain)
    plain.close()


def test_a_checkpoint_without_a_head_is_named(
    trained: TrainedDraft, pairs: Callable[..., Pair], hardware: str, tmp_path: Path
) -> None:
    """The architecture has heads, the files have none; or the architecture has none."""
    target, _ = pairs()
    config = json.loads((trained.folder / "config.json").read_text())
    tensors = load_file(trained.folder / "model.safetensors")
    save_file({n: t for n, t in tensors.items() if not n.startswith("mtp.")}, tmp_path / "model.safetensors")
    draft = ExecutorConfig(model=tmp_path, hardware=hardware, limits=rounded(LIMITS, hardware), role=Role.DRAFT)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match=r"does not fit Qwen3NextMTP: \d+ missing: mtp\.fc\.weight|missing: mtp"):
        ModelExecutor.create(draft, share_with=target)
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(
        UnsupportedError, match=r"no draft head for architecture 'LlamaForCausalLM'; supported: .*Qwen3Next"
    ):
        ModelExecutor.create(draft, share_with=target)


def test_a_draft_with_recurrent_layers_is_named(pairs: Callable[..., Pair]) -> None:
    """Its states could not be taken back: the target stands in for one."""
    target, _ = pairs()
    with pytest.raises(UnsupportedError, match=r"model\.layers\.0\.linear_attn is recurrent; a draft cannot take back"):
        check_layers(target.model)
