"""Attention of an encoder on FlashInfer's ragged prefill without a mask: planned once per step on the host."""

from __future__ import annotations

import torch

from trunnion.interfaces.attention import EncoderGroup, EncoderSpec, GroupSpec, StepInputs
from trunnion_cuda.workspaces import PlanMemory
from trunnion_cuda.wrappers import ragged_encoder_wrapper


class FlashInferEncoderGroup(EncoderGroup):
    """Scores and softmax in float32. Rows beyond the step's requests give zeros."""

    def __init__(self, spec: GroupSpec, num_layers: int, device: torch.device) -> None:
        assert isinstance(spec, EncoderSpec), f"attention of an encoder cannot run {spec}"
        super().__init__(spec, num_layers, device)
        self.spec = spec
        self._memory = PlanMemory(device)
        self._wrapper = ragged_encoder_wrapper(device)
        self._num_rows = 0

    def plan(self, step: StepInputs) -> None:
        """Tell FlashInfer where requests begin."""
        self._num_rows = step.counts.num_tokens
        if not self._num_rows:
            return
        self._memory.next_step()
        self._memory.lend_to(self._wrapper)
        bounds = step.host.query_start_loc[: step.counts.num_reqs + 1]
        self._wrapper.plan(
            qo_indptr=bounds,
            kv_indptr=bounds,
            num_qo_heads=self.spec.num_heads,
            num_kv_heads=self.spec.num_heads,
            head_dim_qk=self.spec.head_dim,
            causal=False,
            pos_encoding_mode="NONE",
            sm_scale=self.spec.scale,
            q_data_type=self.spec.dtype,
            kv_data_type=self.spec.dtype,
        )

    def run(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `EncoderGroup.run`; ValueError for arguments that are not the group's, which FlashInfer would take."""
        expected = (q.shape[0], self.spec.num_heads, self.spec.head_dim)
        for name, rows in (("q", q), ("k", k), ("v", v)):
            if rows.shape != expected or rows.dtype != self.spec.dtype:
                raise ValueError(f"{name} is {tuple(rows.shape)} {rows.dtype}, expected {expected} {self.spec.dtype}")
        out = torch.empty_like(q) if out is None else out
        planned = slice(0, self._num_rows)
        if self._num_rows:
            self._wrapper.run(q[planned], k[planned], v[planned], out=out[planned])
        out[self._num_rows :].zero_()
        return out
