"""A tiny Qwen2.5-VL folder with random weights, a PNG, and what transformers answers about it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.utils import logging

from trunnion.vision.prompt import VisionPrompt, load_vision, user_message

logging.disable_progress_bar()

SPECIAL = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
PROCESSOR = {"patch_size": 4, "temporal_patch_size": 2, "merge_size": 2, "min_pixels": 64, "max_pixels": 2048}
NUM_CHARACTERS = 128
_TEXT: dict[str, Any] = {
    "vocab_size": NUM_CHARACTERS + len(SPECIAL),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": NUM_CHARACTERS + SPECIAL.index("<|im_end|>"),
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
    "tie_word_embeddings": False,
}
_VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_heads": 2,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "window_size": 16,
    "out_hidden_size": 64,
    "fullatt_block_indexes": [1],
}


def save_vision_model(folder: Path) -> Qwen2_5_VLForConditionalGeneration:
    """A float32 model whose logits are far from ties, with tokenizer, template and image processor, in `folder`."""
    folder.mkdir(exist_ok=True)
    backend = Tokenizer(models.BPE(vocab={chr(code): code for code in range(NUM_CHARACTERS)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    tokens = {name: backend.token_to_id(text) for name, text in zip(names, SPECIAL, strict=False)}
    torch.manual_seed(11)
    config = Qwen2_5_VLConfig(text_config=_TEXT, vision_config=_VISION, tie_word_embeddings=False, **tokens)
    model = Qwen2_5_VLForConditionalGeneration._from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                fan_in = parameter[0].numel()
                parameter.normal_(std=1.0 if "embed_tokens" in name else 1.4 / fan_in**0.5)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return model


def save_picture(path: Path, width: int, height: int, seed: int) -> Path:
    """Random pixels as a PNG."""
    rng = np.random.default_rng(seed)
    Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).save(path)
    return path


def ask(folder: Path, text: str, pictures: Sequence[Path]) -> VisionPrompt:
    return load_vision(folder).encode_chat([user_message(text, pictures)])


@torch.inference_mode()
def generate(model: Qwen2_5_VLForConditionalGeneration, prompt: VisionPrompt, num_tokens: int) -> list[int]:
    """The most likely continuation, by transformers' own loop."""
    ids = torch.tensor([prompt.token_ids])
    given: dict[str, Any] = {}
    if prompt.images:
        given = {
            "pixel_values": torch.from_numpy(np.concatenate([image.pixels for image in prompt.images])),
            "image_grid_thw": torch.tensor([image.grid for image in prompt.images]),
            "mm_token_type_ids": (ids == model.config.image_token_id).int(),
        }
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=num_tokens, pad_token_id=0, **given
    )
    return output[0, ids.shape[1] :].tolist()
