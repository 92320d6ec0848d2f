"""What runs on the reference: no operator with Triton; without, everything runs on what is left, and says why."""

from __future__ import annotations

import pytest
import torch

from trunnion.interfaces.attention import AttentionSpec, MLASpec, RecurrentSpec
from trunnion.reference.captured import CapturedAttentionGroup, CapturedMLAGroup, CapturedRecurrentGroup
from trunnion_cuda import environment
from trunnion_cuda.hardware import CudaHardware

ATTENTION = AttentionSpec(num_qo_heads=4, num_kv_heads=2, head_dim=40, scale=1.0, dtype=torch.float32)
LATENT = MLASpec(num_qo_heads=3, kv_lora_rank=24, rope_head_dim=8, scale=1.0, dtype=torch.float32)
RECURRENT = RecurrentSpec(
    num_k_heads=2, num_v_heads=2, head_k_dim=16, head_v_dim=16, conv_kernel_size=4, dtype=torch.float32
)


def test_groups_and_operators_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "find_spec", lambda name: None if name == "triton" else object())
    found, reason = CudaHardware().group_class(ATTENTION)
    assert found is CapturedAttentionGroup and reason is not None and reason.endswith("; triton is not installed")
    found, reason = CudaHardware().group_class(LATENT)
    assert found is CapturedMLAGroup and reason is not None and reason.endswith("; triton is not installed")
    assert CudaHardware().group_class(RECURRENT) == (CapturedRecurrentGroup, "triton is not installed")
    reasons = CudaHardware().on_reference()
    assert {"rms_norm", "merge_states"} <= set(reasons) and set(reasons.values()) == {"triton is not installed"}


def test_with_triton_no_operator_is_left_to_the_reference() -> None:
    package = CudaHardware()
    package.initialize(0)
    assert package.on_reference() == {}
