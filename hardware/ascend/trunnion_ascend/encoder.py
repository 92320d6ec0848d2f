"""Attention of an encoder on torch_npu's fused operator: one request after the other (TND), no mask, nothing cached."""

from __future__ import annotations

import torch
import torch_npu

from trunnion.interfaces.attention import EncoderGroup, EncoderSpec, GroupSpec, StepInputs
from trunnion_ascend.capabilities import MAX_RUNS, OPERATOR
from trunnion_ascend.fused import LAYOUT

NO_MASK = 0
"""Mode of the mask in which every query sees every key of its request."""


class FusedEncoderGroup(EncoderGroup):
    """Rows beyond the step's requests give zeros."""

    def __init__(self, spec: GroupSpec, num_layers: int, device: torch.device) -> None:
        assert isinstance(spec, EncoderSpec), f"attention of an encoder cannot run {spec}"
        super().__init__(spec, num_layers, device)
        self.spec = spec
        self._ends: list[int] = []
        self._no_sums = torch.zeros(1, dtype=torch.float32, device=device)

    def plan(self, step: StepInputs) -> None:
        """Read where requests end from the host's copy; ValueError for more of them than the operator takes."""
        count = step.counts.num_reqs
        if count > MAX_RUNS:
            raise ValueError(f"{count} requests are more than the {MAX_RUNS} of {OPERATOR}: lower max_num_seqs")
        self._ends = step.host.query_start_loc[1 : count + 1].tolist()

    def run(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `EncoderGroup.run`; ValueError for arguments that are not the group's."""
        expected = (q.shape[0], self.spec.num_heads, self.spec.head_dim)
        for name, rows in (("q", q), ("k", k), ("v", v)):
            if rows.shape != expected or rows.dtype != self.spec.dtype:
                raise ValueError(f"{name} is {tuple(rows.shape)} {rows.dtype}, expected {expected} {self.spec.dtype}")
        out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
        count = self._ends[-1] if self._ends else 0
        out[count:].zero_()
        if count:
            query, key, value = (rows[:count].contiguous() for rows in (q, k, v))
            torch_npu.npu_fused_infer_attention_score_v2.out(
                query,
                key,
                value,
                actual_seq_qlen=self._ends,
                actual_seq_kvlen=self._ends,
                num_query_heads=self.spec.num_heads,
                num_key_value_heads=self.spec.num_heads,
                softmax_scale=self.spec.scale,
                input_layout=LAYOUT,
                sparse_mode=NO_MASK,
                out=[out[:count], self._no_sums],
            )
        return out
