"""Paged attention by the native operators: the cache is read as it lies, rotation is done on the way there."""

from __future__ import annotations

import torch

from trunnion.interfaces.attention import AttentionSpec, GroupSpec, Rotation, StepInputs
from trunnion.reference.attention import ReferenceAttentionGroup
from trunnion_cpu.kernels.native import DTYPES

MAX_HEAD_DIM = 512
"""As kernels.h says."""
STEP_FIELDS = 8
"""As operators/attention.cc says."""
NO_ROTATION = (None, None, False, ())


def why_not_native(spec: AttentionSpec) -> str | None:
    """Why `NativeAttentionGroup` cannot run `spec`."""
    if spec.cache_dtype is not None:
        return f"a cache in {spec.cache_dtype} is not read by it"
    if spec.dtype not in DTYPES:
        return f"{spec.dtype} is neither float32 nor bfloat16"
    if spec.head_dim > MAX_HEAD_DIM:
        return f"heads of {spec.head_dim}, it takes at most {MAX_HEAD_DIM}"
    return None


class NativeAttentionGroup(ReferenceAttentionGroup):
    """Attention and cache writes by `torch.ops.trunnion_cpu`; keys of the step itself come from the cache, too."""

    rotates = True

    def __init__(self, spec: GroupSpec, num_layers: int, device: torch.device) -> None:
        super().__init__(spec, num_layers, device)
        self._settings = (self.spec.scale, self.spec.window or 0, self.spec.soft_cap or 0.0)
        # Where the step's tensors lie, at a place that stays: what is recorded in a program reads them there.
        self._step = torch.zeros(STEP_FIELDS, dtype=torch.int64)

    def plan(self, step: StepInputs) -> None:
        host, counts = step.host, step.counts
        meta = self.tensors(host)
        self._plan = torch.ops.trunnion_cpu.plan_attention(
            host.query_start_loc, host.seq_lens, meta.kv_start, meta.slot_mapping, counts.num_reqs, self._settings[1]
        )
        self._block_table = meta.block_table
        self._slots = meta.slot_mapping
        self._live_tokens = counts.num_tokens
        torch.ops.trunnion_cpu.set_step(self._step, self._plan, self._block_table, self._slots, counts.num_tokens)

    def run(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None = None,
        rotation: Rotation | None = None,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        caches = self.caches[layer]
        keys, values = caches["k_cache"], caches["v_cache"]
        if out is None:
            result: torch.Tensor = torch.ops.trunnion_cpu.attend_step(
                q, k, v, *(rotation or NO_ROTATION), self._step, keys, values, *self._settings, sinks
            )
            return result
        if rotation is None:
            torch.ops.trunnion_cpu.write_cache(k, v, self._slots, keys, values)
        else:
            q = torch.ops.trunnion_cpu.rotate_and_write_cache(q, k, v, *rotation, self._slots, keys, values)
        if self._live_tokens < out.shape[0]:
            out[self._live_tokens :] = 0
        torch.ops.trunnion_cpu.attend(q, keys, values, self._block_table, self._plan, *self._settings, sinks, out)
        return out
