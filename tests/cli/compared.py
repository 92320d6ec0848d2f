"""`trunnion compare` on a hardware package, in a process of its own: no module of a tiny decoder differs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch
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


def check_no_module_differs(hardware: str, against: str, folder: Path, *, simulator: str = "") -> None:
    """`hardware` against the checkpoint in transformers ("hf") or on the references ("port"), written to `folder`.

    `simulator` is a module that runs another where its device is installed; all of stdout is JSON.
    """
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SIZES)).save_pretrained(folder)
    modules = (simulator, "trunnion") if simulator else ("trunnion",)
    options = ("--hardware", hardware, "--against", against, "--dtype", "bfloat16", "--json")
    command = (sys.executable, "-m", *modules, "compare", str(folder), *options)
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    found = json.loads(outcome.stdout)
    assert found["here"].endswith(f" on {hardware}") and not found["there"].endswith(f" on {hardware}")
    assert found["first_different"] is None
    errors = {row["module"]: row["relative"] for row in found["modules"]}
    assert 0 < errors["layers.1.self_attn"] <= found["tolerance"]
