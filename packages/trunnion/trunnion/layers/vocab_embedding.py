"""Token embedding and language-model head, cut over the ranks by vocabulary rows and padded alike."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from trunnion.config import BuildContext
from trunnion.interfaces.collectives import ParallelGroup
from trunnion.interfaces.methods import LinearShape
from trunnion.interfaces.weights import Placement, set_placements

VOCAB_MULTIPLE = 64
"""Each rank holds a multiple of this many rows, whatever the vocabulary; rows beyond it are zero."""


class VocabShard:
    """The rows of the vocabulary on this rank: `start ... start + num_valid - 1` are real, `num_rows` are held."""

    def __init__(self, vocab_size: int, parallel: ParallelGroup) -> None:
        self.vocab_size = vocab_size
        self.num_rows = -(-vocab_size // (parallel.size * VOCAB_MULTIPLE)) * VOCAB_MULTIPLE
        self.start = min(parallel.rank * self.num_rows, vocab_size)
        self.num_valid = min(self.num_rows, vocab_size - self.start)

    def placement(self, *row_shape: int) -> Placement:
        """Placement of a tensor `[vocab_size, *row_shape]` in `[num_rows, *row_shape]`."""
        return Placement(
            shape=(self.vocab_size, *row_shape),
            source=(slice(self.start, self.start + self.num_valid),),
            target=(slice(0, self.num_valid),),
        )


class VocabParallelEmbedding(nn.Module):
    """Rows of the embedding table by token id.

    A quantised one goes through the method that `ctx` names for `prefix`. So does one whose plain weight a hardware
    package has laid out anew since: it sets `weight_method`.
    """

    def __init__(self, vocab_size: int, hidden_size: int, *, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        self.prefix = prefix
        self.hidden_size = hidden_size
        self.parallel = ctx.parallel
        self.shard = VocabShard(vocab_size, ctx.parallel)
        self.keeps_dense_weight = False
        self.weight_method = ctx.embedding_method(prefix)
        """What looks up rows and lays the weight out after a reload, for a head tied to this one too; None: the weight
        is plain."""
        placements = {"": self.shard.placement(hidden_size)}
        if self.weight_method is None:
            weight = torch.empty(self.shard.num_rows, hidden_size, dtype=ctx.dtype)
            self.weight = nn.Parameter(weight, requires_grad=False)
            set_placements(self.weight, placements)
        else:
            shape = LinearShape(
                in_features=hidden_size,
                out_features=self.shard.num_rows,
                dtype=ctx.dtype,
                placements=placements,
                prefix=prefix,
            )
            self.weight_method.create(self, shape)

    def finalize(self) -> None:
        """As `LinearBase.finalize`."""
        if self.weight_method is not None:
            self.weight_method.finalize(self)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """input_ids [T] -> [T, hidden_size], the same on every rank."""
        if self.parallel.size == 1:
            return self._rows(input_ids)
        local = input_ids - self.shard.start
        elsewhere = (local < 0) | (local >= self.shard.num_valid)
        rows = self._rows(local.masked_fill(elsewhere, 0))
        return self.parallel.collectives.all_reduce(rows.masked_fill_(elsewhere.unsqueeze(-1), 0))

    def _rows(self, ids: torch.Tensor) -> torch.Tensor:
        if self.weight_method is None:
            return F.embedding(ids, self.weight)
        return self.weight_method.rows(self, ids)


class ParallelLMHead(nn.Module):
    """Hidden states to logits. The weight goes through the method that `ctx` names for `prefix`."""

    def __init__(
        self, vocab_size: int, hidden_size: int, *, bias: bool = False, ctx: BuildContext, prefix: str
    ) -> None:
        super().__init__()
        self.prefix = prefix
        self.hidden_size = hidden_size
        self.parallel = ctx.parallel
        self.shard = VocabShard(vocab_size, ctx.parallel)
        self.method = ctx.linear_method(prefix)
        self._plain_method = ctx.hardware.linear_method(None, prefix)
        # A tuple, so that the embedding is not registered as a submodule of the head as well.
        self._tied: tuple[VocabParallelEmbedding, ...] = ()
        shape = LinearShape(
            in_features=hidden_size,
            out_features=self.shard.num_rows,
            dtype=ctx.dtype,
            placements={"": self.shard.placement(hidden_size)},
            prefix=prefix,
        )
        self.keeps_dense_weight = False
        self.method.create(self, shape)
        self.bias: nn.Parameter | None = None
        if bias:
            self.bias = nn.Parameter(torch.empty(self.shard.num_rows, dtype=ctx.dtype), requires_grad=False)
            set_placements(self.bias, {"": self.shard.placement()})

    def tie_to(self, embedding: VocabParallelEmbedding) -> None:
        """Use the embedding's weight instead of an own one, which is dropped together with what its method made."""
        if (embedding.shard.num_rows, embedding.hidden_size) != (self.shard.num_rows, self.hidden_size):
            raise ValueError(
                f"{self.prefix} {[self.shard.num_rows, self.hidden_size]} cannot be tied to {embedding.prefix} "
                f"{[embedding.shard.num_rows, embedding.hidden_size]}"
            )
        for name in [name for name in self._parameters if name != "bias"]:
            del self._parameters[name]
        self.method = embedding.weight_method or self._plain_method
        # The embedding reads its rows.
        self.keeps_dense_weight = True
        self._tied = (embedding,)
        self.weight = embedding.weight

    @property
    def tied_to(self) -> VocabParallelEmbedding | None:
        """The embedding whose weight this is."""
        return self._tied[0] if self._tied else None

    @property
    def _owner(self) -> VocabParallelEmbedding | ParallelLMHead:
        """The layer whose weight the method has: an embedding with a method of its own, if the head is tied to one."""
        return self._tied[0] if self._tied and self._tied[0].weight_method is not None else self

    def finalize(self) -> None:
        """As `LinearBase.finalize`. A tied head first takes the weight that the loader has put into the embedding."""
        if self._tied:
            self.weight = self._tied[0].weight
        if self._owner is self:
            self.method.finalize(self)
        else:
            self._owner.finalize()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, hidden_size] -> [N, vocab_size], gathered from all ranks, without the padding."""
        logits = self.method.apply(self._owner, hidden, self.bias)
        return self.parallel.collectives.all_gather(logits, dim=-1)[..., : self.shard.vocab_size]
