"""Quantised checkpoints as they are published, and what transformers computes of them: dense, with rounded activations.

Written without trunnion's operators: these are the truth that they are held against.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from . import mxfp4_checkpoint, packed_checkpoint

DENSE = "dense"
"""Folder beside the quantised tensors: the same weights, each multiplied by its scale."""
BLOCK = 128
ROW_PARALLEL = ("o_proj", "down_proj")
"""Modules whose input ranks have a slice of each."""
SEED = 77
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
Tensors = dict[str, torch.Tensor]


def save_quantised(folder: Path, settings: Mapping[str, Any], ranks: int = 1) -> None:
    """Quantise the checkpoint in `folder` as `settings`, its `quantization_config`, says; made dense it is in DENSE.

    `ranks` is how many will run it: each rounds the features that it has computed itself.
    """
    tensors = load_file(folder / "model.safetensors")
    dense_folder = folder / DENSE
    dense_folder.mkdir()
    shutil.copy(folder / "config.json", dense_folder)
    if settings["quant_method"] == "mxfp4":
        _save_mxfp4(folder, tensors)
        return
    kind = _kind(settings)
    modules = [name.removesuffix(".weight") for name in tensors if _is_quantised(name, kind["ignore"])]
    generator = torch.Generator().manual_seed(SEED)
    dense, stored = dict(tensors), dict(tensors)
    dtype = next(iter(tensors.values())).dtype
    for module in modules:
        spread = _uneven(tensors[f"{module}.weight"].float(), generator)
        if kind["packed"]:
            integers = packed_checkpoint.quantise(spread, settings, module, dtype)
            made, weight = packed_checkpoint.published(integers, settings), integers.dense()
        else:
            made, weight = _quantise_weight(spread, kind)
        del stored[f"{module}.weight"]
        # What a layer has of its own stays: GPTQ writes a bias of zeros where there is none.
        stored |= {name: tensor for leaf, tensor in made.items() if (name := f"{module}.{leaf}") not in stored}
        dense[f"{module}.weight"] = weight
    scales: dict[str, float] = {}
    # In float32: most products of a value and its scale have no place in bfloat16.
    save_file(
        {name: tensor.float() for name, tensor in dense.items()}, dense_folder / "model.safetensors", {"format": "pt"}
    )
    if kind["static"]:
        scales = _calibrate(dense_folder, modules)
        stored |= {f"{module}.input_scale": torch.tensor([scale]) for module, scale in scales.items()}
    stored = {name: tensor.to(dtype) if tensor.dtype == torch.bfloat16 else tensor for name, tensor in stored.items()}
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    rounded = [] if kind["packed"] else modules
    how = {
        "modules": rounded,
        "int8": kind["dtype"] == torch.int8,
        "group": kind["group"],
        "scales": scales,
        "ranks": ranks,
    }
    (dense_folder / "how.json").write_text(json.dumps(how))


def _save_mxfp4(folder: Path, tensors: Tensors) -> None:
    save_file(mxfp4_checkpoint.published(tensors), folder / "model.safetensors", {"format": "pt"})
    weights = {name: tensor.float() for name, tensor in mxfp4_checkpoint.dense(tensors).items()}
    save_file(weights, folder / DENSE / "model.safetensors", {"format": "pt"})
    (folder / DENSE / "how.json").write_text(json.dumps({"modules": [], "int8": False, "group": None, "scales": {}}))


def quantise_activations(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """`model` with the inputs of its quantised layers rounded as `save_quantised` has written in `folder`.

    Not those of `kv_b_proj`, which is never applied to a token: it goes into queries and outputs, dense.
    """
    how = json.loads((folder / "how.json").read_text())
    dtype = torch.int8 if how["int8"] else torch.float8_e4m3fn
    for name, module in model.named_modules():
        if name in how["modules"] and not name.endswith("kv_b_proj"):
            slices = how["ranks"] if name.endswith(ROW_PARALLEL) else 1
            rounding = _rounding(dtype, how["group"], how["scales"].get(name), slices)
            module.register_forward_pre_hook(lambda _module, args, rounding=rounding: (rounding(args[0]), *args[1:]))
        elif any(each.startswith(f"{name}.0.") for each in how["modules"]) and name.endswith("experts"):
            roundings = [_rounding(dtype, how["group"], None, slices) for slices in (1, how["ranks"])]
            module.forward = MethodType(_experts(*roundings), module)
    return model


def _kind(settings: Mapping[str, Any]) -> dict[str, Any]:
    if packed_checkpoint.is_packed(settings):
        ignore = packed_checkpoint.ignored_modules(settings)
        return {"packed": True, "dtype": torch.int8, "group": None, "static": False, "ignore": ignore}
    if settings["quant_method"] == "fp8":
        is_block = settings.get("weight_block_size") is not None
        return {
            "packed": False,
            "dtype": torch.float8_e4m3fn,
            "weights": "block" if is_block else "tensor",
            "scale": "weight_scale_inv" if is_block else "weight_scale",
            "group": BLOCK if is_block else None,
            "static": settings["activation_scheme"] == "static",
            "ignore": ["lm_head", *settings.get("modules_to_not_convert", [])],
        }
    (group,) = settings["config_groups"].values()
    weights, inputs = group["weights"], group["input_activations"]
    return {
        "packed": False,
        "dtype": torch.int8 if weights["type"] == "int" else torch.float8_e4m3fn,
        "weights": weights["strategy"],
        "scale": "weight_scale",
        "group": BLOCK if weights["strategy"] == "block" else None,
        "static": not inputs["dynamic"],
        "ignore": settings["ignore"],
    }


def _is_quantised(name: str, ignore: list[str]) -> bool:
    """Projections but for those that are ignored; in the tests a pattern is one that fits the whole name."""
    module = name.removesuffix(".weight")
    if not re.search(r"_proj(_with_mqa|_qkv|_z)?\.weight$", name):
        return False
    return not any(module == each or re.fullmatch(each.removeprefix("re:"), module) for each in ignore)


def _uneven(weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Rows and columns of different sizes, so that no scale can stand for another."""
    for dim, size in enumerate(weight.shape):
        factors = torch.exp(0.5 * torch.randn(-(-size // 32), generator=generator)).repeat_interleave(32)[:size]
        weight = weight * (factors.unsqueeze(1) if dim == 0 else factors)
    return weight


def _quantise_weight(weight: torch.Tensor, kind: Mapping[str, Any]) -> tuple[Tensors, torch.Tensor]:
    rows, columns = weight.shape
    if kind["weights"] == "block":
        scale = torch.empty(-(-rows // BLOCK), -(-columns // BLOCK))
        spread = torch.empty_like(weight)
        for i in range(scale.shape[0]):
            for j in range(scale.shape[1]):
                at = slice(i * BLOCK, (i + 1) * BLOCK), slice(j * BLOCK, (j + 1) * BLOCK)
                scale[i, j] = weight[at].abs().max() / LARGEST[kind["dtype"]]
                spread[at] = scale[i, j]
    else:
        scale = weight.abs().amax(1, keepdim=True) / LARGEST[kind["dtype"]]
        if kind["weights"] == "tensor":
            scale = scale.amax().reshape(1)
        spread = scale.expand_as(weight)
    values = _rounded(weight / spread, kind["dtype"])
    return {"weight": values.to(kind["dtype"]), kind["scale"]: scale.clone()}, values * spread


def _rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    x = x.clamp(-LARGEST[dtype], LARGEST[dtype])
    return x.round() if dtype == torch.int8 else x.to(dtype).float()


def _rounding(
    dtype: torch.dtype, group: int | None, scale: float | None, slices: int = 1
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Rows by a scale for each group of features, or for each of the slices that ranks have."""

    def round_rows(x: torch.Tensor) -> torch.Tensor:
        pieces = []
        for part in x.float().chunk(slices, dim=-1):
            for piece in part.split(group or part.shape[-1], dim=-1):
                own = (piece.abs().amax(-1, keepdim=True) / LARGEST[dtype]).clamp(min=1e-12) if scale is None else scale
                pieces.append(_rounded(piece / own, dtype) * own)
        return torch.cat(pieces, -1).to(x.dtype)

    return round_rows


def _experts(
    rounding: Callable[[torch.Tensor], torch.Tensor], rounding_down: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[..., torch.Tensor]:
    """A forward of transformers' stacked experts whose products round what enters them, the second one by slices."""

    def forward(
        self: nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        out = torch.zeros_like(hidden_states, dtype=torch.float32)
        for expert in top_k_index.unique().tolist():
            rows, choice = torch.where(top_k_index == expert)
            gate, up = F.linear(rounding(hidden_states[rows]), self.gate_up_proj[expert]).chunk(2, dim=-1)
            value = F.linear(rounding_down(self.act_fn(gate) * up), self.down_proj[expert])
            out.index_add_(0, rows, value.float() * top_k_weights[rows, choice, None].float())
        return out.to(hidden_states.dtype)

    return forward


@torch.inference_mode()
def _calibrate(folder: Path, modules: list[str]) -> dict[str, float]:
    """Scales by which the largest input of each module, over some random tokens, is cut off a little."""
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    scales: dict[str, float] = {}
    for name, module in model.named_modules():
        if name in modules:
            module.register_forward_pre_hook(
                lambda _module, args, name=name: scales.update({name: float(args[0].abs().max()) * 0.9 / 448.0})
            )
    ids = torch.randint(0, config.vocab_size, (2, 32), generator=torch.Generator().manual_seed(SEED))
    model(ids, use_cache=False)
    return scales
