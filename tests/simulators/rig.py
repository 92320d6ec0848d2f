"""One executor on the simulated package, and a host that feeds it decodes, drafts and steps that overlap."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from capture import DelayedTransfers, SimulatedStream
from tests.matrix.host_double import Chunk, HostDouble, Request
from trunnion_sim.hardware import SimHardware
from trunnion_sim.runner import GraphRunner

from trunnion.config import ExecutorConfig
from trunnion.contract import EncoderItem, ForwardOutput, Limits, Staging
from trunnion.runner.model_executor import ModelExecutor
from trunnion_models.card import Card

MAX_ENCODER_ROWS = 40


class DraftHost(HostDouble):
    """The matrix's host, whose transfers are late where the stream is."""

    def __init__(self, executor: ModelExecutor, num_blocks: int, seed: int, stream: SimulatedStream) -> None:
        super().__init__(executor, num_blocks, executor.device, seed)
        buffers = executor.input_buffers()
        self.memory = [*(buffer.storage for buffer in buffers), *(buffer.output_rows for buffer in buffers)]
        """What lies with the host and is copied to and from the device."""
        self._transfers = DelayedTransfers(stream, self.memory)

    def execute(self, buffer_set: int, items: Sequence[EncoderItem] = ()) -> ForwardOutput:
        """Run what lies in a set; on a late stream nothing has been copied when this returns."""
        with self._transfers:
            return self.executor.execute_set(buffer_set, items)


class Rig:
    """An executor, and a host that feeds it; `parallel` are the `tp_` fields of ExecutorConfig."""

    def __init__(
        self,
        card: Card,
        folder: Path,
        hardware: SimHardware,
        *,
        max_num_seqs: int = 8,
        max_num_tokens: int = 24,
        max_logits_rows: int = 24,
        max_decode_query_len: int = 3,
        seed: int = 0,
        staging: Staging = Staging.HOST,
        **parallel: Any,
    ) -> None:
        self.hardware = hardware
        limits = Limits(
            max_num_tokens=max_num_tokens,
            max_num_seqs=max_num_seqs,
            max_model_len=card.max_model_len,
            max_logits_rows=max_logits_rows,
            block_size=card.block_size,
            max_decode_query_len=max_decode_query_len,
            max_encoder_rows=MAX_ENCODER_ROWS if card.images else 0,
        )
        config = ExecutorConfig(
            model=folder, hardware="sim", limits=limits, dtype="float32", staging=staging, **parallel
        )
        self.executor = ModelExecutor.create(config, hardware)
        num_blocks = 1 + max_num_seqs * -(-card.max_model_len // card.block_size)
        self.host = DraftHost(self.executor, num_blocks, seed, hardware.stream)
        # Token 0 is what padding rows hold; no request uses it, so that tests may make its embedding NaN.
        self.rng = random.Random(seed)
        self.vocab = range(1, card.vocab_size)

    @property
    def runner(self) -> GraphRunner:
        runner = self.executor._runner
        assert isinstance(runner, GraphRunner), "an eager rig has no graphs"
        return runner

    def requests(self, count: int, length: int) -> list[Request]:
        """Requests of `length` random tokens, nothing of them cached."""
        return [self.host.add(self.rng.choices(self.vocab, k=length)) for _ in range(count)]

    def prefill(self, requests: Sequence[Request], length: int) -> list[torch.Tensor]:
        """Cache the first `length` tokens of each request; logits of all of them."""
        return [self.host.step([Chunk(request, length)])[0] for request in requests]

    def decode(self, requests: Sequence[Request]) -> torch.Tensor:
        """One token of each: logits [requests, vocab_size]."""
        return torch.cat(self.host.step([Chunk(request, 1) for request in requests]))

    def poison_padding(self) -> None:
        """Make what padding rows compute NaN, from the first layer on."""
        for parameter in _embeddings(self.executor.model):
            parameter.data[0] = torch.nan


def _embeddings(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for name, parameter in model.named_parameters() if "embed_tokens" in name]
