"""GGUF files under their Hugging Face names: layouts undone, configs rebuilt, damage and unknown kinds refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from trunnion import registry
from trunnion.config import BuildContext
from trunnion.errors import ConfigError, TrunnionError, UnsupportedError, WeightsError
from trunnion.reference.hardware import ReferenceHardware
from trunnion.rope import inv_freq_and_scale, read_rope
from trunnion.text.sample_model import find_sample_model
from trunnion.weights.checkpoint import open_checkpoint
from trunnion.weights.gguf_source import GGUFSource
from trunnion.weights.loader import load_weights

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCAB, LAYERS = 32, 4, 2, 16, 64, 11, 2

Arrays = dict[str, np.ndarray]
Write = Callable[..., Path]

QUANTIZED = gguf.GGMLQuantizationType.Q8_0


def to_pairs(weight: np.ndarray, heads: int) -> np.ndarray:
    """What the converter does to q and k of llama: the two halves of a head become neighbouring rows."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def tensors(arch: str, *, tied: bool = False, seed: int = 0) -> Arrays:
    """Hugging Face tensors of a tiny model, by GGUF name and before the converter's changes."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (VOCAB, HIDDEN), "output_norm": (HIDDEN,)}
    if not tied:
        shapes["output"] = (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        blk = f"blk.{layer}"
        shapes |= {
            f"{blk}.attn_norm": (HIDDEN,),
            f"{blk}.attn_q": (HEADS * HEAD_DIM, HIDDEN),
            f"{blk}.attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{blk}.attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{blk}.attn_output": (HIDDEN, HEADS * HEAD_DIM),
            f"{blk}.ffn_norm": (HIDDEN,),
            f"{blk}.ffn_gate": (INTERMEDIATE, HIDDEN),
            f"{blk}.ffn_up": (INTERMEDIATE, HIDDEN),
            f"{blk}.ffn_down": (HIDDEN, INTERMEDIATE),
        }
        if arch in ("qwen3", "gemma3"):
            shapes |= {f"{blk}.attn_q_norm": (HEAD_DIM,), f"{blk}.attn_k_norm": (HEAD_DIM,)}
        if arch == "gemma3":
            shapes |= {f"{blk}.post_attention_norm": (HIDDEN,), f"{blk}.post_ffw_norm": (HIDDEN,)}
    found = {f"{name}.weight": rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    if arch == "qwen2":
        for layer in range(LAYERS):
            for part, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
                found[f"blk.{layer}.attn_{part}.bias"] = rng.standard_normal(heads * HEAD_DIM, dtype=np.float32)
    return found


def metadata(arch: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "block_count": LAYERS,
        "context_length": 256,
        "embedding_length": HIDDEN,
        "feed_forward_length": INTERMEDIATE,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 500000.0,
    }
    if arch == "gemma3":
        found |= {"attention.sliding_window": 8, "rope.freq_base": 1000000.0}
    return found


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def run(
        arch: str,
        arrays: Arrays,
        *,
        quantized: tuple[str, ...] = (),
        tokens: int = VOCAB,
        general: dict[str, Any] | None = None,
        **changed: Any,
    ) -> Path:
        path = tmp_path / "model.gguf"
        writer = gguf.GGUFWriter(path, arch)
        values = metadata(arch) | {key.replace("__", "."): value for key, value in changed.items()}
        named = {f"{arch}.{key}": value for key, value in values.items() if value is not None} | (general or {})
        for key, value in named.items():
            add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
            add[type(value)](key, value)
        writer.add_token_list([f"t{index}" for index in range(tokens)])
        writer.add_eos_token_id(2)
        writer.add_bos_token_id(1)
        writer.add_eot_token_id(5)
        for name, array in arrays.items():
            if name in quantized:
                writer.add_tensor(name, gguf.quantize(array, QUANTIZED), raw_dtype=QUANTIZED)
            else:
                writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return run


def converted(arch: str, arrays: Arrays) -> Arrays:
    """`arrays` after the converter."""
    out = dict(arrays)
    for name, array in arrays.items():
        if arch == "llama" and ".attn_q." in name:
            out[name] = to_pairs(array, HEADS)
        if arch == "llama" and ".attn_k." in name:
            out[name] = to_pairs(array, KV_HEADS)
        if arch == "gemma3" and name.endswith("norm.weight"):
            out[name] = array + 1
    return out


def read_all(source: GGUFSource) -> dict[str, torch.Tensor]:
    return dict(source.tensors(set(source.infos)))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "gemma3"])
def test_an_architecture_loads_into_its_family(write: Write, arch: str, tied: bool) -> None:
    arrays = tensors(arch, tied=tied)
    opened = open_checkpoint(write(arch, converted(arch, arrays)))
    family = registry.model_class(opened.config)
    config = family.config_class.from_hf(opened.config)
    assert (config.head_dim, config.num_key_value_heads, config.vocab_size) == (HEAD_DIM, KV_HEADS, VOCAB)
    assert config.tie_word_embeddings is tied
    assert opened.config["eos_token_id"] == [2, 5]
    assert opened.config["rms_norm_eps"] == 1e-6
    with torch.device("meta"):
        model = family(config, BuildContext(hardware=ReferenceHardware(), dtype=torch.float32))
    load_weights(model, opened.source, family.weight_map, dtype=torch.float32, device=torch.device("cpu"))
    qkv = model.model.layers[1].self_attn.qkv_proj
    expected = np.concatenate([arrays[f"blk.1.attn_{part}.weight"] for part in "qkv"])
    assert torch.equal(qkv.weight, torch.from_numpy(expected))
    if arch == "qwen2":
        assert torch.equal(qkv.bias, torch.from_numpy(np.concatenate([arrays[f"blk.1.attn_{p}.bias"] for p in "qkv"])))
    norm = torch.from_numpy(arrays["blk.1.attn_norm.weight"])
    assert torch.allclose(model.model.layers[1].input_layernorm.weight, norm, atol=1e-6)


def test_biases_of_llama_are_restored_as_well(write: Write) -> None:
    arrays = tensors("llama")
    bias = np.arange(HEADS * HEAD_DIM, dtype=np.float32)
    for layer in range(LAYERS):
        arrays[f"blk.{layer}.attn_q.bias"] = bias
    source = GGUFSource(write("llama", converted("llama", arrays)))
    assert torch.equal(read_all(source)["model.layers.0.self_attn.q_proj.bias"], torch.from_numpy(bias))
    assert source.hf_config()["attention_bias"] is True


def test_gemma_has_its_norms_windows_and_two_ropes(write: Write) -> None:
    arrays = tensors("gemma3", tied=True)
    source = GGUFSource(write("gemma3", converted("gemma3", arrays)))
    got = read_all(source)
    for gguf_name, hf_name in (
        ("attn_norm", "input_layernorm"),
        ("post_attention_norm", "post_attention_layernorm"),
        ("ffn_norm", "pre_feedforward_layernorm"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
        ("attn_q_norm", "self_attn.q_norm"),
    ):
        expected = torch.from_numpy(arrays[f"blk.0.{gguf_name}.weight"])
        assert torch.allclose(got[f"model.layers.0.{hf_name}.weight"], expected, atol=1e-6), hf_name
    config = source.hf_config()
    family = registry.model_class(config).config_class.from_hf(config)
    assert family.windows == (8, 8)
    assert family.query_pre_attn_scalar == HEAD_DIM
    assert read_rope(config, "sliding_attention").rope_theta == 10000.0
    assert read_rope(config, "full_attention").rope_theta == 1000000.0


def test_quantised_tensors_come_as_float32(write: Write) -> None:
    arrays = tensors("qwen3")
    names = ("blk.0.ffn_up.weight", "token_embd.weight")
    source = GGUFSource(write("qwen3", arrays, quantized=names))
    assert source.infos["model.layers.0.mlp.up_proj.weight"].stored == "Q8_0"
    got = read_all(source)["model.layers.0.mlp.up_proj.weight"]
    assert got.dtype is torch.float32
    assert got.shape == (INTERMEDIATE, HIDDEN)
    torch.testing.assert_close(got, torch.from_numpy(arrays[names[0]]), atol=0.02, rtol=0)


def test_the_dtype_is_that_of_most_bytes(write: Write) -> None:
    assert GGUFSource(write("qwen3", tensors("qwen3"))).hf_config()["torch_dtype"] == "float32"
    half = {name: array.astype(np.float16) for name, array in tensors("qwen3").items()}
    assert GGUFSource(write("qwen3", half)).hf_config()["torch_dtype"] == "float16"
    names = tuple(name for name, array in tensors("qwen3").items() if array.ndim == 2)
    quantized = GGUFSource(write("qwen3", tensors("qwen3"), quantized=names))
    assert quantized.hf_config()["torch_dtype"] == "float32"


def test_llama3s_rope_is_recovered_from_its_divisors(write: Write) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = {"rope_theta": 500000.0, "max_position_embeddings": 256}
    scaled, _ = inv_freq_and_scale(read_rope({**config, "rope_scaling": scaling}), HEAD_DIM)
    plain, _ = inv_freq_and_scale(read_rope(config), HEAD_DIM)
    arrays = tensors("llama") | {"rope_freqs.weight": (plain / scaled).numpy()}
    source = GGUFSource(write("llama", arrays))
    assert source.hf_config()["rope_scaling"] == scaling
    assert not any("rope" in name for name in source.infos)
    arrays["rope_freqs.weight"][3] *= 1.01
    with pytest.raises(UnsupportedError, match=r"rope_freqs\.weight"):
        GGUFSource(write("llama", arrays)).hf_config()


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"rope.scaling.type": "none"}, None),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}, {"rope_type": "linear", "factor": 8.0}),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 64,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        ),
    ],
)
def test_a_scaled_rope_is_in_the_config(write: Write, keys: dict[str, Any], expected: dict[str, Any] | None) -> None:
    config = GGUFSource(write("qwen3", tensors("qwen3"), **keys)).hf_config()
    assert config["rope_scaling"] == expected
    read_rope(config)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"rope.scaling.type": "longrope", "rope.scaling.factor": 4.0}, "rope scaling 'longrope'"),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.yarn_log_multiplier": 0.1},
            "yarn_log_multiplier",
        ),
        ({"rope.dimension_count": 8}, "8 of 16 features"),
        ({"expert_count": 8}, "expert_count"),
        ({"attention.head_count_kv": [2, 1]}, "head_count_kv"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"pooling_type": 3}, "qwen3.pooling_type 3 is not supported"),
    ],
)
def test_what_a_family_cannot_run_is_refused_by_key(write: Write, keys: dict[str, Any], expected: str) -> None:
    with pytest.raises(UnsupportedError, match=expected):
        GGUFSource(write("qwen3", tensors("qwen3"), **keys)).hf_config()


def test_a_missing_key_is_named(write: Write) -> None:
    with pytest.raises(ConfigError, match=r"qwen3\.context_length is missing"):
        GGUFSource(write("qwen3", tensors("qwen3"), context_length=None)).hf_config()


def test_more_tokens_than_rows_are_named(write: Write) -> None:
    with pytest.raises(ConfigError, match=r"12 tokens, but token_embd\.weight has 11 rows"):
        GGUFSource(write("qwen3", tensors("qwen3"), tokens=12)).hf_config()


def test_an_unknown_architecture_is_named_with_the_choices(write: Write) -> None:
    with pytest.raises(UnsupportedError, match="unknown GGUF architecture 'rwkv7'; supported: llama, qwen2"):
        GGUFSource(write("rwkv7", {}))


def test_a_tensor_that_the_architecture_does_not_have_is_named(write: Write) -> None:
    arrays = tensors("qwen3") | {"blk.0.ssm_in.weight": np.zeros((2, 2), dtype=np.float32)}
    with pytest.raises(UnsupportedError, match=r"blk\.0\.ssm_in\.weight"):
        GGUFSource(write("qwen3", arrays))


def test_a_missing_tensor_is_named(write: Write) -> None:
    arrays = tensors("qwen3")
    del arrays["blk.1.ffn_down.weight"]
    opened = open_checkpoint(write("qwen3", arrays))
    family = registry.model_class(opened.config)
    ctx = BuildContext(hardware=ReferenceHardware(), dtype=torch.float32)
    with torch.device("meta"):
        model = family(family.config_class.from_hf(opened.config), ctx)
    with pytest.raises(WeightsError, match=r"1 missing: model\.layers\.1\.mlp\.down_proj\.weight$"):
        load_weights(model, opened.source, family.weight_map, dtype=torch.float32, device=torch.device("cpu"))


def test_a_file_cut_anywhere_is_named(write: Write) -> None:
    path = write("qwen3", tensors("qwen3"))
    content = path.read_bytes()
    for size in [0, 3, 4, 20, 24, *range(100, len(content) - 32, 997)]:
        path.write_bytes(content[:size])
        with pytest.raises(TrunnionError) as caught:
            GGUFSource(path)
        assert "model.gguf" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_one_part_of_a_split_model_is_refused(write: Write) -> None:
    with pytest.raises(UnsupportedError, match="one of 3 parts"):
        GGUFSource(write("qwen3", tensors("qwen3"), general={"split.count": 3}))


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"x" * 64)
    with pytest.raises(ConfigError, match=r"expected a model folder or a \.gguf file"):
        open_checkpoint(path)
    path = path.rename(tmp_path / "model.gguf")
    with pytest.raises(ConfigError, match="not a GGUF file"):
        open_checkpoint(path)


def test_the_sample_model_equals_what_transformers_reads() -> None:
    transformers = pytest.importorskip("transformers")
    reader = pytest.importorskip("transformers.modeling_gguf_pytorch_utils")
    path = find_sample_model("smollm2")
    opened = open_checkpoint(path)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig.from_dict(opened.config))
    loaded = reader.load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    expected, config = loaded["tensors"], loaded["config"]
    got = dict(opened.source.tensors(set(opened.source.infos)))
    assert set(got) == set(expected)
    for name, tensor in got.items():
        assert torch.equal(tensor, torch.as_tensor(expected[name])), name
    for field in ("hidden_size", "num_key_value_heads", "vocab_size", "tie_word_embeddings", "num_hidden_layers"):
        assert opened.config[field] == config[field], field
    assert opened.config["rope_theta"] == config["rope_theta"]
    assert opened.config["rms_norm_eps"] == pytest.approx(config["rms_norm_eps"], rel=1e-6)
