"""Tiny Llama configurations for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

_BASE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


def _llama(name: str, notes: str, *, host: dict[str, Any] | None = None, **changes: Any) -> Card:
    """`host` are the fields of Card that say what the host does; `changes` go to the configuration."""
    return Card(
        name=f"llama-{name}", architecture="LlamaForCausalLM", config=_BASE | changes, notes=notes, **(host or {})
    )


def _rope(name: str, notes: str, *, max_model_len: int = 64, max_position: int = 64, **rope: Any) -> Card:
    rope = {"rope_theta": 10000.0, **rope}
    return _llama(
        name, notes, host={"max_model_len": max_model_len}, rope_parameters=rope, max_position_embeddings=max_position
    )


_WIDE: dict[str, Any] = {"hidden_size": 160, "intermediate_size": 256, "head_dim": 64}
"""Several blocks of 128 in each weight, the last one cut short in one dimension; two ranks cut between blocks."""


def _quantised(name: str, notes: str, quantization: dict[str, Any], *, quick: bool = False, **changes: Any) -> Card:
    host = {"quick": quick, "quantization": quantization}
    return _llama(name, notes, host=host, **(_WIDE | changes))


def _compressed(kind: str, weights: str, activations: str, ignore: list[str]) -> dict[str, Any]:
    """As llm-compressor writes it."""
    is_dynamic = activations == "token"
    common = {"num_bits": 8, "type": kind, "symmetric": True, "group_size": None}
    group = {
        "targets": ["Linear"],
        "weights": common | {"strategy": weights, "dynamic": False, "observer": "minmax"},
        "input_activations": common | {"strategy": activations, "dynamic": is_dynamic, "observer": None},
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": f"{kind}-quantized",
        "config_groups": {"group_0": group},
        "ignore": ignore,
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
    }


def _packed(
    bits: int,
    group_size: int | None,
    *,
    ignore: list[str],
    symmetric: bool = True,
    actorder: str | None = None,
) -> dict[str, Any]:
    """Weights alone, as llm-compressor writes them."""
    weights = {
        "num_bits": bits,
        "type": "int",
        "strategy": "channel" if group_size is None else "group",
        "group_size": group_size,
        "symmetric": symmetric,
        "actorder": actorder,
        "dynamic": False,
    }
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
        "ignore": ignore,
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
    }


CARDS: tuple[Card, ...] = (
    _llama(
        "quick",
        "head_dim other than hidden / heads, and one that vendors' kernels take; all biases, tied",
        host={"quick": True},
        head_dim=64,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
    ),
    _llama(
        "mha",
        "as many KV heads as query heads; a prompt of one token and one of the longest length, odd blocks",
        host={"seq_lens": (64, 1, 33), "block_size": 7},
        num_key_value_heads=4,
    ),
    _llama(
        "mqa",
        "one KV head, three query heads; blocks of one token",
        host={"block_size": 1},
        hidden_size=48,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=20,
    ),
    _llama(
        "linear",
        "position interpolation, in the older spelling",
        rope_theta=5000.0,
        rope_scaling={"type": "linear", "factor": 3.0},
    ),
    _rope(
        "dynamic",
        "the base chosen by the longest request, beyond max_position_embeddings",
        max_position=32,
        rope_type="dynamic",
        factor=2.5,
    ),
    _rope(
        "llama3",
        "fast, blended and slow features all present",
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=16,
    ),
    _rope("yarn", "amplitude from the factor", rope_type="yarn", factor=4.0, original_max_position_embeddings=16),
    _rope(
        "yarn-mscale",
        "mscale and mscale_all_dim cancel",
        rope_type="yarn",
        factor=16.0,
        original_max_position_embeddings=16,
        mscale=1.0,
        mscale_all_dim=1.0,
    ),
    _rope(
        "longrope-long",
        "requests longer than the original length: long factors",
        rope_type="longrope",
        factor=4.0,
        original_max_position_embeddings=16,
        short_factor=[1.0 + 0.1 * index for index in range(8)],
        long_factor=[1.5 + 0.4 * index for index in range(8)],
    ),
    _rope(
        "longrope-short",
        "no request longer than the original length: short factors",
        max_model_len=32,
        rope_type="longrope",
        factor=2.0,
        original_max_position_embeddings=32,
        short_factor=[1.0 + 0.1 * index for index in range(8)],
        long_factor=[1.5 + 0.4 * index for index in range(8)],
    ),
    _llama(
        "fp8-cache",
        "keys and values cached in FP8, each layer's by scales of its own",
        host={"kv_cache_dtype": "fp8_e4m3"},
        head_dim=64,
    ),
    _quantised(
        "fp8-blocks",
        "FP8 with scales per 128 x 128, the last cut short; one projection left out by its published name",
        {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": ["lm_head", "model.layers.1.mlp.down_proj"],
        },
        quick=True,
    ),
    _quantised(
        "w8a8",
        "compressed-tensors: int8 with scales per row, activations per token; ignored by pattern and by name, biases",
        _compressed("int", "channel", "token", ["re:.*layers\\.0\\.self_attn\\.[qkv]_proj", "lm_head"]),
        quick=True,
        attention_bias=True,
        mlp_bias=True,
    ),
    _quantised(
        "fp8-static",
        "compressed-tensors: FP8 with one scale per tensor, three in a fused layer, and static activations",
        _compressed("float", "tensor", "tensor", ["lm_head"]),
    ),
    _quantised(
        "fp8-rows",
        "compressed-tensors: FP8 with scales per row, activations per token",
        _compressed("float", "channel", "token", ["lm_head"]),
    ),
    _quantised(
        "w4a16",
        "compressed-tensors: weights of 4 bits in groups of 32, symmetric; ignored by pattern and by name, biases",
        _packed(4, 32, ignore=["re:.*layers\\.0\\.mlp\\.(gate|up)_proj", "lm_head"]),
        quick=True,
        attention_bias=True,
        mlp_bias=True,
    ),
    _quantised(
        "w4a16-asymmetric",
        "compressed-tensors: zero points, and features in an order of the checkpoint's",
        _packed(4, 32, ignore=["lm_head"], symmetric=False, actorder="group"),
    ),
    _quantised(
        "w4a16-w8",
        "compressed-tensors: weights of 8 bits, packed, with a scale and a zero point per row",
        _packed(8, None, ignore=["lm_head"], symmetric=False),
    ),
    _quantised(
        "awq",
        "eight outputs to a word in an order of its own, groups of 32; biases, one projection left out",
        {
            "quant_method": "awq",
            "bits": 4,
            "group_size": 32,
            "zero_point": True,
            "version": "gemm",
            "modules_to_not_convert": ["model.layers.1.mlp.down_proj"],
        },
        attention_bias=True,
    ),
    _quantised(
        "gptq",
        "zero points stored less 1, the last group cut short, biases of zeros that the model does not have",
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": False, "desc_act": False},
    ),
    _quantised(
        "gptq-desc-act",
        "features in an order of the checkpoint's, zero points as they are",
        {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": 32,
            "sym": False,
            "desc_act": True,
            "checkpoint_format": "gptq_v2",
        },
    ),
)
