"""Gated delta nets on this package's own kernels: decodes on the cached states, prefills in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from trunnion.interfaces.attention import GroupSpec, RecurrentSpec, StepInputs
from trunnion.reference.recurrent import ReferenceRecurrentGroup, advance
from trunnion.runner.buckets import Buckets
from trunnion_cuda.kernels.gated_delta import MAX_KERNEL, MAX_KEY_DIM, StateColumns, recurrent_decode


def why_not_recurrent(spec: RecurrentSpec) -> str | None:
    """Why the kernels cannot run layers of this shape, or None if they can."""
    if spec.conv_kernel_size > MAX_KERNEL:
        return f"the convolution's kernel has at most {MAX_KERNEL} taps, not {spec.conv_kernel_size}"
    if spec.head_k_dim > MAX_KEY_DIM:
        return f"the recurrence's kernel has keys of at most {MAX_KEY_DIM} features, not {spec.head_k_dim}"
    return None


class TritonRecurrentGroup(ReferenceRecurrentGroup):
    """States as the reference has them. Decodes read and write them in place, the state after each token in its column;
    a prefill runs through the operators, which are kernels as well, between a copy of its states and one back."""

    def __init__(self, spec: GroupSpec, num_layers: int, device: torch.device) -> None:
        super().__init__(spec, num_layers, device)
        self._columns: StateColumns | None = None
        self._num_decode_rows = 0

    @classmethod
    def why_not_captured(cls, spec: GroupSpec) -> str | None:
        return None

    def plan(self, step: StepInputs) -> None:
        """Decodes need none: their kernels read the device's states. Prefills are planned as the reference does."""
        group, counts = self.tensors(step.device), step.counts
        assert group.state_indices is not None and group.has_initial_state is not None
        self.batches, self._columns = [], None
        count = group.state_indices.shape[0] if step.in_full_graph else counts.num_decodes
        self._num_decode_rows = counts.num_decodes * counts.decode_query_len
        if not step.in_full_graph:
            super().plan(step)
            self.batches = self.batches[1:] if self._num_decode_rows else self.batches
        if count:
            accepted = group.num_accepted
            self._columns = StateColumns(
                state_indices=group.state_indices[:count],
                has_initial_state=group.has_initial_state[:count],
                num_accepted=None if accepted is None else accepted[:count],
            )
        if step.in_full_graph:
            # Every row of the bucket, whatever this step has.
            self._num_decode_rows = -1

    def examples(self, buckets: Buckets) -> Iterator[Callable[[], object]]:
        """See `TunedGroup.examples`: prompts of each size, on states of their own; decodes have nothing to choose."""
        for num_tokens in reversed(buckets.tokens):
            yield lambda size=num_tokens: self._example(size)

    def _example(self, num_tokens: int) -> None:
        spec, options = self.spec, {"device": self.device}
        state = spec.num_v_heads, spec.head_k_dim, spec.head_v_dim
        kernel, channels = spec.conv_kernel_size, spec.conv_dim
        advance(
            spec,
            torch.zeros(1, num_tokens, channels, dtype=spec.dtype, **options),
            torch.zeros(1, num_tokens, spec.num_v_heads, **options),
            torch.zeros(1, num_tokens, spec.num_v_heads, dtype=spec.dtype, **options),
            torch.zeros(1, channels, kernel - 1, dtype=spec.dtype, **options),
            torch.zeros(1, *state, dtype=spec.state_dtype, **options),
            torch.zeros(channels, kernel, dtype=spec.dtype, **options),
            None,
            1,
        )

    def run(
        self,
        layer: int,
        mixed_qkv: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        conv_weight: torch.Tensor,
        conv_bias: torch.Tensor | None,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `RecurrentGroup.run`."""
        spec = self.spec
        if out is None:
            out = mixed_qkv.new_empty(mixed_qkv.shape[0], spec.num_v_heads, spec.head_v_dim)
        rows = mixed_qkv.shape[0] if self._num_decode_rows < 0 else self._num_decode_rows
        if rows < mixed_qkv.shape[0]:
            super().run(layer, mixed_qkv, g, beta, conv_weight, conv_bias, out=out)
        if self._columns is not None:
            caches = self.caches[layer]
            recurrent_decode(
                mixed_qkv[:rows],
                g[:rows],
                beta[:rows],
                conv_weight,
                conv_bias,
                caches["conv_state"],
                caches["ssm_state"],
                self._columns,
                num_k_heads=spec.num_k_heads,
                out=out[:rows],
            )
        return out
