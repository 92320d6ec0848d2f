"""The graph runner on the simulated device, or a real one: every step replays, at addresses that stay."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from tests.conformance.test_executor import batch_of, run
from tests.conformance.tiny_llama import write_tiny_llama

from trunnion.config import ExecutorConfig
from trunnion.contract import BatchCounts, Limits
from trunnion.runner.address_guard import AddressError
from trunnion.runner.model_executor import ModelExecutor
from trunnion_cuda.hardware import CudaHardware

LIMITS = Limits(max_num_tokens=8, max_num_seqs=4, max_model_len=32, max_logits_rows=4, block_size=4)


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> ModelExecutor:
    """A tiny decoder in bfloat16, warmed up."""
    folder = write_tiny_llama(tmp_path_factory.mktemp("llama"))
    config = ExecutorConfig(model=folder, hardware="cuda", limits=LIMITS, dtype="bfloat16")
    found = ModelExecutor.create(config, CudaHardware())
    found.allocate_kv_cache([40])
    report = found.warm_up()
    assert not [reason for mode, reason in report.eager.items() if mode != "images"], report.eager
    return found


@pytest.mark.parametrize("lengths", [(1,), (1, 1, 1, 1), (5, 3), (8,), (3, 1, 1), ()], ids=str)
def test_every_step_within_the_limits_replays(executor: ModelExecutor, lengths: tuple[int, ...]) -> None:
    before = executor.counters.replays
    run(executor, batch_of(*lengths))
    assert executor.counters.replays == before + 1
    assert not executor.counters.eager


def test_uniform_decodes_run_in_one_graph(executor: ModelExecutor) -> None:
    """One launch for the step, where pieces are several."""
    simulation = pytest.importorskip("cuda_simulator").simulation()
    batch = batch_of(1, 1, contexts=(3, 4))
    batch.counts.num_decodes = 2
    before = simulation.replays
    run(executor, batch)
    assert simulation.replays == before + 1
    run(executor, batch_of(2, 1))
    assert simulation.replays > before + 3


def test_an_input_elsewhere_is_refused(executor: ModelExecutor) -> None:
    """A graph would go on reading the old one."""
    runner = executor._runner
    bucket = runner.select(BatchCounts())
    step = executor._inputs.stage(0, BatchCounts(num_tokens=1, num_reqs=1), dataclasses.replace(bucket, num_tokens=1))
    moved = dataclasses.replace(step.device, input_ids=step.device.input_ids.clone())
    with pytest.raises(AddressError, match="input_ids lies at"):
        runner.run(dataclasses.replace(step, device=moved), bucket)


def test_a_device_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match=r"device_index 7 does not exist on 'cuda'; choices: 0 \.\.\. "):
        CudaHardware().initialize(7)


def test_the_environment_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = {problem.what: problem.fatal for problem in CudaHardware().check_environment()}
    assert found == {"nvcc": False, "C compiler": False}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = {problem.what: problem.fatal for problem in CudaHardware().check_environment()}
    assert found == {"CUDA device": True, "nvcc": False, "C compiler": False}
