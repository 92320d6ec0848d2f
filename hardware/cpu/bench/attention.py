"""Times native paged attention beside this package's own in torch: plan and run, same steps, same caches, in turn."""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import dataclass

import torch

from trunnion.contract import BatchCounts, BatchTensors, GroupTensors
from trunnion.interfaces.attention import AttentionGroup, AttentionSpec, StepInputs
from trunnion_cpu.attention import CpuAttentionGroup
from trunnion_cpu.native import Native, native
from trunnion_cpu.native_attention import NativeAttentionGroup

BLOCK_SIZE, LAYERS = 16, 30


@dataclass(frozen=True)
class Step:
    """(context, query) of each request; requests with one query token are decodes."""

    name: str
    requests: tuple[tuple[int, int], ...]


STEPS = (
    Step("prefill 1024", ((0, 1024),)),
    Step("8 prefills of 32", ((0, 32),) * 8),
    Step("chunk 128 after 4096", ((4096, 128),)),
    Step("chunk 8 after 4096", ((4096, 8),)),
    Step("decode 1 at 4096", ((4096, 1),)),
    Step("decode 1 at 512", ((512, 1),)),
    Step("decode 32 at 256 to 512", tuple((256 + 8 * index, 1) for index in range(32))),
    Step("mixed 8 decodes, 128 prefill", (*((512, 1),) * 8, (0, 128))),
)


def main(rounds: int) -> dict[str, dict[str, float]]:
    results: dict[str, dict[str, float]] = {}
    if not isinstance(native(), Native):
        return results
    for dtype in (torch.float32, torch.bfloat16):
        spec = AttentionSpec(num_qo_heads=9, num_kv_heads=3, head_dim=64, scale=0.125, dtype=dtype)
        for step in STEPS:
            name = f"{step.name}, {str(dtype).removeprefix('torch.')}"
            results[name] = _compare(spec, step, rounds)
    return results


@torch.inference_mode()
def _compare(spec: AttentionSpec, step: Step, rounds: int) -> dict[str, float]:
    inputs, num_blocks = _build(step)
    tokens = inputs.counts.num_tokens
    q = torch.randn(tokens, spec.num_qo_heads, spec.head_dim).to(spec.dtype)
    k, v = (torch.randn(tokens, spec.num_kv_heads, spec.head_dim).to(spec.dtype) for _ in range(2))
    groups = [_bind(cls, spec, num_blocks) for cls in (NativeAttentionGroup, CpuAttentionGroup)]
    times: list[list[float]] = [[], []]
    for _ in range(rounds + 1):
        for index, group in enumerate(groups):
            started = time.perf_counter()
            group.plan(inputs)
            for layer in range(LAYERS):
                group.run(layer, q, k, v)
            times[index].append((time.perf_counter() - started) * 1e3)
    own, other = (statistics.median(values[1:]) for values in times)
    return {"ms": own, "torch ms": other, "times faster": other / own}


def _bind(cls: type[AttentionGroup], spec: AttentionSpec, num_blocks: int) -> AttentionGroup:
    group = cls(spec, LAYERS, torch.device("cpu"))
    layer = {
        tensor.name: torch.randn(num_blocks, *tensor.shape).to(tensor.dtype)
        for tensor in cls.cache_tensors(spec, BLOCK_SIZE)
    }
    # All layers share one cache: only the time counts.
    group.bind_kv_cache(0, [layer] * LAYERS)
    return group


def _build(step: Step) -> tuple[StepInputs, int]:
    bounds, slots, table, next_block = [0], [], [], 1
    lengths = [context + query for context, query in step.requests]
    width = -(-max(lengths) // BLOCK_SIZE)
    for context, query in step.requests:
        blocks = list(range(next_block, next_block + -(-(context + query) // BLOCK_SIZE)))
        next_block += len(blocks)
        table.append(blocks + [0] * (width - len(blocks)))
        slots += [blocks[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(context, context + query)]
        bounds.append(bounds[-1] + query)

    def int32(values: list[int] | list[list[int]]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    group = GroupTensors(slot_mapping=int32(slots), block_table=int32(table), kv_start=int32([0] * len(step.requests)))
    tensors = BatchTensors(
        input_ids=int32([0] * bounds[-1]),
        positions=int32([0] * bounds[-1]),
        query_start_loc=int32(bounds),
        seq_lens=int32(lengths),
        logits_indices=int32([]),
        groups=(group,),
    )
    counts = BatchCounts(
        num_tokens=bounds[-1],
        num_reqs=len(step.requests),
        num_decodes=sum(query == 1 for _, query in step.requests),
        max_query_len=max(query for _, query in step.requests),
        max_seq_len=max(lengths),
    )
    return StepInputs(counts, tensors, tensors), next_block


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    print(json.dumps(main(int(sys.argv[2]))))
