"""The executor's calls on the package under test: their order, what is refused, and what a step may not create."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from trunnion.config import ExecutorConfig
from trunnion.contract import BatchCounts, BatchTensors, ForwardBatch, ForwardOutput, GroupTensors, Limits
from trunnion.errors import BatchRefused
from trunnion.interfaces.hardware import Hardware
from trunnion.reference import ReferenceHardware
from trunnion.runner.model_executor import ModelExecutor

from .batches import block_size_for
from .tiny_llama import write_tiny_llama

LIMITS = Limits(max_num_tokens=16, max_num_seqs=4, max_model_len=32, max_logits_rows=4, block_size=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of two layers with random weights."""
    return write_tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def executor(hardware: Hardware, folder: Path) -> ModelExecutor:
    """Created, nothing bound."""
    limits = dataclasses.replace(LIMITS, block_size=block_size_for(hardware, LIMITS.block_size))
    return ModelExecutor.create(ExecutorConfig(model=folder, hardware=hardware.name, limits=limits))


def batch_of(*lengths: int, contexts: tuple[int, ...] | None = None, block_size: int = 4) -> ForwardBatch:
    """One request per length, each in blocks of its own, logits of each last token."""
    contexts = contexts or (0,) * len(lengths)
    width = LIMITS.max_model_len // block_size
    bounds, slots, positions, table = [0], [], [], []
    for index, (length, context) in enumerate(zip(lengths, contexts, strict=True)):
        bounds.append(bounds[-1] + length)
        blocks = [1 + index * width + offset for offset in range(width)]
        table.append(blocks)
        for position in range(context, context + length):
            slots.append(blocks[position // block_size] * block_size + position % block_size)
            positions.append(position)
    seq_lens = [context + length for length, context in zip(lengths, contexts, strict=True)]

    def int32(values: list[int] | list[list[int]]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    counts = BatchCounts(
        num_tokens=bounds[-1],
        num_reqs=len(lengths),
        num_logits=len(lengths),
        max_query_len=max(lengths, default=0),
        max_seq_len=max(seq_lens, default=0),
    )
    used = [blocks[: -(-length // block_size)] for blocks, length in zip(table, seq_lens, strict=True)]
    group = GroupTensors(
        slot_mapping=int32(slots),
        block_table=int32(table).view(len(lengths), -1) if lengths else torch.zeros(0, width, dtype=torch.int32),
        kv_start=int32([0] * len(lengths)),
        kv_indptr=int32([sum(map(len, used[:index])) for index in range(len(used) + 1)]),
        kv_indices=int32([block for blocks in used for block in blocks]),
        kv_last_page_len=int32([(length - 1) % block_size + 1 for length in seq_lens]),
    )
    tensors = BatchTensors(
        input_ids=int32([(7 * position + 3) % 131 for position in positions]),
        positions=int32(positions),
        query_start_loc=int32(bounds),
        seq_lens=int32(seq_lens),
        logits_indices=int32([bound - 1 for bound in bounds[1:]]),
        groups=(group,),
    )
    return ForwardBatch(counts, tensors)


def batch_for(executor: ModelExecutor, *lengths: int, contexts: tuple[int, ...] | None = None) -> ForwardBatch:
    """`batch_of` in blocks of the executor's size."""
    return batch_of(*lengths, contexts=contexts, block_size=executor.config.limits.block_size)


def run(executor: ModelExecutor, batch: ForwardBatch, buffer_set: int = 0) -> ForwardOutput:
    """One step, waited for: only then may the set be filled again, or its output be read."""
    output = executor.execute(batch, buffer_set)
    executor.wait(output.fence)
    return output


def test_the_order_of_calls_is_enforced(executor: ModelExecutor) -> None:
    """Nothing runs before caches are bound; caches are bound once, and only with the right shapes."""
    with pytest.raises(BatchRefused, match="bind_kv_cache"):
        executor.execute(batch_for(executor, 3))
    with pytest.raises(ValueError, match="warm_up"):
        executor.warm_up()
    with pytest.raises(ValueError, match="block 0 is reserved"):
        executor.allocate_kv_cache([1])
    with pytest.raises(ValueError, match="one per cache group"):
        executor.allocate_kv_cache([8, 8])
    caches = [
        [
            {
                tensor.name: torch.zeros(40, *tensor.shape, dtype=tensor.dtype, device=executor.device)
                for tensor in group.tensors
            }
            for _ in group.layers
        ]
        for group in executor.kv_cache_spec().groups
    ]
    name = next(iter(caches[0][1]))
    for wrong, text in (
        (caches[0][1][name].half(), "dtype"),
        (caches[0][1][name][:, :1], "shape"),
        (caches[0][1][name].transpose(1, 2).contiguous().transpose(1, 2), "contiguous"),
    ):
        broken = [[dict(layer) for layer in caches[0]]]
        broken[0][1][name] = wrong
        with pytest.raises(ValueError, match=text):
            executor.bind_kv_cache(broken)
    executor.allocate_kv_cache([40])
    with pytest.raises(ValueError, match="once"):
        executor.allocate_kv_cache([40])
    executor.warm_up()


def test_a_prompt_in_pieces_gives_the_same_logits(executor: ModelExecutor) -> None:
    """Whole, in two chunks, and token by token."""
    executor.allocate_kv_cache([40])
    executor.warm_up()
    whole = run(executor, batch_for(executor, 9)).logits.clone()
    run(executor, batch_for(executor, 5))
    chunked = run(executor, batch_for(executor, 4, contexts=(5,))).logits.clone()
    for position in range(9):
        stepwise = run(executor, batch_for(executor, 1, contexts=(position,))).logits.clone()
    torch.testing.assert_close(chunked, whole, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(stepwise, whole, rtol=1e-4, atol=1e-4)


def test_warm_up_leaves_no_trace(executor: ModelExecutor, hardware: Hardware) -> None:
    """Caches are as they were, the report names what is on the reference."""
    spec = executor.kv_cache_spec().groups[0]
    device = hardware.initialize(0)
    caches = [
        {tensor.name: torch.randn(40, *tensor.shape, dtype=tensor.dtype).to(device) for tensor in spec.tensors}
        for _ in spec.layers
    ]
    before = [{name: tensor.clone() for name, tensor in layer.items()} for layer in caches]
    executor.bind_kv_cache([caches])
    report = executor.warm_up()
    for layer, was in zip(caches, before, strict=True):
        assert all(torch.equal(layer[name], was[name]) for name in was)
    assert set(hardware.on_reference()) <= set(report.on_reference)


def test_an_empty_step_is_valid(executor: ModelExecutor) -> None:
    """T = 0: no logits, nothing written, and the next step is right."""
    executor.allocate_kv_cache([40])
    executor.warm_up()
    assert run(executor, batch_for(executor)).logits.shape == (0, executor.vocab_size)
    assert torch.isfinite(run(executor, batch_for(executor, 3)).logits).all()


def test_what_python_refuses_leaves_the_next_step_right(executor: ModelExecutor) -> None:
    """Shapes, dtypes, layouts and counts are named; nothing of a refused batch is used."""
    executor.allocate_kv_cache([40])
    executor.warm_up()
    good = run(executor, batch_for(executor, 5, 2)).logits.clone()
    faults = {
        "input_ids": lambda batch: setattr(batch.tensors, "input_ids", batch.tensors.input_ids.long()),
        "positions": lambda batch: setattr(batch.tensors, "positions", batch.tensors.positions.repeat(2)[::2]),
        "seq_lens": lambda batch: setattr(batch.tensors, "seq_lens", batch.tensors.seq_lens[:1]),
        "block_table": lambda batch: setattr(batch.tensors.groups[0], "block_table", torch.zeros(4)),
        "kv_start": lambda batch: setattr(batch.tensors.groups[0], "kv_start", None),
        "num_tokens": lambda batch: setattr(batch.counts, "num_tokens", 17),
        "num_reqs": lambda batch: setattr(batch.counts, "num_reqs", -1),
    }
    for field, break_it in faults.items():
        batch = batch_for(executor, 5, 2)
        break_it(batch)
        with pytest.raises(BatchRefused, match=field):
            executor.execute(batch)
        torch.testing.assert_close(run(executor, batch_for(executor, 5, 2)).logits, good, rtol=0, atol=0)


def test_prefix_levels_change_no_result(executor: ModelExecutor) -> None:
    """Two requests that decode behind the same block; refused by name where no group makes use of it."""
    executor.allocate_kv_cache([40])
    executor.warm_up()
    run(executor, batch_for(executor, 6, 7))

    def decode() -> ForwardBatch:
        batch = batch_for(executor, 1, 1, contexts=(6, 7))
        group = batch.tensors.groups[0]
        group.block_table[1, 0] = group.block_table[0, 0]
        group.kv_indices[group.kv_indptr[1]] = group.kv_indices[0]
        return batch

    def with_levels(*, shared: int) -> ForwardBatch:
        batch = decode()
        batch.counts.num_prefixes = 1
        batch.tensors.prefix_indptr = torch.tensor([0, 2], dtype=torch.int32)
        batch.tensors.prefix_lens = torch.tensor([shared], dtype=torch.int32)
        return batch

    expected = run(executor, decode()).logits.clone()
    if not executor.accepts_prefix_levels:
        with pytest.raises(BatchRefused, match="num_prefixes: 1, expected 0"):
            executor.execute(with_levels(shared=4))
    else:
        for shared, steps in ((4, 1), (0, 1)):
            torch.testing.assert_close(run(executor, with_levels(shared=shared)).logits, expected, rtol=1e-4, atol=1e-4)
            assert executor.counters.prefix_level_steps == steps
    torch.testing.assert_close(run(executor, decode()).logits, expected, rtol=1e-5, atol=1e-5)


def test_lent_buffers_stay_where_they_are(executor: ModelExecutor) -> None:
    """A step of the same counts uses the same tensors at the boundary, and logits come in the same rows."""
    executor.allocate_kv_cache([40])
    executor.warm_up()
    first = run(executor, batch_for(executor, 2, 2)).logits
    second = run(executor, batch_for(executor, 2, 2)).logits
    assert first is second
    assert first.data_ptr() == executor.input_buffers()[0].output_rows.data_ptr()
    other_set = run(executor, batch_for(executor, 2, 2), buffer_set=1).logits
    assert other_set.data_ptr() == executor.input_buffers()[1].output_rows.data_ptr() != first.data_ptr()


def test_logits_are_float32_without_padding(executor: ModelExecutor) -> None:
    """The vocabulary of 131 is padded inside the model, never outside."""
    executor.allocate_kv_cache([40])
    executor.warm_up()
    logits = run(executor, batch_for(executor, 3)).logits
    assert logits.dtype == torch.float32
    assert logits.shape == (1, 131)


def test_limits_beyond_the_model_are_refused(hardware: Hardware, folder: Path) -> None:
    """max_model_len is held against max_position_embeddings."""
    limits = Limits(max_num_tokens=16, max_num_seqs=4, max_model_len=65, max_logits_rows=4)
    with pytest.raises(ValueError, match=r"max_model_len 65 .* 64"):
        ModelExecutor.create(ExecutorConfig(model=folder, hardware=hardware.name, limits=limits))


class _InBlocksOf32(ReferenceHardware):
    block_size_multiple = 32


def test_blocks_of_another_size_are_refused(folder: Path) -> None:
    """By name, with the sizes that the package takes."""
    limits = Limits(max_num_tokens=16, max_num_seqs=4, max_model_len=32, max_logits_rows=4, block_size=16)
    config = ExecutorConfig(model=folder, hardware="reference", limits=limits)
    with pytest.raises(ValueError, match="block_size 16 is not for hardware 'reference'; choices: multiples of 32"):
        ModelExecutor.create(config, _InBlocksOf32())
    limits = dataclasses.replace(limits, block_size=64)
    ModelExecutor.create(dataclasses.replace(config, limits=limits), _InBlocksOf32()).close()
