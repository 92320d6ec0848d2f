"""The split way: modules that run once per request, with their states in slots that the host hands out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.matrix.host_double import Chunk, HostDouble
from transformers import AutoModelForCausalLM

from trunnion.adapter.units import BatchStore, BoundStore
from trunnion.adapter.way import Way
from trunnion.config import ExecutorConfig
from trunnion.contract import CacheKind, Limits
from trunnion.errors import UnsupportedError
from trunnion.reference.layer_state import LayerStateGroup
from trunnion.runner.model_executor import ModelExecutor

from .sweep import PASSED, try_type
from .tiny_configs import tiny_config

WAYS = {
    "falcon": "split, 4 of 4 mixers",
    "doge": "split, 4 of 4 mixers",
    "bamba": "split, ",
    "kimi_linear": "split, ",
    "jamba": "token by token where a request goes on",
    "deepseek_v32": "split, 4 of 4 mixers",
    "bloom": "whole, the decoder runs once per request",
    "mamba": "split, 4 of 4 mixers run once per request, token by token",
    "stablelm": "flat, all requests of a step in one row",
}


def load(model_type: str, folder: Path, **limits: int) -> ModelExecutor:
    torch.manual_seed(11)
    module = AutoModelForCausalLM.from_config(tiny_config(model_type))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0.0, 0.1)
    module.save_pretrained(folder)
    sizes = {"max_num_tokens": 32, "max_num_seqs": 2, "max_model_len": 32, "max_logits_rows": 32, "block_size": 4}
    settings = ExecutorConfig(model=folder, hardware="cpu", limits=Limits(**sizes | limits), dtype="float32")
    return ModelExecutor.create(settings)


@pytest.mark.parametrize("model_type", ["falcon", "doge", "bamba", "jamba", "bloom", "deepseek_v32"])
def test_states_and_masks_are_those_of_transformers(model_type: str) -> None:
    outcome = try_type(model_type)
    assert outcome.outcome == PASSED, outcome


@pytest.mark.parametrize("model_type", WAYS)
def test_the_way_is_said(model_type: str, tmp_path: Path) -> None:
    executor = load(model_type, tmp_path)
    lines = [line for line in executor.weight_report.lines() if WAYS[model_type] in line]
    assert len(lines) == 1 and lines[0].startswith("adapter: "), executor.weight_report.lines()
    executor.close()


def test_states_are_groups_of_the_host(tmp_path: Path) -> None:
    executor = load("bamba", tmp_path)
    groups = {group.kind: group for group in executor.kv_cache_spec().groups}
    state = groups[CacheKind.RECURRENT]
    assert {tensor.name for tensor in state.tensors} == {"conv_state_0", "recurrent_state_0"}
    assert state.block_size == 0 and state.max_blocks_per_seq == 1
    assert any(
        f"{state.bytes_per_block:,} bytes of state per request" in line for line in executor.weight_report.lines()
    )
    executor.close()


def test_verification_of_drafts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="max_decode_query_len is 3, at most 1 is possible: what a layer keeps"):
        load("bamba", tmp_path, max_decode_query_len=3)


def run_two(executor: ModelExecutor, first: list[int], second: list[int]) -> list[torch.Tensor]:
    """`first` and `second` side by side, in three steps each, then `first` again in the slots that were freed."""
    host = HostDouble(executor, 20, executor.device)
    one, two = host.add(first), host.add(second)
    rows = [host.step([Chunk(one, 4), Chunk(two, 3)]), host.step([Chunk(two, 1), Chunk(one, 1)])]
    rows.append(host.step([Chunk(one, len(first) - 5), Chunk(two, len(second) - 4)]))
    result = [rows[0][0], rows[1][1], rows[2][0]]
    host.finish(one)
    again = host.add(first)
    rows = [host.step([Chunk(again, 4)]), host.step([Chunk(again, 1)]), host.step([Chunk(again, len(first) - 5)])]
    return [torch.cat(result), torch.cat([row[0] for row in rows])]


FIRST, SECOND = [5, 17, 99, 3, 42, 8, 77, 120], [9, 9, 31, 64, 2, 100]


def test_a_slot_of_a_finished_request_is_empty(tmp_path: Path) -> None:
    executor = load("bamba", tmp_path)
    found, again = run_two(executor, FIRST, SECOND)
    torch.testing.assert_close(found, again, rtol=1e-4, atol=1e-5)
    executor.close()


def spoil_fresh(self: LayerStateGroup, request: int) -> bool:
    return False


def spoil_index(self: LayerStateGroup, layer: int, request: int, name: str) -> torch.Tensor:
    return self.caches[layer][name][1:2]


@pytest.mark.parametrize(("name", "fault"), [("is_fresh", spoil_fresh), ("state", spoil_index)])
def test_a_state_of_another_request_shows(
    name: str, fault: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not reset when a slot is used again, or everybody's: the logits differ from a request that is alone."""
    executor = load("bamba", tmp_path)
    monkeypatch.setattr(LayerStateGroup, name, fault)
    found, again = run_two(executor, FIRST, SECOND)
    assert not torch.allclose(found, again, rtol=1e-3, atol=1e-4)
    executor.close()


def test_the_self_test_sees_states_that_are_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundStore, "old_states", lambda self, layer: {})
    with pytest.raises(UnsupportedError, match="split: the self-test is off by"):
        load("bamba", tmp_path)


def test_a_request_goes_on_in_chunks_where_that_is_right(tmp_path: Path) -> None:
    chunks, single = load("bamba", tmp_path / "bamba"), load("jamba", tmp_path / "jamba")
    ways: list[Way] = [executor.model.way for executor in (chunks, single)]  # type: ignore[union-attr]
    assert [way.one_by_one for way in ways] == [False, True]
    for executor in (chunks, single):
        executor.close()


def count_calls(executor: ModelExecutor, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the modules that run once per request are called, by name, from here on."""
    counts: Counter[str] = Counter()

    def counted(forward: Any, name: str) -> Any:
        def count(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return forward(*args, **kwargs)

        return count

    model: Any = executor.model
    for name in model.way.findings.units:
        unit = model.module.get_submodule(name).forward
        monkeypatch.setattr(unit, "_forward", counted(unit._forward, name))
    return counts


@pytest.mark.parametrize(("model_type", "mixers", "calls"), [("bamba", 4, 1), ("mamba", 4, 1), ("falcon", 4, 3)])
def test_decoding_requests_share_a_call_where_states_are_all_that_is_kept(
    model_type: str, mixers: int, calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Falcon's mixers keep rows, of which each request has another number."""
    executor = load(model_type, tmp_path, max_num_seqs=3)
    counts = count_calls(executor, monkeypatch)
    host = HostDouble(executor, 20, executor.device)
    requests = [host.add(ids) for ids in (FIRST, SECOND, FIRST[::-1])]
    host.step([Chunk(each, count) for each, count in zip(requests, (4, 3, 2), strict=True)])
    assert sorted(counts.values()) == [3] * mixers
    counts.clear()
    host.step([Chunk(each, 1) for each in requests])
    assert sorted(counts.values()) == [calls] * mixers
    counts.clear()
    # Two that decode, and one that has a chunk left.
    host.step([Chunk(requests[0], 1), Chunk(requests[2], 2), Chunk(requests[1], 1)])
    chunk_calls = 2 if executor.model.way.one_by_one else 1  # type: ignore[union-attr]
    assert sorted(counts.values()) == [min(calls, 2) + chunk_calls] * mixers
    said = any("all decoding requests in one call" in line for line in executor.weight_report.lines())
    assert said == (calls == 1)
    executor.close()


def test_requests_decode_apart_where_together_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a module mixed the states of a batch."""
    monkeypatch.setattr(BatchStore, "put_back", lambda self: None)
    executor = load("bamba", tmp_path)
    assert not executor.model.way.batched  # type: ignore[union-attr]
    executor.close()


def test_a_model_that_asks_for_values_runs_eager(tmp_path: Path) -> None:
    executor = load("longcat_flash", tmp_path)
    host = HostDouble(executor, 20, executor.device)
    reason = "every step eager: the module asks the device for values (aten::nonzero)"
    assert host.report.eager == {"decode": reason, "mixed": reason} and not host.report.captured
    host.step([Chunk(host.add(FIRST), 4)])
    assert executor.counters.eager == {reason: 1}
    executor.close()
