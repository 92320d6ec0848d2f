"""The truth of the matrix: a transformers model with random weights that matter, and its logits."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging

from trunnion.config import PoolingConfig
from trunnion_models.card import Card

from .deepseek_mtp_reference import PARTS, DeepseekMTPReference
from .eagle3_reference import FOLDER, eagle3_rows, load_eagle3, make_eagle3
from .hf_encoders import encoder_class, rows_of_prefixes
from .hf_images import Images, make_images, place, positions_of, run_with_images
from .mtp_reference import MTPReference
from .quantised_checkpoint import DENSE, quantise_activations, save_quantised
from .rounded_cache import RoundedCache, save_scales
from .routers import margin, routers

SEED = 1234
LEAST_ID = 2
"""Of the random tokens: what lies below may be a padding token, at which some encoders count no position."""
_MODE_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
CANDIDATES = 64
"""Random sequences per sequence wanted, where there is a choice to make."""

logging.disable_progress_bar()


@dataclass(frozen=True)
class Reference:
    """One card's checkpoint in one dtype, its sequences and what the reference implementation says of them."""

    folder: Path
    sequences: list[list[int]]
    """Each `max_model_len` tokens long; tests use prefixes."""
    logits: torch.Tensor
    """[sequences, max_model_len, vocab_size] float32, computed in float32; of a pooling model the embeddings that end
    at each position, [sequences, max_model_len, hidden_size]; of a draft one row less, for it takes the next token."""
    own_error: torch.Tensor | None
    """Same shape: what the reference implementation itself loses in bfloat16; None in float32."""
    card: Card
    positions: torch.Tensor | None = None
    """[sequences, max_model_len, 3] int32 of a vision-language model."""
    token_ids: torch.Tensor | None = None
    """[columns]: the tokens that the columns of `logits` are, where these are few; the others cannot be said."""

    @property
    def draft_folder(self) -> Path | None:
        """Of a draft that has its own checkpoint."""
        return None if self.card.draft_config is None else self.folder / FOLDER

    @property
    def images(self) -> Images:
        """Those in the sequences."""
        return make_images(self.card)


def build_reference(card: Card, dtype: torch.dtype, folder: Path, *, ranks: int = 1) -> Reference:
    """Random weights rounded to `dtype`, saved in `folder`; logits in float32 of the same weights.

    `ranks` will run it together, and round quantised activations each for itself.

    Every sequence runs at full length, so that ropes that look at the length (dynamic, longrope) see the longest.
    """
    model = random_model(card).to(dtype)
    model.save_pretrained(folder)
    token_ids = None
    if card.draft_config is not None:
        token_ids = _save_random_eagle3(card, folder / FOLDER, dtype)
    elif card.draft:
        save_with_head(folder, _random_head(model.config).to(dtype))
    if card.quantization is not None:
        save_quantised(folder, card.quantization, ranks)
    if card.kv_cache_dtype != "auto":
        save_scales(folder, model.config.num_hidden_layers)
    # In the card's own spelling: what save_pretrained writes is resolved already, and would leave us nothing to read.
    config = {"architectures": [card.architecture], "dtype": str(dtype).removeprefix("torch."), **card.config}
    if card.quantization is not None:
        config["quantization_config"] = dict(card.quantization)
    (folder / "config.json").write_text(json.dumps(config))
    if card.pooling is not None:
        _write_sentence_transformers_files(card.pooling, folder)
    ids, positions = _choose_sequences(card, folder), None
    if card.images:
        ids = place(ids, card)
        positions = positions_of(load_reference(folder, torch.float32), ids, card)
    rows = _rows(folder, torch.float32, ids, card)
    own_error = None if dtype == torch.float32 else _rows(folder, dtype, ids, card) - rows
    return Reference(folder, ids.tolist(), rows, own_error, card, positions, token_ids)


def sensitivity(reference: Reference) -> float:
    """How much the third row's logits change with the first token, relative to their size: 0 if nothing is attended."""
    ids = torch.tensor(reference.sequences)
    changed = ids.clone()
    changed[:, 0] = (changed[:, 0] + 1 - LEAST_ID) % (reference.card.vocab_size - LEAST_ID) + LEAST_ID
    difference = _rows(reference.folder, torch.float32, changed, reference.card)[:, 2] - reference.logits[:, 2]
    return float(difference.abs().max() / reference.logits.abs().max())


@torch.inference_mode()
def _rows(folder: Path, dtype: torch.dtype, ids: torch.Tensor, card: Card) -> torch.Tensor:
    """Logits, or what pooling by the last token gives for the prompt that ends at each position."""
    if card.draft_config is not None:
        return eagle3_rows(load_eagle3(card, folder / FOLDER, dtype), load_reference(folder, dtype), ids)
    if card.draft:
        target, head = load_reference(folder, dtype), load_head(folder, dtype)
        hidden = target.model(ids[:, :-1], use_cache=False).last_hidden_state
        return target.lm_head(head(target.model.embed_tokens(ids[:, 1:]), hidden)).float()
    if card.images:
        return run_with_images(load_reference(folder, dtype), ids, card).float()
    if card.whole_prompts:
        return rows_of_prefixes(folder, dtype, ids, card)
    pooling = card.pooling
    if pooling is None:
        return logits_of(load_reference(folder, dtype), ids, card)
    model = AutoModel.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    hidden = model(ids, use_cache=False).last_hidden_state
    return (F.normalize(hidden, p=2, dim=-1) if pooling.normalize else hidden).float()


def logits_of(model: PreTrainedModel, ids: torch.Tensor, card: Card) -> torch.Tensor:
    """[sequences, tokens, vocab_size] float32: what a reference says of whole sequences of text."""
    cache = None if card.kv_cache_dtype == "auto" else RoundedCache(model)
    logits: torch.Tensor = model(ids, past_key_values=cache, use_cache=cache is not None).logits
    return logits.float()


def _write_sentence_transformers_files(pooling: PoolingConfig, folder: Path) -> None:
    """modules.json and the pooling module's configuration, in the spelling of the published embedding models."""
    names = ["Transformer", "Pooling", *(["Normalize"] if pooling.normalize else [])]
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": f"{index}_{name}" if index else "",
            "type": f"sentence_transformers.models.{name}",
        }
        for index, name in enumerate(names)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({_MODE_FLAGS[mode]: mode == pooling.mode for mode in _MODE_FLAGS})
    )


Head = MTPReference | DeepseekMTPReference


def make_head(config: PreTrainedConfig) -> Head:
    """The head that drafts for the decoder with `config`."""
    return DeepseekMTPReference(config) if config.model_type in PARTS else MTPReference(config)


def load_head(folder: Path, dtype: torch.dtype) -> Head:
    """The head of the checkpoint in `folder`."""
    head = make_head(AutoConfig.from_pretrained(folder))
    head.load_published(load_file(folder / "model.safetensors"))
    return head.to(dtype).eval()


def save_with_head(folder: Path, head: Head) -> None:
    """Add a head's tensors to the target's checkpoint in `folder`, in one file and named as the published ones are."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, **head.published(tensors)}, file, metadata={"format": "pt"})


def load_reference(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """What transformers makes of the checkpoint in `folder`, with weights in `dtype`; of a quantised one made dense."""
    dense = folder / DENSE
    if dense.is_dir():
        return quantise_activations(_load(dense, dtype), dense)
    return _load(folder, dtype)


def _load(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    auto = _language_model(AutoConfig.from_pretrained(folder))
    return auto.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


def _language_model(config: PreTrainedConfig) -> type[Any]:
    """What builds the reference of `config`: text beside a vision tower is of another kind, with images or without."""
    is_beside_a_tower = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return AutoModelForImageTextToText if is_beside_a_tower else AutoModelForCausalLM


@torch.inference_mode()
def _choose_sequences(card: Card, folder: Path) -> torch.Tensor:
    """[sequences, max_model_len] random tokens; with experts, those on which no router is near a tie.

    A near tie is decided by rounding: in bfloat16 both implementations would send such a token to another expert now
    and then, and the comparison would measure who had the luck.
    """
    generator = torch.Generator().manual_seed(SEED)
    if card.whole_prompts:
        shape = (len(card.seq_lens), card.max_model_len)
        return torch.randint(LEAST_ID, card.vocab_size, shape, generator=generator)
    model = load_reference(folder, torch.float32)
    head = load_head(folder, torch.float32) if card.draft and card.draft_config is None else None
    named = [*model.named_modules(), *(head.named_modules() if head is not None else ())]
    found = list(routers(named).values())
    shape = (len(card.seq_lens) * (CANDIDATES if found else 1), card.max_model_len)
    ids = torch.randint(0, card.vocab_size, shape, generator=generator)
    if not found:
        return ids
    gaps: list[torch.Tensor] = []
    for router in found:
        router.register_forward_hook(lambda module, _inputs, output: gaps.append(margin(module, output[0])))
    longest = max(card.seq_lens)
    hidden = model.model(ids[:, :longest], use_cache=False).last_hidden_state
    if head is not None:
        head(model.model.embed_tokens(ids[:, 1 : longest + 1]), hidden)
    gap = torch.stack(gaps).amin(0).view(-1, longest)
    chosen: list[int] = []
    for length in card.seq_lens:
        smallest = gap[:, :length].amin(1)
        smallest[chosen] = -1.0
        chosen.append(int(smallest.argmax()))
    return ids[chosen]


def _save_random_eagle3(card: Card, folder: Path, dtype: torch.dtype) -> torch.Tensor:
    """A draft with random weights that matter -> the tokens that it can say."""
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    head = make_eagle3(card, generator)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            _randomise(name, parameter, generator)
    head.to(dtype).save(folder, dtype)
    return head.token_ids


def random_model(card: Card) -> PreTrainedModel:
    """What transformers builds from a card's configuration, with random weights that matter."""
    # transformers writes into what it is given, and the card's spelling is to be read afterwards.
    settings = copy.deepcopy(dict(card.config))
    config = AutoConfig.for_model(settings.pop("model_type"), **settings, architectures=[card.architecture])
    torch.manual_seed(SEED)
    auto = _language_model(config) if card.pooling is None else AutoModel
    if card.whole_prompts:
        auto = encoder_class(card)
    model = auto.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        _randomise_all(model, generator)
        embedding = model.get_input_embeddings()
        embedding.weight.div_(getattr(embedding, "scalar_embed_scale", 1.0))
    # Published embedding models are saved without their head and named after the model with it.
    expected = card.architecture if card.pooling is None else card.architecture.replace("ForCausalLM", "Model")
    assert type(model).__name__ == expected, f"{card.name} is a {type(model).__name__}"
    return model


@torch.no_grad()
def _random_head(config: PreTrainedConfig) -> Head:
    head = make_head(config)
    generator = torch.Generator().manual_seed(SEED + 1)
    _randomise_all(head, generator)
    return head


def _randomise_all(model: torch.nn.Module, generator: torch.Generator) -> None:
    """Parameters of a model, and what its routers add to scores."""
    found = routers(model.named_modules())
    for name, parameter in model.named_parameters():
        router = found.get(name.removesuffix(".weight"))
        if router is None:
            _randomise(name, parameter, generator)
        else:
            _randomise_router(router, parameter, generator)
    for router in found.values():
        bias = getattr(router, "e_score_correction_bias", None)
        if bias is not None:
            bias.copy_(torch.randn(bias.shape, generator=generator) * 0.1)


def _randomise_router(router: torch.nn.Module, weight: torch.Tensor, generator: torch.Generator) -> None:
    """Routers that decide: near ties would be decided by rounding. A sigmoid does not decide where it is flat."""
    size = 2 if hasattr(router, "e_score_correction_bias") else 6
    weight.copy_(torch.randn(weight.shape, generator=generator) * (size / weight.shape[-1] ** 0.5))


def _randomise(name: str, parameter: torch.Tensor, generator: torch.Generator) -> None:
    """Weights far from degenerate: scores that vary, norms off their start, biases that show, states that last."""
    noise = torch.randn(parameter.shape, generator=generator)
    if name.endswith("A_log"):
        parameter.copy_(torch.rand(parameter.shape, generator=generator).mul(2).add(0.2).log())
    elif name.endswith("dt_bias"):
        parameter.copy_(noise * 0.5 - 2)
    elif name.endswith("conv1d.weight"):
        parameter.copy_(noise * 0.6)
    elif name.endswith("bias"):
        parameter.copy_(noise * 0.3)
    elif parameter.dim() == 1:
        # Norms start at one, or at zero where an offset of one is added.
        parameter.add_(noise * 0.2)
    elif "embed_tokens" in name or "word_embeddings" in name:
        parameter.copy_(noise)
    elif "o_proj" in name or "out_proj" in name or "down_proj" in name:
        # Small beside the embedding, which bfloat16 holds exactly: routers further up see little rounding.
        parameter.copy_(noise * (0.6 / parameter.shape[-1] ** 0.5))
    else:
        parameter.copy_(noise * (1.4 / parameter.shape[-1] ** 0.5))
