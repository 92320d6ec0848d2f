"""Steps that no host makes: requests in chunks, side by side, compute what transformers does of each one whole."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from trunnion.config import ExecutorConfig
from trunnion.contract import Limits
from trunnion.reference import ReferenceHardware
from trunnion.runner.bare_steps import BareSteps, Part
from trunnion.runner.load_model import load_model

REQUESTS = [[(7 * index + 3) % 101 for index in range(23)], [(11 * index + 5) % 101 for index in range(9)]]
STEPS = (
    (Part(0, 0, 5), Part(1, 0, 4)),
    (Part(1, 4, 5), Part(0, 5, 19)),
    (Part(0, 19, 20), Part(1, 5, 9)),
    (Part(0, 20, 23),),
)


@pytest.mark.parametrize("family", ["gemma3", "deepseek_v2", "qwen3_next"], ids=["windows", "latent", "recurrent"])
@torch.inference_mode()
def test_chunks_of_several_requests_equal_transformers(family: str, tmp_path: Path) -> None:
    card = next(card for card in import_module(f"trunnion_models.{family}.card").CARDS if card.quick)
    torch.manual_seed(2)
    config = AutoConfig.for_model(**card.config)
    module = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    module.save_pretrained(tmp_path)
    limits = Limits(max_num_tokens=32, max_num_seqs=2, max_model_len=32, max_logits_rows=32)
    config = ExecutorConfig(model=tmp_path, hardware="reference", limits=limits, dtype="float32")
    loaded = load_model(config, ReferenceHardware(), None)
    bare = BareSteps(loaded.model, loaded.hardware, loaded.device, REQUESTS, block_size=4)
    found: list[list[torch.Tensor]] = [[], []]
    for parts in STEPS:
        hidden, logits = bare.run(parts)
        assert hidden.shape[0] == logits.shape[0] == sum(part.end - part.first for part in parts)
        for part, rows in zip(parts, logits.split([part.end - part.first for part in parts]), strict=True):
            found[part.request].append(rows)
    for token_ids, rows in zip(REQUESTS, found, strict=True):
        expected = module(torch.tensor([token_ids]), use_cache=False).logits[0]
        assert (torch.cat(rows) - expected).abs().max() <= 1e-4 * expected.abs().max()
