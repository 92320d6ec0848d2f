"""`trunnion compare` on this package, in processes of its own: against transformers, and against its references."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cuda_simulator.torch_cuda import DEVICE_NAME
from transformers import AutoConfig, AutoModelForCausalLM

SIZES = {
    "vocab_size": 131,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 64,
}


def _trunnion(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*(["-m", "cuda_simulator", "trunnion"] if _is_simulated() else ["-m", "trunnion"]), *arguments]
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)


def _is_simulated() -> bool:
    return torch.cuda.get_device_name() == DEVICE_NAME


@pytest.mark.parametrize("against", ["hf", "port"])
def test_no_module_differs(against: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SIZES)).save_pretrained(tmp_path)
    arguments = ("--hardware", "cuda", "--against", against, "--dtype", "bfloat16", "--json")
    outcome = _trunnion("compare", str(tmp_path), *arguments)
    assert outcome.returncode == 0, outcome.stderr
    found = json.loads(outcome.stdout)
    assert found["here"].endswith(" on cuda") and not found["there"].endswith(" on cuda")
    assert found["first_different"] is None
    errors = {row["module"]: row["relative"] for row in found["modules"]}
    assert 0 < errors["layers.1.self_attn"] <= found["tolerance"]
