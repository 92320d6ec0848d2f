"""What is said of a machine: when nvcc is needed, and that an absent FlashInfer is a choice with a reason."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Collection

import pytest
import torch

from trunnion.interfaces.attention import AttentionSpec, MLASpec
from trunnion_cuda import environment
from trunnion_cuda.hardware import CudaHardware

SPEC = AttentionSpec(num_qo_heads=4, num_kv_heads=2, head_dim=64, scale=0.125, dtype=torch.bfloat16)
LATENT = MLASpec(num_qo_heads=16, kv_lora_rank=512, rope_head_dim=64, scale=0.1, dtype=torch.bfloat16)


def pretend(monkeypatch: pytest.MonkeyPatch, *, modules: Collection[str], commands: Collection[str]) -> None:
    """As if `modules` and `commands` were all that is installed."""
    monkeypatch.setattr(environment, "find_spec", lambda name: name if name in modules else None)
    monkeypatch.setattr(environment.shutil, "which", lambda name: name if name in commands else None)


def warnings() -> dict[str, str]:
    return {problem.what: problem.needed for problem in environment.problems() if not problem.fatal}


def test_nvcc_is_needed_by_what_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, modules={"flashinfer", "tilelang"}, commands={"cc"})
    assert set(warnings()) == {"nvcc"}
    assert "FlashInfer's modules" in warnings()["nvcc"] and "TileLang's" in warnings()["nvcc"]
    pretend(monkeypatch, modules={"flashinfer", "tilelang"}, commands={"cc", "nvcc"})
    assert warnings() == {} and environment.facts()["nvcc"].startswith("nvcc; needed by FlashInfer's")


def test_nvcc_is_not_needed_with_prebuilt_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, modules={"flashinfer", "flashinfer_jit_cache", "flashinfer_cubin"}, commands={"cc"})
    assert warnings() == {}
    facts = environment.facts()
    assert facts["nvcc"] == "not needed" and facts["FlashInfer"] == "modules prebuilt, binaries prebuilt"
    assert facts["kernels"] == "compiled by Triton and TileLang at first use"
    # Binaries alone are no modules.
    pretend(monkeypatch, modules={"flashinfer", "flashinfer_cubin"}, commands={"cc"})
    assert set(warnings()) == {"nvcc"}


def test_a_missing_c_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, modules={"flashinfer", "flashinfer_jit_cache"}, commands=())
    assert set(warnings()) == {"C compiler"}


def test_groups_run_elsewhere_without_flashinfer(monkeypatch: pytest.MonkeyPatch) -> None:
    found, reason = CudaHardware().group_class(SPEC)
    assert found.__name__ == "FlashInferAttentionGroup" and reason is None
    pretend(monkeypatch, modules={"triton"}, commands={"cc"})
    found, reason = CudaHardware().group_class(SPEC)
    assert found.__name__ == "TritonAttentionGroup" and reason is None, "kernels of this package, not the reference"
    assert set(warnings()) == {"FlashInfer"}, "what `warm_up` says is missing"
    found, reason = CudaHardware().group_class(LATENT)
    assert found.__name__ == "TritonMLAGroup" and reason is None
    found, reason = CudaHardware().group_class(dataclasses.replace(LATENT, kv_lora_rank=1024))
    assert found.__name__ == "CapturedMLAGroup" and reason is not None
    assert reason.startswith("flashinfer-python is not installed; ")


def test_the_package_is_imported_without_its_libraries() -> None:
    """Whoever has no GPU, or no FlashInfer, still gets reports and not an ImportError."""
    code = (
        "import sys\n"
        "sys.modules.update(flashinfer=None, tilelang=None)\n"
        "import trunnion_cuda.hardware\n"
        "print([name for name in ('flashinfer', 'tilelang') if sys.modules.get(name)])\n"
    )
    result = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True)
    assert result.returncode == 0 and result.stdout.strip() == "[]", result.stderr
