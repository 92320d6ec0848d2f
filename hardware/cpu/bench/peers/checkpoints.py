"""Writes the checkpoints that are measured, once, to the user's cache: one model in the files that each engine reads.

Of the same numbers in bfloat16: a Hugging Face folder, compressed-tensors in 8 bits (weights and activations) and in 4
bits (weights alone, groups of 32), and GGUF in BF16, F16, Q8_0 and Q4_0. The models tie their embeddings, so that every
weight of a file is read in each step. Q4_0 files keep the embedding in Q8_0; compressed-tensors leaves it in bfloat16.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import save_file

from trunnion.text.gguf_metadata import read_gguf_metadata
from trunnion.text.sample_model import find_sample_model
from trunnion.weights.gguf_source import GGUFSource

VERSION = "1"
"""Counted up when the files change."""
GROUP = 32
EMBEDDING = "model.embed_tokens.weight"
CONTEXT = 4096
QWEN3: Mapping[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": True,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}
_LEAVES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Within a layer: Hugging Face's name -> llama.cpp's."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A causal model as Hugging Face has it."""

    config: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]
    """In bfloat16."""
    vocabulary: Mapping[str, Any]
    """The `tokenizer.ggml.*` fields of its GGUF files."""


def checkpoint(model: str, kind: str) -> tuple[Path, int]:
    """A file or folder of `contestants.MODELS`, written if it is not there, and the bytes of its weights.

    Args:
        kind: `bf16`, `int8` or `int4` for a folder; `BF16.gguf`, `F16.gguf`, `Q8_0.gguf` or `Q4_0.gguf`.
    """
    folder = _cache_folder() / model
    path, note = folder / kind, folder / f"{kind}.bytes"
    if not note.is_file():
        partial = folder / f"{kind}.partial"
        folder.mkdir(parents=True, exist_ok=True)
        _remove(partial)
        size = _WRITERS[kind](_MODELS[model](), partial)
        _remove(path)
        partial.rename(path)
        note.write_text(str(size))
    return path, int(note.read_text())


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "trunnion" / f"bench-peers-{VERSION}"


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _smollm2() -> Model:
    path = find_sample_model("smollm2")
    source = GGUFSource(path)
    config = {**source.hf_config(), **source.generation_config()}
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in source.tensors(source.infos)}
    metadata = read_gguf_metadata(path)
    vocabulary = {name: value for name, value in metadata.items() if name.startswith("tokenizer.")}
    return Model(config=config, tensors=tensors, vocabulary=vocabulary)


def _qwen3() -> Model:
    config = QWEN3
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (heads, hidden),
        "self_attn.k_proj": (kv_heads, hidden),
        "self_attn.v_proj": (kv_heads, hidden),
        "self_attn.o_proj": (hidden, heads),
        "self_attn.q_norm": (head,),
        "self_attn.k_norm": (head,),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    generator = torch.Generator().manual_seed(0)

    def draw(shape: tuple[int, ...]) -> torch.Tensor:
        if len(shape) == 1:
            return torch.ones(shape, dtype=torch.bfloat16)
        return (torch.randn(shape, generator=generator) * 0.03).to(torch.bfloat16)

    tensors = {EMBEDDING: draw((config["vocab_size"], hidden)), "model.norm.weight": draw((hidden,))}
    for layer in range(config["num_hidden_layers"]):
        tensors |= {f"model.layers.{layer}.{leaf}.weight": draw(shape) for leaf, shape in shapes.items()}
    return Model(config=config, tensors=tensors, vocabulary=_made_up_vocabulary(config["vocab_size"]))


def _made_up_vocabulary(size: int) -> dict[str, Any]:
    """As many tokens as the model has rows: every byte, one merge, and words that nothing makes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    letters = [chr(byte) for byte in printable] + [chr(256 + index) for index in range(len(rest))]
    words = [f"<|{index}|>" for index in range(size - len(letters) - 1)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [*letters, "ab", *words],
        "tokenizer.ggml.token_type": [1] * (len(letters) + 1) + [3] * len(words),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": QWEN3["bos_token_id"],
        "tokenizer.ggml.eos_token_id": QWEN3["eos_token_id"],
        "tokenizer.ggml.add_bos_token": False,
    }


def _write_folder(folder: Path, model: Model, tensors: Mapping[str, torch.Tensor], quantised: Mapping[str, Any]) -> int:
    folder.mkdir()
    rope = {"rope_type": "default", "rope_theta": model.config["rope_theta"]}
    config = {**model.config, "rope_parameters": rope, "torch_dtype": "bfloat16"}
    if quantised:
        config["quantization_config"] = quantised
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
    return sum(tensor.nbytes for tensor in tensors.values())


def _write_bf16(model: Model, folder: Path) -> int:
    return _write_folder(folder, model, model.tensors, {})


def _write_int8(model: Model, folder: Path) -> int:
    """Weights by rows; activations are quantised by token as they come."""
    tensors = {}
    for name, weight in model.tensors.items():
        if not _is_linear(name):
            tensors[name] = weight
            continue
        scale = weight.float().abs().amax(1, keepdim=True) / 127
        tensors[name] = (weight.float() / scale).round().clamp(-127, 127).to(torch.int8)
        tensors[f"{name}_scale"] = scale.to(torch.bfloat16)
    weights = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "dynamic": False}
    inputs = {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True}
    return _write_folder(folder, model, tensors, _compressed("int-quantized", weights, inputs))


def _write_int4(model: Model, folder: Path) -> int:
    tensors = {}
    for name, weight in model.tensors.items():
        if not _is_linear(name):
            tensors[name] = weight
            continue
        rows, columns = weight.shape
        groups = weight.float().view(rows, columns // GROUP, GROUP)
        scale = groups.abs().amax(2, keepdim=True) / 7
        values = (groups / scale).round().clamp(-8, 7).to(torch.int32) + 8
        words = values.view(rows, columns // 8, 8) << torch.arange(0, 32, 4, dtype=torch.int32)
        base = name.removesuffix("weight")
        tensors[f"{base}weight_packed"] = words.sum(2).to(torch.int32)
        tensors[f"{base}weight_scale"] = scale.squeeze(2).to(torch.bfloat16)
        tensors[f"{base}weight_shape"] = torch.tensor([rows, columns])
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": True}
    return _write_folder(folder, model, tensors, _compressed("pack-quantized", weights, None))


def _compressed(form: str, weights: Mapping[str, Any], inputs: Mapping[str, Any] | None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def _is_linear(name: str) -> bool:
    return name.endswith("_proj.weight")


def _gguf_writer(of_linear: Type, of_embedding: Type) -> Callable[[Model, Path], int]:
    def write(model: Model, path: Path) -> int:
        config = model.config
        writer = gguf.GGUFWriter(path, config["model_type"])
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_embedding_length(config["hidden_size"])
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count(config["num_attention_heads"])
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_key_length(_head_dim(config))
        writer.add_value_length(_head_dim(config))
        writer.add_rope_dimension_count(_head_dim(config))
        writer.add_rope_freq_base(config["rope_theta"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_vocab_size(config["vocab_size"])
        writer.add_file_type(_FILE_TYPES[of_linear])
        for field, value in model.vocabulary.items():
            _add_field(writer, field, value)
        size = 0
        for name, weight in _as_llama_cpp(model):
            kind = Type.F32 if weight.ndim == 1 else of_embedding if name == "token_embd.weight" else of_linear
            data = gguf.quants.quantize(np.ascontiguousarray(weight.float().numpy()), kind)
            writer.add_tensor(name, data, raw_dtype=kind)
            size += data.nbytes
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return size

    return write


def _add_field(writer: gguf.GGUFWriter, field: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(field, value)
    elif isinstance(value, bool):
        writer.add_bool(field, value)
    elif isinstance(value, int):
        writer.add_uint32(field, value)
    else:
        writer.add_string(field, value)


def _as_llama_cpp(model: Model) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and layouts of llama.cpp, which rotates neighbouring pairs of `llama` models, not halves."""
    heads = {"attn_q": model.config["num_attention_heads"], "attn_k": model.config["num_key_value_heads"]}
    for name, weight in model.tensors.items():
        if name in (EMBEDDING, "model.norm.weight"):
            yield ("token_embd.weight" if name == EMBEDDING else "output_norm.weight"), weight
            continue
        number, _, rest = name.removeprefix("model.layers.").partition(".")
        leaf = _LEAVES[rest.removesuffix(".weight")]
        if model.config["model_type"] == "llama" and leaf in heads:
            rows, columns = weight.shape
            halves = weight.reshape(heads[leaf], 2, rows // heads[leaf] // 2, columns)
            weight = halves.swapaxes(1, 2).reshape(rows, columns)
        yield f"blk.{number}.{leaf}.weight", weight


def _head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


_FILE_TYPES = {Type.F16: 1, Type.Q4_0: 2, Type.Q8_0: 7, Type.BF16: 32}
"""llama.cpp's `llama_ftype`."""
_MODELS: Mapping[str, Callable[[], Model]] = {"smollm2": _smollm2, "qwen3-0.6b": _qwen3}
_WRITERS: Mapping[str, Callable[[Model, Path], int]] = {
    "bf16": _write_bf16,
    "int8": _write_int8,
    "int4": _write_int4,
    "BF16.gguf": _gguf_writer(Type.BF16, Type.BF16),
    "F16.gguf": _gguf_writer(Type.F16, Type.F16),
    "Q8_0.gguf": _gguf_writer(Type.Q8_0, Type.Q8_0),
    "Q4_0.gguf": _gguf_writer(Type.Q4_0, Type.Q8_0),
}
