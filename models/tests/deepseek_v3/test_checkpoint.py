"""A checkpoint as DeepSeek-V3 and R1 are published, in small: block FP8 with ragged blocks, and the head's tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from trunnion.config import BuildContext, ExecutorConfig
from trunnion.contract import Limits, Role
from trunnion.errors import UnsupportedError, WeightsError
from trunnion.reference import ReferenceHardware
from trunnion.runner.load_model import LoadedModel, load_model
from trunnion.runner.model_executor import ModelExecutor
from trunnion_models.deepseek_v3.config import DeepseekV3Config
from trunnion_models.deepseek_v3.mtp import DeepseekV3MTP

HIDDEN, Q_RANK, HEADS, EXPERTS, INTERMEDIATE, VOCAB = 256, 192, 2, 4, 128, 131
CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "q_lora_rank": Q_RANK,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": INTERMEDIATE,
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "num_nextn_predict_layers": 1,
    "torch_dtype": "bfloat16",
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    },
}
HEAD = 2
"""The head's layer, which is numbered after the decoder's."""
Tensors = dict[str, torch.Tensor]


def quantised(name: str, rows: int, columns: int) -> Tensors:
    weight = torch.randn(rows, columns).to(torch.float8_e4m3fn)
    scale = torch.rand(-(-rows // 128), -(-columns // 128)) + 0.5
    return {f"{name}.weight": weight, f"{name}.weight_scale_inv": scale}


def plain(name: str, *shape: int) -> Tensors:
    return {f"{name}.weight": torch.randn(shape).bfloat16()}


def mlp(name: str, size: int) -> Tensors:
    gate, up = quantised(f"{name}.gate_proj", size, HIDDEN), quantised(f"{name}.up_proj", size, HIDDEN)
    return gate | up | quantised(f"{name}.down_proj", HIDDEN, size)


def layer(index: int, *, sparse: bool) -> Tensors:
    base = f"model.layers.{index}"
    tensors = plain(f"{base}.input_layernorm", HIDDEN) | plain(f"{base}.post_attention_layernorm", HIDDEN)
    attention = f"{base}.self_attn"
    tensors |= quantised(f"{attention}.q_a_proj", Q_RANK, HIDDEN) | plain(f"{attention}.q_a_layernorm", Q_RANK)
    tensors |= quantised(f"{attention}.q_b_proj", HEADS * 192, Q_RANK)
    tensors |= quantised(f"{attention}.kv_a_proj_with_mqa", 576, HIDDEN) | plain(f"{attention}.kv_a_layernorm", 512)
    tensors |= quantised(f"{attention}.kv_b_proj", HEADS * 256, 512)
    tensors |= quantised(f"{attention}.o_proj", HIDDEN, HEADS * 128)
    if not sparse:
        return tensors | mlp(f"{base}.mlp", 256)
    tensors |= plain(f"{base}.mlp.gate", EXPERTS, HIDDEN) | mlp(f"{base}.mlp.shared_experts", INTERMEDIATE)
    tensors[f"{base}.mlp.gate.e_score_correction_bias"] = torch.randn(EXPERTS)
    for expert in range(EXPERTS):
        tensors |= mlp(f"{base}.mlp.experts.{expert}", INTERMEDIATE)
    return tensors


def head() -> Tensors:
    base = f"model.layers.{HEAD}"
    tensors = layer(HEAD, sparse=True) | plain(f"{base}.eh_proj", HIDDEN, 2 * HIDDEN)
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        tensors |= plain(f"{base}.{norm}", HIDDEN)
    return tensors | plain(f"{base}.embed_tokens", VOCAB, HIDDEN) | plain(f"{base}.shared_head.head", VOCAB, HIDDEN)


@pytest.fixture
def tensors() -> Tensors:
    torch.manual_seed(0)
    decoder = layer(0, sparse=False) | layer(1, sparse=True) | plain("model.norm", HIDDEN)
    return decoder | plain("model.embed_tokens", VOCAB, HIDDEN) | plain("lm_head", VOCAB, HIDDEN) | head()


LIMITS = Limits(max_num_tokens=8, max_num_seqs=1, max_model_len=8, max_logits_rows=1, block_size=4)


def write(folder: Path, tensors: Tensors) -> None:
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))


def load(folder: Path, tensors: Tensors) -> LoadedModel:
    write(folder, tensors)
    return load_model(ExecutorConfig(model=folder, hardware="cpu", limits=LIMITS), None, None)


def test_the_decoder_is_loaded_and_the_heads_tensors_are_accounted_for(tensors: Tensors, tmp_path: Path) -> None:
    loaded = load(tmp_path, tensors)
    report = loaded.weight_report
    of_head = {name for name in tensors if name.startswith(f"model.layers.{HEAD}.")}
    assert set(report.ignored["of the draft head"]) == of_head and len(report.ignored) == 1
    assert report.num_used == len(tensors) - len(of_head)


def test_weights_and_scales_lie_where_they_belong(tensors: Tensors, tmp_path: Path) -> None:
    model = load(tmp_path, tensors).model.model
    base = "model.layers.1"
    attention, sparse = model.layers[1].self_attn, model.layers[1].mlp
    ragged = attention.kv_a_proj_with_mqa
    for leaf, shape in (("weight", (576, HIDDEN)), ("weight_scale_inv", (5, 2))):
        stored = tensors[f"{base}.self_attn.kv_a_proj_with_mqa.{leaf}"]
        assert stored.shape == shape and torch.equal(getattr(ragged, leaf).float(), stored.float())
    absorbed, name = attention.kv_b_proj.dense_weight(), f"{base}.self_attn.kv_b_proj"
    scale = tensors[f"{name}.weight_scale_inv"].repeat_interleave(128, 0).repeat_interleave(128, 1)
    torch.testing.assert_close(absorbed, (tensors[f"{name}.weight"].float() * scale).bfloat16())
    bias = tensors[f"{base}.mlp.gate.e_score_correction_bias"]
    assert sparse.gate.e_score_correction_bias.dtype == torch.float32
    assert torch.equal(sparse.gate.e_score_correction_bias, bias)
    for expert in range(EXPERTS):
        parts = [tensors[f"{base}.mlp.experts.{expert}.{part}_proj.weight"] for part in ("gate", "up")]
        assert torch.equal(sparse.experts.w13[expert].float(), torch.cat(parts).float())
        scales = [tensors[f"{base}.mlp.experts.{expert}.{part}_proj.weight_scale_inv"] for part in ("gate", "up")]
        assert torch.equal(sparse.experts.w13_weight_scale_inv[expert], torch.cat(scales))


def test_the_head_is_loaded_beside_its_target(tensors: Tensors, tmp_path: Path) -> None:
    """In FP8 as published, with its copies of what it shares left out."""
    write(tmp_path, tensors)
    options: dict[str, Any] = {"model": tmp_path, "hardware": "cpu", "limits": LIMITS}
    target = ModelExecutor.create(ExecutorConfig(**options, keep_hidden=True))
    draft = ModelExecutor.create(ExecutorConfig(**options, role=Role.DRAFT), share_with=target)
    try:
        ignored = draft.weight_report.ignored
        base = f"model.layers.{HEAD}"
        copies = {f"{base}.embed_tokens.weight", f"{base}.shared_head.head.weight"}
        assert set(ignored["a copy of the decoder's"]) == copies
        decoders = {name for name in tensors if name.startswith(("model.layers.0.", "model.layers.1.", "model.norm"))}
        assert set(ignored["of the decoder that is drafted for"]) == decoders
        assert set(ignored["shared with the target"]) == {"model.embed_tokens.weight", "lm_head.weight"}
        assert draft.weight_report.num_used == len(tensors) - len(copies) - len(decoders) - 2
        head = draft.model.mtp
        assert torch.equal(head.norm.weight, tensors[f"{base}.shared_head.norm.weight"])
        # As it multiplies: how a weight lies is the hardware package's own affair.
        columns = torch.eye(head.eh_proj.in_features, dtype=torch.bfloat16)
        assert torch.equal(head.eh_proj(columns).T, tensors[f"{base}.eh_proj.weight"])
        ragged = tensors[f"{base}.self_attn.kv_a_proj_with_mqa.weight_scale_inv"]
        assert torch.equal(head.layers[0].self_attn.kv_a_proj_with_mqa.weight_scale_inv, ragged)
    finally:
        draft.close()
        target.close()


def test_no_head_is_refused_by_name() -> None:
    config = DeepseekV3Config.from_hf({**CONFIG, "num_nextn_predict_layers": 0})
    ctx = BuildContext(hardware=ReferenceHardware(), dtype=torch.bfloat16)
    with pytest.raises(UnsupportedError, match="num_nextn_predict_layers 0 is not supported; choices: 1"):
        DeepseekV3MTP(config, ctx)


def test_a_layer_behind_the_heads_is_unexpected(tensors: Tensors, tmp_path: Path) -> None:
    tensors[f"model.layers.{HEAD + 1}.enorm.weight"] = torch.ones(HIDDEN)
    with pytest.raises(WeightsError, match=rf"1 unexpected: model\.layers\.{HEAD + 1}\.enorm\.weight"):
        load(tmp_path, tensors)


def test_a_layer_whose_number_begins_with_the_heads_is_not_ignored(tensors: Tensors, tmp_path: Path) -> None:
    tensors[f"model.layers.{HEAD}0.enorm.weight"] = torch.ones(HIDDEN)
    with pytest.raises(WeightsError, match=rf"1 unexpected: model\.layers\.{HEAD}0\.enorm\.weight"):
        load(tmp_path, tensors)
