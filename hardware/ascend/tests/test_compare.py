"""`trunnion compare` on this package, in processes of its own: against transformers, and against its references."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ascend_simulator.install import simulation
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
    command = [*(["-m", "ascend_simulator", "trunnion"] if _is_simulated() else ["-m", "trunnion"]), *arguments]
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)


def _is_simulated() -> bool:
    try:
        simulation()
    except LookupError:
        return False
    return True


@pytest.mark.parametrize("against", ["hf", "port"])
def test_no_module_differs(against: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SIZES)).save_pretrained(tmp_path)
    arguments = ("--hardware", "ascend", "--against", against, "--dtype", "bfloat16", "--json")
    outcome = _trunnion("compare", str(tmp_path), *arguments)
    assert outcome.returncode == 0, outcome.stderr
    # torch_npu has a line of its own before it.
    found = json.loads(outcome.stdout.splitlines()[-1])
    assert found["here"].endswith(" on ascend") and not found["there"].endswith(" on ascend")
    assert found["first_different"] is None
    errors = {row["module"]: row["relative"] for row in found["modules"]}
    assert 0 < errors["layers.1.self_attn"] <= found["tolerance"]
