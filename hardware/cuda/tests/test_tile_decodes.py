"""What decodes on latents run on: TileLang's kernel where it was timed to be faster, compiled in `warm_up`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hardware.cuda.tests.torch_tiles import TorchDecodes, decode
from tests.conformance.tiny_llama import write_tiny_llama

from trunnion.config import ExecutorConfig
from trunnion.contract import Limits
from trunnion.interfaces.attention import AttentionSpec
from trunnion.reference.attention import attend
from trunnion.runner.model_executor import ModelExecutor
from trunnion_cuda.hardware import CudaHardware
from trunnion_cuda.kernels import latent_attention as module
from trunnion_cuda.kernels.latent_attention import EITHER, latent_attention
from trunnion_cuda.kernels.latent_call import LatentCall, probe
from trunnion_cuda.kernels.mla_decode import tile_decodes
from trunnion_cuda.kernels.paged_attention import PagedKeys
from trunnion_cuda.kernels.tuning import TUNER, Budget, CannotRunError

HEADS, LATENT, ROPE, BLOCK_SIZE, SCALE = 20, 64, 16, 4, 0.1
TILELANG, TRITON = "latent_decode on TileLang", "latent_decode on Triton"
DEVICE = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def forgets_choices() -> Iterator[None]:
    CudaHardware().initialize(0)
    TUNER.clear()
    yield
    TUNER.clear()


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> TorchDecodes:
    found = TorchDecodes()
    monkeypatch.setattr(module, "tile_decodes", lambda: found)
    return found


def call(query_len: int = 1, heads: int = HEADS, latent: int = LATENT, splits: int = 1) -> LatentCall:
    """Four requests, see `probe`."""
    none = torch.empty(0, dtype=torch.int32, device=DEVICE)
    like = LatentCall(
        q_latent=torch.empty(0, heads, latent, device=DEVICE),
        q_rope=torch.empty(0, heads, ROPE, device=DEVICE),
        cache=torch.empty(0, BLOCK_SIZE, latent + ROPE, dtype=torch.bfloat16, device=DEVICE),
        keys=PagedKeys(block_table=none, seq_lens=none, query_start_loc=None, max_query_len=query_len),
        scale=SCALE,
        out=none,
        splits=splits,
    )
    return probe(like, 37)


def attention(case: LatentCall) -> None:
    """One call of the kernels, which must be what the reference computes."""
    out = latent_attention(
        case.q_latent, case.q_rope, case.cache, case.keys, scale=case.scale, splits=case.splits, out=case.out
    )
    query_len, (heads, latent, rope) = case.keys.max_query_len, case.sizes
    spec = AttentionSpec(num_qo_heads=heads, num_kv_heads=1, head_dim=latent + rope, scale=SCALE, dtype=torch.float32)
    q = torch.cat((case.q_latent, case.q_rope), dim=-1).cpu().float()
    assert case.keys.slot_mapping is not None
    for request, length in enumerate(case.keys.seq_lens.tolist()[:3]):
        rows = slice(request * query_len, (request + 1) * query_len)
        num_written = int((case.keys.slot_mapping[rows] >= 0).sum())
        rows = slice(rows.start, rows.start + num_written)
        keys = case.cache[case.keys.block_table[request].long()].cpu().float().flatten(0, 1)
        keys = keys[: length - query_len + num_written].unsqueeze(1)
        wanted = attend(q[rows], keys, keys[..., :latent], spec, length - query_len, None)
        torch.testing.assert_close(out[rows].cpu().float(), wanted, rtol=3e-2, atol=1e-2)
    assert not out[3 * query_len :].any()


def tuned(call: Callable[[], None], prefers_tiles: bool = True) -> None:
    """Call once as `warm_up` does, on a device where one implementation is the faster."""
    count = iter(range(1000))

    def measure(run: Callable[[], Any]) -> float:
        try:
            run()
        except CannotRunError:
            return math.inf
        return -float(next(count)) if prefers_tiles else float(next(count))

    with TUNER.tuning(measure, Budget(max_seconds=math.inf, max_timings=100), lambda: False):
        call()


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("query_len", [1, 3])
def test_the_faster_one_runs(tiles: TorchDecodes, query_len: int, splits: int) -> None:
    case = call(query_len, splits=splits)
    tuned(lambda: attention(case))
    shape = HEADS, LATENT, ROPE, BLOCK_SIZE, query_len, SCALE, splits
    assert tiles.made == [(shape, 16, 32), (shape, 16, 64), (shape, 64, 64)]
    tiles.num_runs = 0
    attention(case)
    assert len(tiles.made) == 3 and tiles.num_runs == 1 and tiles.report() == {TILELANG: "1 kinds of decodes"}


def test_slots_of_tokens_that_follow_are_left_alone(tiles: TorchDecodes) -> None:
    """A step's prompts come after its decodes."""
    case = call(3)
    slots = case.keys.slot_mapping
    assert slots is not None
    tuned(lambda: attention(with_keys(case, slot_mapping=torch.nn.functional.pad(slots, (0, 5)))))
    assert tiles.report() == {TILELANG: "1 kinds of decodes"}


def test_triton_runs_where_it_is_faster(tiles: TorchDecodes) -> None:
    tuned(lambda: attention(call()), prefers_tiles=False)
    assert len(tiles.made) == 3 and tiles.report() == {TRITON: "1 kinds of decodes"}


def chosen(query_len: int = 1, splits: int = 1) -> tuple[str, tuple[Any, ...], int]:
    """The last of the configurations, by an earlier start."""
    key = str(torch.bfloat16), HEADS, LATENT, ROPE, splits, query_len
    return EITHER.name, key, len(EITHER.configs) - 1


def test_a_step_compiles_nothing(tiles: TorchDecodes) -> None:
    """Not even for a choice that an earlier start has made, nor for a number of tokens that shares one."""
    TUNER.take([chosen(query_len=4)])
    attention(call(4))
    assert tiles.made == [] and tiles.report() == {TRITON: "1 kinds of decodes"}
    with TUNER.tuning(lambda run: math.inf, Budget(max_seconds=0, max_timings=0), lambda: False):
        attention(call(4))
    assert len(tiles.made) == 1 and tiles.report() == {TILELANG: "1 kinds of decodes"}
    attention(call(3))
    assert len(tiles.made) == 1 and tiles.report() == {TRITON: "1 kinds of decodes"}


@pytest.mark.parametrize("when", ["compiled", "launched"])
def test_a_choice_that_cannot_be_made_any_more_is_not_run(tiles: TorchDecodes, when: str) -> None:
    def refuse(*args: object) -> None:
        raise OSError("nvcc has no header\nof that name")

    tiles._compile = refuse if when == "compiled" else lambda *args: refuse
    TUNER.take([chosen()])
    with TUNER.tuning(lambda run: math.inf, Budget(max_seconds=0, max_timings=0), lambda: False):
        attention(call())
    never = "never: not compiled, or not launched: OSError: nvcc has no header"
    assert tiles.report() == {TRITON: "1 kinds of decodes", TILELANG: never}


def with_keys(case: LatentCall, **changes: Any) -> LatentCall:
    return dataclasses.replace(case, keys=dataclasses.replace(case.keys, **changes))


def as_prompts(case: LatentCall) -> LatentCall:
    return with_keys(case, query_start_loc=torch.arange(5, dtype=torch.int32, device=DEVICE))


def in_float32(case: LatentCall) -> LatentCall:
    names = "q_latent", "q_rope", "cache", "out"
    return dataclasses.replace(case, **{name: getattr(case, name).float() for name in names})


def in_a_wider_table(case: LatentCall) -> LatentCall:
    return with_keys(case, block_table=torch.nn.functional.pad(case.keys.block_table, (0, 3))[:, :-3])


def in_wider_rows(case: LatentCall) -> LatentCall:
    return dataclasses.replace(case, cache=torch.nn.functional.pad(case.cache, (0, 16))[..., :-16])


def off_a_vector(case: LatentCall) -> LatentCall:
    moved = torch.empty(case.cache.numel() + 1, dtype=case.cache.dtype, device=DEVICE)[1:].view(case.cache.shape)
    return dataclasses.replace(case, cache=moved.copy_(case.cache))


@pytest.mark.parametrize("change", [as_prompts, in_float32, in_a_wider_table, in_wider_rows, off_a_vector])
def test_what_it_cannot_take_is_not_timed_on_it(
    tiles: TorchDecodes, change: Callable[[LatentCall], LatentCall]
) -> None:
    tuned(lambda: attention(change(call())))
    assert tiles.made == [] and TILELANG not in tiles.report()


@pytest.mark.parametrize("sizes", [{"latent": 40}, {"latent": 96}], ids=str)
def test_latents_of_no_whole_tiles_are_not_timed_on_it(tiles: TorchDecodes, sizes: dict[str, int]) -> None:
    tuned(lambda: attention(call(**sizes)))
    assert tiles.made == [] and tiles.report() == {}


def test_a_tile_of_many_heads_is_for_many_and_for_much_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {}
    for heads, shared in ((16, 227 << 10), (20, 227 << 10), (20, 13 << 10)):
        found = TorchDecodes(max_shared_bytes=shared)
        monkeypatch.setattr(module, "tile_decodes", lambda found=found: found)
        TUNER.clear()
        tuned(lambda heads=heads: attention(call(heads=heads)))
        sizes[heads, shared] = [made[1:] for made in found.made]
    small = [(16, 32), (16, 64)]
    assert sizes == {
        (16, 227 << 10): small,
        (20, 227 << 10): [*small, (64, 64)],
        # 48 rows of 80 features and the weights, of 2 bytes.
        (20, 13 << 10): small[:1],
    }


def sees_placeholders(shape: Any, *tensors: torch.Tensor) -> None:
    *others, slots, part, part_max, part_sum = tensors
    decode(shape, *others, slots * 0, part, part_max, part_sum)


def forgets_a_key(shape: Any, *tensors: torch.Tensor) -> None:
    *others, lengths, slots, part, part_max, part_sum = tensors
    decode(shape, *others, (lengths - 1).clamp(min=0), slots, part, part_max, part_sum)


def leaves_padding_alone(shape: Any, *tensors: torch.Tensor) -> None:
    last = tensors[-3][:, -1:].clone()
    decode(shape, *tensors)
    tensors[-3][:, -1:] = last


def one_head_short(shape: Any, *tensors: torch.Tensor) -> None:
    decode(shape, *tensors)
    tensors[-3][:, :, -1] *= 1.1


WRONG = [lambda *_: None, sees_placeholders, forgets_a_key, leaves_padding_alone, one_head_short]


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize(
    "wrong", WRONG, ids=["nothing", "placeholders-seen", "key-forgotten", "padding-left", "head-short"]
)
def test_a_kernel_that_computes_something_else_is_not_chosen(
    tiles: TorchDecodes, wrong: Callable[..., None], splits: int
) -> None:
    """Whatever the step's own operands show: in `warm_up` they are zeros."""
    tiles._compile = lambda shape, config: lambda *tensors: wrong(shape, *tensors)
    tuned(lambda: attention(call(2, splits=splits)))
    assert tiles.report()[TRITON] == "1 kinds of decodes"
    assert tiles.report()[TILELANG].startswith("never: its result differs from Triton's by ")


def test_warm_up_says_what_a_simulated_device_runs_on(tmp_path: Path) -> None:
    """And why not on the other: a process's decodes up to then."""
    pytest.importorskip("cuda_simulator").simulation()
    tile_decodes.cache_clear()
    attention(call())
    limits = Limits(max_num_tokens=2, max_num_seqs=1, max_model_len=8, max_logits_rows=1, block_size=4)
    config = ExecutorConfig(model=write_tiny_llama(tmp_path), hardware="cuda", limits=limits)
    executor = ModelExecutor.create(config, CudaHardware())
    executor.allocate_kv_cache([4])
    report = executor.warm_up()
    reason = "the device 'simulated' runs no compiled kernels, and TileLang has no interpreter"
    assert tile_decodes().why_not == reason
    found = {name: what for name, what in report.implementations.items() if name.startswith("latent_decode")}
    assert found == {TRITON: "1 kinds of decodes", TILELANG: f"never: {reason}"}
