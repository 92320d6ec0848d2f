"""An EAGLE-3 draft beside its target: what it reads between layers, what it shares, and text that does not show it."""

from __future__ import annotations

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
from trunnion.contract import Limits, Role
from trunnion.errors import UnsupportedError, WeightsError
from trunnion.interfaces.runner import Mode
from trunnion.runner.model_executor import ModelExecutor
from trunnion_models.gemma3.card import CARDS as GEMMA3

from .cases import load_hardware
from .draft_double import DraftChunk, DraftDouble, SpeculatingHost, make_pair
from .eagle3_reference import streams
from .hf_reference import build_reference
from .host_double import Chunk, HostDouble
from .trained_eagle3 import SIZES, TrainedEagle3, save_trained_eagle3

NUM_DRAFTS = 3
NUM_BLOCKS = 100
Pair = tuple[ModelExecutor, ModelExecutor]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every way in which the package executes steps."""
    if "execution" in metafunc.fixturenames:
        name = load_hardware(str(metafunc.config.getoption("--hardware")))
        ways = registry.hardware(name).execution_modes or (None,)
        metafunc.parametrize("execution", ways, ids=[way.value if way else "default" for way in ways])


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedEagle3:
    return save_trained_eagle3(tmp_path_factory.mktemp("eagle3"))


@pytest.fixture(scope="session")
def hardware(pytestconfig: pytest.Config) -> str:
    return load_hardware(str(pytestconfig.getoption("--hardware")))


@pytest.fixture(scope="session")
def limits(hardware: str) -> Limits:
    return Limits(
        max_num_tokens=24,
        max_num_seqs=4,
        max_model_len=64,
        max_logits_rows=24,
        block_size=block_size_for(registry.hardware(hardware), 4),
        max_decode_query_len=1 + NUM_DRAFTS,
    )


@pytest.fixture
def pairs(trained: TrainedEagle3, hardware: str, limits: Limits) -> Iterator[Callable[..., Pair]]:
    """Makes targets with their drafts, and closes them."""
    made: list[ModelExecutor] = []

    def make(execution: Mode | None = None, draft_model: Path = trained.draft_model) -> Pair:
        package = registry.hardware(hardware)
        package = package if execution is None else package.limited_to(execution)
        pair = make_pair(trained.folder, hardware, package, limits, draft_model=draft_model, tuning_seconds=0.0)
        made.extend(pair)
        return pair

    yield make
    for executor in reversed(made):
        executor.close()


def prompts_of(*lengths: int, seed: int = 3) -> list[list[int]]:
    rng = random.Random(seed)
    return [rng.choices(range(1, 131), k=length) for length in lengths]


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.float().cpu(), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_speculation_gives_the_greedy_text(
    trained: TrainedEagle3, pairs: Callable[..., Pair], execution: Mode | None
) -> None:
    """Chunked prefill, short drafts, batches that accept unevenly, and a target that says what no draft can."""
    host = SpeculatingHost(*pairs(execution), NUM_DRAFTS, num_blocks=NUM_BLOCKS)
    prompts = prompts_of(9, 1, 17, 4)
    texts = host.run(prompts, 16)
    assert texts == [trained.greedy(prompt, 16) for prompt in prompts]
    assert any(len(step) > 1 for step in host.accepted), "no batch has accepted unevenly"
    kept = sum(accepted * count for step in host.accepted for accepted, count in step.items())
    assert kept > 0.2 * sum(step.total() for step in host.accepted), "few drafts came true"


def test_drafts_are_those_of_plain_torch(
    trained: TrainedEagle3, pairs: Callable[..., Pair], execution: Mode | None
) -> None:
    """A prompt, then draft after draft on the draft's own states; logits by the target's tokens."""
    target, draft = pairs(execution)
    host, follower = HostDouble(target, NUM_BLOCKS, target.device), DraftDouble(draft, NUM_BLOCKS, draft.device)
    (tokens,) = prompts_of(13)
    host.step([Chunk(host.add(tokens), 12, ())])
    request = follower.add(tokens[1:])
    (logits,) = follower.draft([DraftChunk(request, 12, (11,), hidden_rows=range(12))], 0)
    drafts, rows = [int(logits.argmax())], [logits]
    for row in (11, 0, 0):
        request.tokens = [*request.tokens, drafts[-1]]
        (logits,) = follower.draft([DraftChunk(request, 1, hidden_rows=[row])], 1)
        drafts.append(int(logits.argmax()))
        rows.append(logits)
    assert drafts == trained.draft(tokens, 4)
    found, said = torch.cat(rows), trained.token_ids
    assert_near(found[:, said], trained.draft_logits(tokens, 4))
    assert found.index_fill(1, said, -torch.inf).isneginf().all(), "a token that cannot be drafted has a logit"


def test_a_draft_takes_combined_states_and_then_its_own(
    trained: TrainedEagle3, pairs: Callable[..., Pair], execution: Mode | None
) -> None:
    """The target keeps the states before layers 2, 3 and 3 of 6, side by side, and not what it returns."""
    target, draft = pairs(execution)
    host, follower = HostDouble(target, NUM_BLOCKS, target.device), DraftDouble(draft, NUM_BLOCKS, draft.device)
    (tokens,) = prompts_of(9)
    ids = torch.tensor([tokens])
    states = streams(trained.target, ids[:, :-1])
    with torch.inference_mode():
        hidden = trained.head.combine(states)
        drafted = trained.head(trained.head.embed(ids[:, 1:], trained.target), hidden)
    taken = draft._inputs.hidden_states
    assert target.hidden is not None and draft.hidden is not None and taken is not None
    host.step([Chunk(host.add(tokens), 8, ())])
    assert_near(target.hidden.rows[:8], torch.cat((states[2], states[3], states[3]), dim=-1)[0])
    request = follower.add(tokens[1:])
    follower.draft([DraftChunk(request, 8, (7,), hidden_rows=range(8))], 0)
    assert_near(taken.rows[:8], hidden[0])
    assert_near(draft.hidden.rows[:8], drafted[0])
    request.tokens = [*request.tokens, 5]
    follower.draft([DraftChunk(request, 1, hidden_rows=[7])], 1)
    assert_near(taken.rows[:1], drafted[0, 7:])


def test_what_the_checkpoint_lacks_is_the_targets(trained: TrainedEagle3, pairs: Callable[..., Pair]) -> None:
    """One embedding, by identity, counted once; a head of its own; three states for each token."""
    target, draft = pairs()
    assert draft.model.model.embed_tokens is target.model.model.embed_tokens
    report = draft.weight_report
    assert report.shared == ("model.embed_tokens.weight",)
    assert dict(report.ignored) == {"d2t says the same the other way round": ("t2d",)}
    stored = load_file(trained.draft_model / "model.safetensors")
    assert report.num_used == len(stored) - 1
    own = [p for name, p in draft.model.named_parameters() if name not in report.shared]
    buffers = sum(buffer.nbytes for buffer in draft.model.buffers())
    assert draft.memory_profile().weights == sum(p.nbytes for p in own) + buffers
    assert target.hidden is not None and draft.hidden is not None
    assert target.hidden.rows.shape == (24, 3 * 64) and draft.hidden.rows.shape == (24, 64)


def rewritten(trained: TrainedEagle3, folder: Path, *, drop: str = "", **changes: Any) -> Path:
    """The draft's checkpoint with other fields (`...` = none) and tensors."""
    config = json.loads((trained.draft_model / "config.json").read_text())
    fields = {name: value for name, value in changes.items() if not isinstance(value, torch.Tensor)}
    config = {name: value for name, value in (config | fields).items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(trained.draft_model / "model.safetensors")
    tensors |= {name: value for name, value in changes.items() if isinstance(value, torch.Tensor)}
    save_file({name: t for name, t in tensors.items() if name != drop}, folder / "model.safetensors")
    return folder


def test_an_embedding_of_its_own_is_used(trained: TrainedEagle3, pairs: Callable[..., Pair], tmp_path: Path) -> None:
    own = torch.randn(SIZES["vocab_size"], SIZES["hidden_size"])
    _, draft = pairs(draft_model=rewritten(trained, tmp_path, **{"embed_tokens.weight": own}))
    assert draft.weight_report.shared == ()
    assert torch.equal(draft.model.model.embed_tokens.weight[: len(own)].cpu(), own)


def test_it_runs_in_its_targets_dtype(trained: TrainedEagle3, pairs: Callable[..., Pair], tmp_path: Path) -> None:
    """The authors publish float16 for targets in bfloat16."""
    target, draft = pairs(draft_model=rewritten(trained, tmp_path, dtype="float16"))
    assert target.hidden is not None and draft.hidden is not None
    assert draft.hidden.rows.dtype == target.hidden.rows.dtype == torch.float32


def d2t(index: int, token: int) -> torch.Tensor:
    """Differences by which the draft's token `index` is `token`."""
    found = torch.zeros(110, dtype=torch.int64)
    found[index] = token - index
    return found


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "another width": (
        {"hidden_size": 32, "head_dim": 16},
        ValueError,
        "^hidden_size 32 of the draft is not its target's, 64",
    ),
    "another target": (
        {"target_hidden_size": 48},
        ValueError,
        "^target_hidden_size 48 of the draft is not its target's, 64",
    ),
    "another vocabulary": ({"vocab_size": 140}, ValueError, "^vocab_size 140 of the draft is not its target's, 131"),
    "a layer that is not there": (
        {"eagle_aux_hidden_state_layer_ids": [1, 2, 7]},
        UnsupportedError,
        r"reads \[1, 2, 7\]: no auxiliary hidden states after layer 7; choices: 0 \.\.\. 6",
    ),
    "fewer layers": (
        {"eagle_aux_hidden_state_layer_ids": [1, 2]},
        WeightsError,
        r"wrong shape: fc\.weight \[64, 192\] \(the model wants \[64, 128\]\)",
    ),
    "a token beyond the vocabulary": (
        {"d2t": d2t(7, 131)},
        WeightsError,
        r"d2t: token 7 of the draft is token 131; .* 130",
    ),
    "a token below it": (
        {"d2t": d2t(0, -1)},
        WeightsError,
        r"d2t: token 0 of the draft is token -1; choices: 0 \.\.\. 130",
    ),
    "a token twice": ({"d2t": d2t(9, 3)}, WeightsError, "d2t: several tokens of the draft are token 3"),
    "no tokens": ({"drop": "d2t"}, WeightsError, "1 missing: draft_vocabulary.d2t"),
    "no head": ({"drop": "lm_head.weight"}, WeightsError, r"1 missing: lm_head\.weight"),
    "too short": ({"max_position_embeddings": 32}, ValueError, "above the 32 tokens that the draft's positions reach"),
    "no draft": ({"architectures": ["BertModel"]}, UnsupportedError, "unknown architecture 'BertModel' of a draft"),
}


@pytest.mark.parametrize(("changes", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_a_draft_that_does_not_fit_is_named(
    changes: dict[str, Any],
    error: type[Exception],
    message: str,
    trained: TrainedEagle3,
    pairs: Callable[..., Pair],
    tmp_path: Path,
) -> None:
    with pytest.raises(error, match=message) as caught:
        pairs(draft_model=rewritten(trained, tmp_path, **changes))
    assert "\n" not in str(caught.value)


def test_a_target_that_keeps_none_is_named(
    trained: TrainedEagle3, hardware: str, limits: Limits, tmp_path: Path
) -> None:
    build_reference(GEMMA3[0], torch.float32, tmp_path)
    options: dict[str, Any] = {"hardware": hardware, "limits": limits, "draft_model": trained.draft_model}
    with pytest.raises(UnsupportedError, match=r"reads states between .*, and Gemma3ForCausalLM keeps none"):
        ModelExecutor.create(ExecutorConfig(model=tmp_path, keep_hidden=True, **options))


def test_both_executors_must_be_told(trained: TrainedEagle3, hardware: str, limits: Limits) -> None:
    options: dict[str, Any] = {"model": trained.folder, "hardware": hardware, "limits": limits}
    with pytest.raises(ValueError, match=r"draft_model is .*, and keep_hidden is not set: it reads what is kept"):
        ExecutorConfig(**options, draft_model=trained.draft_model)
    target = ModelExecutor.create(ExecutorConfig(**options, keep_hidden=True))
    with pytest.raises(ValueError, match=r"draft_model '.*draft' of the draft is not its target's, 'None'"):
        ModelExecutor.create(
            ExecutorConfig(**options, draft_model=trained.draft_model, role=Role.DRAFT), share_with=target
        )
    target.close()
