"""Images in the sequences of the matrix: random patches, placeholder tokens, and what transformers makes of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from trunnion_models.card import Card

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SEED = 4321


@dataclass(frozen=True)
class ReferenceImage:
    """An image of a sequence: its tokens are `first_token ... first_token + num_tokens - 1`."""

    pixels: torch.Tensor
    """[num_patches, patch_dim] float32"""
    grid: tuple[int, int, int]
    first_token: int
    num_tokens: int

    @property
    def end(self) -> int:
        return self.first_token + self.num_tokens


Images = tuple[tuple[ReferenceImage, ...], ...]
"""Per sequence, in order."""


def make_images(card: Card) -> Images:
    """The card's images, no two alike."""
    if not card.images:
        return ()
    vision = card.config["vision_config"]
    patch_dim = 3 * vision["temporal_patch_size"] * vision["patch_size"] ** 2
    generator = torch.Generator().manual_seed(SEED)
    found: list[list[ReferenceImage]] = [[] for _ in card.seq_lens]
    for image in card.images:
        patches = image.grid[0] * image.grid[1] * image.grid[2]
        pixels = torch.randn(patches, patch_dim, generator=generator)
        num_tokens = patches // vision["spatial_merge_size"] ** 2
        found[image.sequence].append(ReferenceImage(pixels, image.grid, image.first_token, num_tokens))
    return tuple(map(tuple, found))


def place(ids: torch.Tensor, card: Card) -> torch.Tensor:
    """`ids` with placeholders where images are, and nowhere else a token that stands for one, or comes next to it."""
    token = card.config["image_token_id"]
    ids = ids % (token - 1)
    for row, sequence in zip(ids, make_images(card), strict=True):
        for image in sequence:
            row[image.first_token : image.end] = token
    return ids


def run_with_images(model: PreTrainedModel, ids: torch.Tensor, card: Card) -> torch.Tensor:
    """Logits [sequences, tokens, vocab_size] of one forward per sequence."""
    return torch.stack([run_row(model, row, images) for row, images in zip(ids, make_images(card), strict=True)])


def run_row(model: PreTrainedModel, row: torch.Tensor, images: tuple[ReferenceImage, ...]) -> torch.Tensor:
    """Logits [tokens, vocab_size] of one sequence [tokens] with its images."""
    model.model.rope_deltas = None
    return model(row[None], use_cache=False, **_arguments(model, row, images)).logits[0]


def positions_of(model: PreTrainedModel, ids: torch.Tensor, card: Card) -> torch.Tensor:
    """[sequences, tokens, 3] int32, as transformers counts them."""
    found = []
    for row, sequence in zip(ids, make_images(card), strict=True):
        given = _arguments(model, row, sequence)
        types = (row == model.config.image_token_id).int()[None]
        positions, _ = model.model.get_rope_index(row[None], types, given.get("image_grid_thw"))
        found.append(positions[:, 0].T.int())
    return torch.stack(found)


def _arguments(model: PreTrainedModel, row: torch.Tensor, images: tuple[ReferenceImage, ...]) -> dict[str, Any]:
    if not images:
        return {}
    return {
        "pixel_values": torch.cat([image.pixels for image in images]),
        "image_grid_thw": torch.tensor([image.grid for image in images]),
        "mm_token_type_ids": (row == model.config.image_token_id).int()[None],
    }
