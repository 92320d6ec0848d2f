"""What a decoder shows a draft of its inside: the residual stream between layers, as transformers has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.conformance.batches import block_size_for

from trunnion import registry
from trunnion.config import ExecutorConfig
from trunnion.contract import Limits
from trunnion.interfaces.runner import Mode
from trunnion.layers.aux_hidden_states import AuxHiddenStates
from trunnion.runner.model_executor import ModelExecutor

from .cases import cards, load_hardware
from .hf_reference import build_reference, load_reference
from .host_double import Chunk, HostDouble

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
MAX_NUM_TOKENS = 24


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "execution" in metafunc.fixturenames:
        name = load_hardware(str(metafunc.config.getoption("--hardware")))
        ways = registry.hardware(name).execution_modes or (None,)
        metafunc.parametrize("execution", ways, ids=[way.value if way else "default" for way in ways])


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The family's quick card with random weights."""
    (card,) = (card for card in cards() if card.name == f"{request.param}-quick")
    build_reference(card, torch.float32, tmp_path)
    return tmp_path


@pytest.fixture
def executor(folder: Path, execution: Mode | None, pytestconfig: pytest.Config) -> Iterator[ModelExecutor]:
    name = load_hardware(str(pytestconfig.getoption("--hardware")))
    package = registry.hardware(name)
    limits = Limits(
        max_num_tokens=MAX_NUM_TOKENS,
        max_num_seqs=3,
        max_model_len=64,
        max_logits_rows=MAX_NUM_TOKENS,
        block_size=block_size_for(package, 4),
    )
    config = ExecutorConfig(model=folder, hardware=name, limits=limits, tuning_seconds=0.0)
    made = ModelExecutor.create(config, package if execution is None else package.limited_to(execution))
    yield made
    made.close()


@torch.inference_mode()
def streams(folder: Path, tokens: list[int]) -> torch.Tensor:
    """[layers + 1, tokens, hidden_size]: before each layer, and what the final norm takes."""
    model, seen = load_reference(folder, torch.float32), []
    for layer in model.model.layers:
        layer.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0][0]))
    model.model.norm.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0][0]))
    model(torch.tensor([tokens]), use_cache=False)
    return torch.stack(seen)


def test_states_are_the_residual_stream_of_transformers(executor: ModelExecutor, folder: Path) -> None:
    """Every number, one of them twice, in any order; chunks and decodes of several requests side by side."""
    (aux,) = (module for module in executor.model.modules() if isinstance(module, AuxHiddenStates))
    layers = [aux.num_layers, *range(aux.num_layers), 1]
    rows = torch.full((MAX_NUM_TOKENS, len(layers) * aux.hidden_size), torch.nan, device=executor.device)
    aux.bind(layers, rows)
    host = HostDouble(executor, 40, executor.device)
    texts = [[5, 9, 77, 3, 12, 40, 8, 130, 2], [64, 1, 90, 17, 33, 28], [7, 7, 101, 55]]
    expected = [streams(folder, text)[layers].transpose(0, 1).flatten(1) for text in texts]
    requests = [host.add(text) for text in texts]
    for counts in ([5, 4, 1], [2, 1, 1], [1, 1, 1], [1, 0, 1]):
        live = [(r, count, whole) for r, count, whole in zip(requests, counts, expected, strict=True) if count]
        starts = [r.computed for r, _, _ in live]
        rows.fill_(torch.nan)
        host.step([Chunk(r, count) for r, count, _ in live])
        for (_, count, whole), start, first in zip(live, starts, host.first_rows, strict=True):
            found = rows[first : first + count].cpu()
            torch.testing.assert_close(found, whole[start : start + count], rtol=1e-4, atol=1e-4)


def test_a_number_that_no_layer_has_is_named() -> None:
    aux = AuxHiddenStates(4, 8)
    with pytest.raises(ValueError, match=r"no auxiliary hidden states after layer 5; choices: 0 \.\.\. 4"):
        aux.bind([2, 5], torch.zeros(3, 16))
