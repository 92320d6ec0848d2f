"""One rank of a small decoder stack, run by `test_tensor_parallel.py`: `RANK SIZE INIT_METHOD OUTPUT`."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from trunnion.config import BuildContext
from trunnion.contract import BatchCounts, BatchTensors, GroupTensors, Limits
from trunnion.interfaces.attention import StepInputs
from trunnion.interfaces.break_points import BreakPoints
from trunnion.interfaces.collectives import ParallelGroup
from trunnion.interfaces.weights import placements_of
from trunnion.layers.activation import SiluAndMul
from trunnion.layers.attention import Attention
from trunnion.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from trunnion.layers.norm import RMSNorm
from trunnion.layers.rotary_embedding import RotaryEmbedding
from trunnion.layers.vocab_embedding import ParallelLMHead, VocabParallelEmbedding
from trunnion.reference import ReferenceHardware
from trunnion.rope import RopeParameters

VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 131, 12, 4, 1, 6, 10
ROPE = RopeParameters(max_position_embeddings=64, original_max_position_embeddings=64)


class Stack(nn.Module):
    """One Llama-like layer with every bias it can have, a tied head and an untied one with a bias."""

    def __init__(self, ctx: BuildContext) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(VOCAB, HIDDEN, ctx=ctx, prefix="embed_tokens")
        self.input_norm = RMSNorm(HIDDEN, 1e-5, ctx=ctx)
        self.qkv_proj = QKVParallelLinear(HIDDEN, HEAD_DIM, HEADS, KV_HEADS, bias=True, ctx=ctx, prefix="qkv_proj")
        qkv = self.qkv_proj
        self.attn = Attention(qkv.num_heads, HEAD_DIM, qkv.num_kv_heads, HEAD_DIM**-0.5, ctx=ctx, prefix="attn")
        self.o_proj = RowParallelLinear(HEADS * HEAD_DIM, HIDDEN, bias=True, ctx=ctx, prefix="o_proj")
        self.rope = RotaryEmbedding(ROPE, HEAD_DIM, 64, ctx=ctx)
        self.post_norm = RMSNorm(HIDDEN, 1e-5, ctx=ctx)
        sizes = [INTERMEDIATE, INTERMEDIATE]
        self.gate_up_proj = MergedColumnParallelLinear(HIDDEN, sizes, ctx=ctx, prefix="gate_up_proj")
        self.act = SiluAndMul()
        self.down_proj = RowParallelLinear(INTERMEDIATE, HIDDEN, bias=True, ctx=ctx, prefix="down_proj")
        self.norm = RMSNorm(HIDDEN, 1e-5, ctx=ctx)
        self.tied_head = ParallelLMHead(VOCAB, HIDDEN, ctx=ctx, prefix="tied_head")
        self.tied_head.tie_to(self.embed_tokens)
        self.lm_head = ParallelLMHead(VOCAB, HIDDEN, bias=True, ctx=ctx, prefix="lm_head")

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        residual = self.embed_tokens(input_ids)
        qkv = self.qkv_proj
        q, k, v = qkv(self.input_norm(residual)).split([qkv.q_size, qkv.kv_size, qkv.kv_size], dim=-1)
        q, k = self.rope(positions, q.unflatten(-1, (-1, HEAD_DIM)), k.unflatten(-1, (-1, HEAD_DIM)))
        x, residual = self.post_norm(self.o_proj(self.attn(q, k, v)), residual)
        x, _ = self.norm(self.down_proj(self.act(self.gate_up_proj(x))), residual)
        return x

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.stack((self.lm_head(hidden), self.tied_head(hidden)))


def fill(model: nn.Module) -> None:
    """Random checkpoint tensors by their names, the same on every rank, each put where its placement says."""
    for name, parameter in model.named_parameters():
        parameter.data.zero_()
        for part, place in placements_of(parameter).items():
            generator = torch.Generator().manual_seed(sum(map(ord, name + part)))
            stored = torch.randn(place.shape, generator=generator).to(parameter.dtype)
            parameter.data[place.target] = stored[place.source]


def step(num_tokens: int) -> StepInputs:
    ints = torch.arange(num_tokens, dtype=torch.int32)
    count = torch.tensor([num_tokens], dtype=torch.int32)
    group = GroupTensors(
        slot_mapping=ints + 4,
        block_table=torch.arange(1, 9, dtype=torch.int32)[None],
        kv_start=torch.zeros(1, dtype=torch.int32),
    )
    tensors = BatchTensors(
        input_ids=ints * 37 % VOCAB,
        positions=ints,
        query_start_loc=torch.cat((torch.zeros(1, dtype=torch.int32), count)),
        seq_lens=count,
        logits_indices=ints[num_tokens // 2 :],
        groups=(group,),
    )
    return StepInputs(BatchCounts(num_tokens=num_tokens, num_reqs=min(1, num_tokens)), tensors, tensors)


def run(parallel: ParallelGroup, hardware: ReferenceHardware, dtype: torch.dtype) -> dict[str, Any]:
    model = Stack(BuildContext(hardware=hardware, dtype=dtype, parallel=parallel))
    fill(model)
    group_class, _ = hardware.group_class(model.attn.spec)
    group = group_class(model.attn.spec, 1, torch.device("cpu"))
    tensors = group_class.cache_tensors(model.attn.spec, 4)
    group.bind_kv_cache(0, [{t.name: torch.full((9, *t.shape), float("nan"), dtype=t.dtype) for t in tensors}])
    model.attn.bind(group, 0)
    limits = Limits(max_num_tokens=15, max_num_seqs=1, max_model_len=15, max_logits_rows=15)
    runner = hardware.create_runner(model, [group], limits, BreakPoints())
    steps = {}
    for tokens in (15, 0, 1):
        inputs = step(tokens)
        steps[tokens] = runner.run(inputs, runner.select(inputs.counts))
    return {"steps": steps, "kv_heads": model.attn.num_kv_heads}


def main(rank: int, size: int, init_method: str, output: str) -> None:
    hardware = ReferenceHardware()
    parallel = ParallelGroup(rank=rank, size=size, collectives=hardware.collectives(rank, size, init_method))
    torch.save({str(dtype): run(parallel, hardware, dtype) for dtype in (torch.float32, torch.bfloat16)}, output)
    parallel.collectives.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
