"""The taped runner: sizes, counters, and that a replayed step runs no Python of the model."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from trunnion.config import ExecutorConfig
from trunnion.contract import COUNT_FIELDS, BatchCounts, Limits
from trunnion.runner.model_executor import ModelExecutor
from trunnion_cpu.methods import MOST_ROWS
from trunnion_cpu.native import Native, native
from trunnion_cpu.packed_weights import PAYS
from trunnion_cpu.runner import MAX_TAPED_TOKENS, taped_sizes
from trunnion_cpu.torch_work import is_torch_work

HIDDEN, HEADS, VOCAB, BLOCK = 32, 4, 131, 4
LIMITS = Limits(max_num_tokens=80, max_num_seqs=8, max_model_len=64, max_logits_rows=8, block_size=BLOCK)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "float32",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import json

    path = tmp_path_factory.mktemp("llama")
    generator = torch.Generator().manual_seed(3)
    tensors = {"model.embed_tokens.weight": torch.randn(VOCAB, HIDDEN, generator=generator)}
    tensors["model.norm.weight"] = torch.ones(HIDDEN)
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{norm}.weight"] = torch.ones(HIDDEN)
        for name in (*(f"self_attn.{part}_proj" for part in "qkvo"), "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
            tensors[f"{prefix}.{name}.weight"] = torch.randn(HIDDEN, HIDDEN, generator=generator) * 0.2
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


@pytest.fixture
def executor(folder: Path) -> ModelExecutor:
    made = ModelExecutor.create(ExecutorConfig(model=folder, hardware="cpu", limits=LIMITS))
    made.allocate_kv_cache([64 * 8 // BLOCK + 1])
    return made


def fill(executor: ModelExecutor, contexts: list[int], query: int = 1, buffer_set: int = 0) -> BatchCounts:
    """Requests with `query` tokens each, each in blocks of its own, logits of each last token."""
    lent = executor.input_buffers()[buffer_set]
    lent.storage.fill_(-12345)
    fields, width = lent.fields, 64 // BLOCK
    for row, context in enumerate(contexts):
        positions = torch.arange(context, context + query, dtype=torch.int32)
        tokens = slice(row * query, (row + 1) * query)
        blocks = torch.arange(1 + row * width, 1 + (row + 1) * width, dtype=torch.int32)
        fields["input_ids"][tokens] = (positions * 7 + row) % VOCAB
        fields["positions"][tokens] = positions
        fields["groups[0].block_table"][row] = blocks
        fields["groups[0].slot_mapping"][tokens] = blocks[(positions // BLOCK).long()] * BLOCK + positions % BLOCK
        fields["groups[0].kv_start"][row] = 0
        fields["seq_lens"][row] = context + query
        fields["logits_indices"][row] = (row + 1) * query - 1
    fields["query_start_loc"][: len(contexts) + 1] = torch.arange(len(contexts) + 1, dtype=torch.int32) * query
    counts = BatchCounts(
        num_tokens=len(contexts) * query,
        num_reqs=len(contexts),
        num_logits=len(contexts),
        num_decodes=len(contexts) if query == 1 else 0,
        max_query_len=query,
        max_seq_len=max(contexts) + query,
    )
    for index, name in enumerate(COUNT_FIELDS):
        lent.counts[index] = getattr(counts, name)
    return counts


def _lines(play: Any) -> list[str]:
    """Names of what a tape calls, in order."""
    called = [play.__globals__.get(name) for name in play.__code__.co_names]
    names = [getattr(value, "__name__", str(value)) for value in called if callable(value)]
    return [name.partition(".")[0] for name in names]


@pytest.mark.skipif(not isinstance(native(), Native), reason="no native operators")
def test_the_report_says_what_is_packed(folder: Path) -> None:
    """In bfloat16; the report says what is packed: q, k, v as one, o, gate and up as one, down, and the tied head.

    Ids are looked up within the one line that a step is played in, and are those of the step.
    """
    made = ModelExecutor.create(ExecutorConfig(model=folder, hardware="cpu", dtype="bfloat16", limits=LIMITS))
    made.allocate_kv_cache([64 * 8 // BLOCK + 1])
    fill(made, [0, 0, 0], query=5)
    eager = made.execute_set(0).logits.clone()
    line = made.warm_up().implementations["weights packed for products"]
    fill(made, [0, 0, 0], query=5)
    torch.testing.assert_close(made.execute_set(0).logits, eager, rtol=2e-2, atol=2e-2)
    found = native()
    if not isinstance(found, Native) or found.isa not in PAYS:
        assert line.startswith("no: ")
    else:
        padded = 192
        packed = (2 * (3 + 1 + 2 + 1) * HIDDEN + padded) * HIDDEN * 2
        assert line == f"{packed:,} bytes"
        for play in made._runner._bodies.values():
            assert _lines(play) == ["run"]
        fill(made, [8, 8, 8], query=5)
        replayed = made.execute_set(0).logits.clone()
        made._runner.close()
        assert made.counters.replays == 2
        fill(made, [8, 8, 8], query=5)
        torch.testing.assert_close(made.execute_set(0).logits, replayed, rtol=2e-2, atol=2e-2)
        assert made.counters.replays == 2


@pytest.mark.parametrize("limit", [1, 3, 8, 12, 64, 100])
def test_sizes_are_exact_at_first_and_end_at_the_limit(limit: int) -> None:
    sizes = taped_sizes(limit)
    assert sizes[: min(limit, 8)] == tuple(range(1, min(limit, 8) + 1))
    assert sizes[-1] == min(limit, MAX_TAPED_TOKENS)


def test_small_steps_replay_and_large_ones_say_why_not(executor: ModelExecutor) -> None:
    report = executor.warm_up()
    assert "64 tokens" in report.captured and "1 tokens" in report.captured
    fill(executor, [0, 0, 0], query=20)
    executor.execute_set(0)
    assert (executor.counters.replays, executor.counters.padded_tokens) == (1, 4)
    fill(executor, [0, 0, 0, 0], query=17)
    executor.execute_set(0)
    assert executor.counters.replays == 1
    assert dict(executor.counters.eager) == {"more than 64 tokens or 8 rows of logits": 1}


def test_a_replay_gives_what_the_model_gives(executor: ModelExecutor) -> None:
    """Batches of 8, 5 and 8 again: padding of the one is gone in the next."""
    steps: list[tuple[list[int], int]] = [([0] * 8, 5), ([5] * 5, 3), ([8] * 3, 1), ([5] * 8, 1), ([6] * 8, 2)]

    def run() -> list[torch.Tensor]:
        rows = []
        for contexts, query in steps:
            fill(executor, contexts, query)
            rows.append(executor.execute_set(0).logits.clone())
        return rows

    eager = run()
    assert executor.counters.replays == 0, "nothing is recorded before warm_up"
    assert dict(executor.counters.eager) == {"warm_up has not run": len(steps)}
    executor.warm_up()
    replayed = run()
    assert executor.counters.replays == len(steps)
    for ours, theirs in zip(replayed, eager, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_the_layers_of_a_native_step_are_one_line(executor: ModelExecutor) -> None:
    """Embeddings are torch's; all behind them is played by the library in one call."""
    if not isinstance(native(), Native) or MOST_ROWS[native().isa, torch.float32] < MAX_TAPED_TOKENS:
        pytest.skip("torch computes in these steps")
    executor.warm_up()
    for play in executor._runner._bodies.values():
        assert _lines(play) == ["embedding", "copy_", "run"]


def test_both_buffer_sets_replay_the_same_tapes(executor: ModelExecutor) -> None:
    executor.warm_up()
    fill(executor, [0, 0], buffer_set=0)
    fill(executor, [0, 0], buffer_set=1)
    first = executor.execute_set(0).logits
    second = executor.execute_set(1).logits
    assert first.data_ptr() != second.data_ptr()
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_a_replayed_step_runs_no_python_of_the_model(executor: ModelExecutor) -> None:
    """200 steady decode steps: 200 replays, one plan per group and step, no frame of a model or layer."""
    executor.warm_up()
    modules: set[str] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            modules.add(str(frame.f_globals.get("__name__", "")))

    plans = executor.counters.plans
    sys.setprofile(note)
    try:
        for step in range(200):
            fill(executor, [step % 60] * 4)
            executor.execute_set(0)
    finally:
        sys.setprofile(None)
    assert executor.counters.replays == 200
    assert not executor.counters.eager
    assert executor.counters.plans - plans == 200
    assert "trunnion_cpu.runner" in modules, "the profile hook sees nothing"
    assert not [name for name in modules if name.startswith(("trunnion_models", "trunnion.layers"))]


def test_warm_up_is_not_seen_by_the_first_step(folder: Path) -> None:
    """The first decode after warm-up equals the one of an executor that never warmed up."""
    rows = []
    for warm in (False, True):
        executor = ModelExecutor.create(ExecutorConfig(model=folder, hardware="cpu", limits=LIMITS))
        executor.allocate_kv_cache([64 * 8 // BLOCK + 1])
        if warm:
            executor.warm_up()
        fill(executor, [0, 0], query=9)
        executor.execute_set(0)
        fill(executor, [9, 9])
        rows.append(executor.execute_set(0).logits.clone())
    torch.testing.assert_close(rows[0], rows[1], rtol=1e-4, atol=1e-5)


def test_native_steps_leave_cores_to_native_operators(executor: ModelExecutor) -> None:
    """Replayed or not: all products of this model's steps are native, where few enough rows are torch's to multiply."""
    found = native()
    if not isinstance(found, Native) or MOST_ROWS[found.isa, torch.float32] < LIMITS.max_num_tokens:
        pytest.skip("torch multiplies in these steps")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        report = executor.warm_up()
        assert report.implementations["threads"] == "2; in replayed steps torch's own operators have one of them"
        runner, seen = executor._runner, []
        play, forward = runner._bodies[2], runner.forward
        runner._bodies[2] = lambda: (seen.append(torch.get_num_threads()), play())[1]
        runner.forward = lambda step: (seen.append(torch.get_num_threads()), forward(step))[1]
        fill(executor, [3, 4])
        executor.execute_set(0)
        fill(executor, [0, 0, 0, 0], query=17)
        executor.execute_set(0)
        assert (seen, torch.get_num_threads()) == ([1, 1], 2)
        runner._torch_works = True
        executor.execute_set(0)
        assert seen == [1, 1, 2]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("call", "is_work"),
    [
        (torch.ops.aten.mm.default, True),
        (torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default, True),
        (torch.ops.aten.add.Tensor, False),
        (torch.ops.aten.copy_.default, False),
        (torch.ops.trunnion.gated_delta_rule.default, True),
        (torch.ops.trunnion.topk_softmax.default, False),
        (print, False),
    ],
    ids=str,
)
def test_work_of_torch(call: Any, is_work: bool) -> None:
    """Of what is not known, torch's threads are not taken away."""
    assert is_torch_work([torch.ops.aten.view.default, call]) == is_work
