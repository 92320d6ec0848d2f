"""Attention of an encoder in plain torch: a loop over requests, scores written out, softmax in float32."""

from __future__ import annotations

import torch

from trunnion.interfaces.attention import EncoderGroup, EncoderSpec, GroupSpec, StepInputs


class ReferenceEncoderGroup(EncoderGroup):
    """Rows beyond the step's requests give zeros."""

    def __init__(self, spec: GroupSpec, num_layers: int, device: torch.device) -> None:
        assert isinstance(spec, EncoderSpec), f"attention of an encoder cannot run {spec}"
        super().__init__(spec, num_layers, device)
        self.spec = spec
        self.bounds: list[int] = [0]
        """Where requests begin, and the last one ends."""

    def plan(self, step: StepInputs) -> None:
        """Read the requests' bounds from the host's copy."""
        count = step.counts.num_reqs
        self.bounds = step.host.query_start_loc[: count + 1].tolist() if count else [0]

    def run(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `EncoderGroup.run`."""
        out = torch.empty_like(q) if out is None else out
        for begin, end in zip(self.bounds, self.bounds[1:], strict=False):
            rows = slice(begin, end)
            out[rows].copy_(self.attend(q[rows], k[rows], v[rows]))
        out[self.bounds[-1] :].zero_()
        return out

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """One request: q, k, v [n, H, D] -> [n, H, D]."""
        scores = torch.einsum("nhd,shd->hns", q.float(), k.float()) * self.spec.scale
        return torch.einsum("hns,shd->nhd", scores.softmax(-1), v.float())
