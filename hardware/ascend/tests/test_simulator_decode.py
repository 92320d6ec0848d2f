"""A decode step over a paged cache on the simulated NPU: captured once, and told its lengths by task updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hardware.ascend.tests.simulated import SIMULATION

torch_npu = pytest.importorskip("torch_npu")

DEVICE = torch.device("npu", 0)
HEADS, KV_HEADS, SIZE, BLOCK, BLOCKS = 4, 2, 16, 16, 8
REQUESTS, STEPS = 2, 20
TABLE = torch.tensor([[3, 1], [6, 2]], dtype=torch.int32)


class Decode:
    """One attention layer: writes this step's keys and values, and attends to all so far."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randn(STEPS, REQUESTS, HEADS + 2 * KV_HEADS, SIZE, generator=generator).bfloat16()
        shape = BLOCKS, BLOCK, KV_HEADS, SIZE
        self.key_cache = torch.zeros(shape, dtype=torch.bfloat16, device=DEVICE)
        self.value_cache = torch.zeros(shape, dtype=torch.bfloat16, device=DEVICE)
        self.step_input = torch.zeros(REQUESTS, HEADS + 2 * KV_HEADS, SIZE, dtype=torch.bfloat16, device=DEVICE)
        self.slots = torch.zeros(REQUESTS, dtype=torch.int32, device=DEVICE)
        self.table = TABLE.to(DEVICE)
        self.out = torch.zeros(REQUESTS, 1, HEADS, SIZE, dtype=torch.bfloat16, device=DEVICE)
        self.lse = torch.zeros(1, device=DEVICE)
        self.workspace = torch_npu._npu_fused_infer_attention_score_get_max_workspace(
            *self._inputs(), **self._rest([1])
        )

    def begin(self, step: int) -> list[int]:
        """Fill the inputs of a step; returns its lengths."""
        self.step_input.copy_(self.tokens[step])
        self.slots.copy_(TABLE[:, step // BLOCK] * BLOCK + step % BLOCK)
        return [step + 1] * REQUESTS

    def write(self) -> None:
        _, key, value = self.step_input.split((HEADS, KV_HEADS, KV_HEADS), 1)
        torch_npu.npu_scatter_pa_kv_cache(
            key.contiguous(), value.contiguous(), self.key_cache, self.value_cache, self.slots, cache_mode="Norm"
        )

    def attend(self, lengths: Sequence[int]) -> None:
        torch_npu.npu_fused_infer_attention_score.out(
            *self._inputs(), **self._rest(lengths), workspace=self.workspace, out=[self.out, self.lse]
        )

    def expected(self, step: int) -> torch.Tensor:
        """From the tokens alone, without a cache: [requests, 1, heads, size]."""
        query, key, value = (part.float() for part in self.tokens[: step + 1].split((HEADS, KV_HEADS, KV_HEADS), 2))
        found = torch.nn.functional.scaled_dot_product_attention(
            query[-1:].permute(1, 2, 0, 3), key.permute(1, 2, 0, 3), value.permute(1, 2, 0, 3), enable_gqa=True
        )
        return found.transpose(1, 2)

    def _inputs(self) -> tuple[torch.Tensor, ...]:
        query = self.step_input[:, :HEADS].unsqueeze(1)
        return query, *(cache.view(BLOCKS, BLOCK, -1) for cache in (self.key_cache, self.value_cache))

    def _rest(self, lengths: Sequence[int]) -> dict[str, object]:
        return {
            "block_table": self.table,
            "actual_seq_lengths_kv": list(lengths),
            "num_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "scale": SIZE**-0.5,
            "input_layout": "BSND",
            "block_size": BLOCK,
        }


class AtbDecode(Decode):
    """The same by operators of the Ascend Transformer Boost library."""

    def __init__(self) -> None:
        super().__init__()
        self.workspace = torch_npu._npu_paged_attention_get_workspace(**self._paged([1] * REQUESTS))

    def write(self) -> None:
        _, key, value = self.step_input.split((HEADS, KV_HEADS, KV_HEADS), 1)
        torch_npu._npu_reshape_and_cache(key, value, self.key_cache, self.value_cache, self.slots)

    def attend(self, lengths: Sequence[int]) -> None:
        torch_npu._npu_paged_attention(**self._paged(lengths), workspace=self.workspace)

    def _paged(self, lengths: Sequence[int]) -> dict[str, object]:
        return {
            "query": self.step_input[:, :HEADS],
            "key_cache": self.key_cache,
            "value_cache": self.value_cache,
            "num_kv_heads": KV_HEADS,
            "num_heads": HEADS,
            "scale_value": SIZE**-0.5,
            "block_table": self.table,
            "context_lens": torch.tensor(lengths, dtype=torch.int32),
            "out": self.out.squeeze(1),
        }


EITHER = pytest.mark.parametrize("make", [Decode, AtbDecode], ids=["aclnn", "atb"])


def run(decode: Decode, step: Callable[[list[int]], None]) -> list[float]:
    """The largest error of each step."""
    errors = []
    for index in range(STEPS):
        step(decode.begin(index))
        torch.npu.synchronize()
        errors.append(float((decode.out.cpu().float() - decode.expected(index)).abs().max()))
    return errors


def eager(decode: Decode) -> Callable[[list[int]], None]:
    def step(lengths: list[int]) -> None:
        decode.write()
        decode.attend(lengths)

    return step


class Captured:
    """A graph of the step, captured at length 1."""

    def __init__(self, decode: Decode) -> None:
        self.decode = decode
        self.graph, self.event = torch.npu.NPUGraph(), torch.npu.ExternalEvent()
        self.update_stream = torch.npu.Stream()
        decode.begin(0)
        with torch.npu.graph(self.graph):
            stream = torch.npu.current_stream()
            decode.write()
            self.event.wait(stream)
            self.event.reset(stream)
            torch.npu.graph_task_group_begin(stream)
            decode.attend([1] * REQUESTS)
            self.handle = torch.npu.graph_task_group_end(stream)

    def step(self, lengths: list[int]) -> None:
        self.graph.replay()
        with torch.npu.stream(self.update_stream):
            torch.npu.graph_task_update_begin(self.update_stream, self.handle)
            self.decode.attend(lengths)
            torch.npu.graph_task_update_end(self.update_stream)
            self.event.record(self.update_stream)

    def step_without_update(self, lengths: list[int]) -> None:
        self.event.record(self.update_stream)
        self.graph.replay()


@EITHER
def test_an_eager_decode_is_attention_over_all_tokens(make: type[Decode]) -> None:
    decode = make()
    assert max(run(decode, eager(decode))) < 0.02


@EITHER
@pytest.mark.parametrize("held", [False, True], ids=["at once", "update stream held"])
def test_a_captured_decode_with_updates_is_the_same(make: type[Decode], held: bool) -> None:
    captured = Captured(make())
    with SIMULATION.held(captured.update_stream if held else torch.npu.Stream()):
        assert max(run(captured.decode, captured.step)) < 0.02


@EITHER
def test_without_updates_it_attends_to_one_token_for_ever(make: type[Decode]) -> None:
    captured = Captured(make())
    errors = run(captured.decode, captured.step_without_update)
    assert errors[0] < 0.02
    assert min(errors[1:]) > 0.1


def test_torch_npus_own_graph_update_does_the_same() -> None:
    decode = Decode()
    graph = torch.npu.NPUGraph()
    decode.begin(0)
    with torch.npu.graph(graph, auto_dispatch_capture=True):
        decode.write()
        decode.attend([1] * REQUESTS)

    def step(lengths: list[int]) -> None:
        graph.update(cpu_update_input=[{"actual_seq_lengths_kv": lengths}])
        graph.replay()

    assert max(run(decode, step)) < 0.02


def test_an_update_without_the_workspace_of_its_capture_is_refused() -> None:
    decode = Decode()
    decode.begin(0)
    decode.workspace = torch.empty(8, dtype=torch.uint8, device=DEVICE)
    with pytest.raises(RuntimeError, match="was given a workspace of 8 bytes and needs"):
        decode.attend([1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actual_seq_lengths_kv": None}, "a block_table needs actual_seq_lengths_kv"),
        ({"actual_seq_lengths_kv": [1, 40]}, "block_table has 2 blocks a request; the longest needs 3"),
        ({"block_size": 24}, "block_size 24 must be a multiple of 16"),
        ({"num_key_value_heads": 3}, "num_heads 4 must be a multiple of num_key_value_heads 3"),
        ({"sparse_mode": 7}, "sparse_mode 7 is none of 0 to 4"),
    ],
    ids=["no lengths", "length beyond the table", "block size", "heads", "sparse mode"],
)
def test_what_the_document_refuses_is_refused(change: dict[str, object], message: str) -> None:
    decode = Decode()
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_fused_infer_attention_score(*decode._inputs(), **{**decode._rest([1]), **change})


def test_a_block_that_is_not_there_is_an_error() -> None:
    decode = Decode()
    decode.table.fill_(BLOCKS)
    with pytest.raises(RuntimeError, match=rf"names blocks \[{BLOCKS}\] of {BLOCKS}"):
        decode.attend([1])
