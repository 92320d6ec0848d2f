"""A card: one tiny configuration of a family that the matrix compares with the reference implementation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trunnion.config import PoolingConfig

FP32_TOLERANCE = 1e-4
"""Largest `max|difference| / max|reference logits|` in float32; a card may only tighten it."""
ROUNDED_TOLERANCE = 0.1
"""The same of a quantised checkpoint or cache, where half of the rows must be within the card's tolerance nevertheless:
now and then a difference in the last bit sends a value to the next of few, and shows in all tokens behind it."""
BF16_RATIO = 1.5
"""Largest error in bfloat16, in units of the reference implementation's own bfloat16 error; may only be tightened."""


@dataclass(frozen=True, kw_only=True)
class CardImage:
    """An image in one of a card's sequences; what it shows is random."""

    sequence: int
    first_token: int
    grid: tuple[int, int, int]
    """Patches along time, height and width."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """One row of the matrix.

    Raises:
        ValueError: a tolerance is looser than the matrix's.
    """

    name: str
    """`<family>-<what is odd>`; unique, the stem of test ids."""
    architecture: str
    """The class name in `architectures`."""
    config: Mapping[str, Any]
    """Keyword arguments of the reference implementation's configuration, `model_type` included."""
    pooling: PoolingConfig | None = None
    """The card is a pooling model and its checkpoint says so; its embeddings are compared instead of logits."""
    whole_prompts: bool = False
    """Tokens see those after them: a prompt comes in one step, and makes one row, an embedding or scores."""
    quantization: Mapping[str, Any] | None = None
    """`quantization_config` of the checkpoint, whose weights are quantised so; compared with the same weights made
    dense and, if they are quantised too, activations made dense again."""
    kv_cache_dtype: str = "auto"
    """Of cached keys and values, as in ExecutorConfig; compared with a cache that rounds what is put into it."""
    draft: bool = False
    """The card is the head that drafts for the architecture; its logits on the decoder's hidden states are compared."""
    draft_config: Mapping[str, Any] | None = None
    """`config.json` of a draft that has its own checkpoint; None: it lies in the decoder's."""
    images: tuple[CardImage, ...] = ()
    """Of a vision-language model; those of one sequence in order, with text between them."""
    second_texts: tuple[int, ...] = ()
    """Of a model with types of tokens: where in each sequence a second text begins, whose tokens are of type 1; the
    sequence may end before it. Empty: all tokens are of type 0."""
    quick: bool = False
    """In the short list that runs with every change; one per family, one of its pooling models, one of its heads."""
    notes: str = ""
    """What the card is there to catch."""
    max_model_len: int = 64
    block_size: int = 4
    seq_lens: tuple[int, ...] = (23, 9, 14)
    """Lengths of the sequences compared; longer and shorter than the windows."""
    bf16: bool = True
    fp32_tolerance: float = FP32_TOLERANCE
    bf16_ratio: float = BF16_RATIO

    @property
    def vocab_size(self) -> int:
        """Of the decoder, beside a tower too."""
        return int(self.config.get("text_config", self.config)["vocab_size"])

    def token_types(self, sequence: int, length: int) -> list[int] | None:
        """The types of the first `length` tokens of a sequence; None where all are of type 0."""
        first = self.second_texts[sequence] if self.second_texts else length
        return [0] * first + [1] * (length - first) if first < length else None

    @property
    def rounds(self) -> bool:
        """Whether values are rounded to few on their way through the model."""
        return self.rounds_activations or self.kv_cache_dtype != "auto"

    @property
    def rounds_activations(self) -> bool:
        """Whether what enters quantised layers is rounded too; weights are rounded in the checkpoint, once for all."""
        settings = self.quantization or {}
        weights_alone = (
            settings.get("quant_method") in ("awq", "gptq", "mxfp4") or settings.get("format") == "pack-quantized"
        )
        return bool(settings) and not weights_alone

    def __post_init__(self) -> None:
        if not 0 < self.fp32_tolerance <= FP32_TOLERANCE:
            raise ValueError(f"card {self.name}: fp32_tolerance {self.fp32_tolerance} is above {FP32_TOLERANCE}")
        if not 0 < self.bf16_ratio <= BF16_RATIO:
            raise ValueError(f"card {self.name}: bf16_ratio {self.bf16_ratio} is above {BF16_RATIO}")
        if max(self.seq_lens) > self.max_model_len:
            raise ValueError(f"card {self.name}: a sequence is longer than max_model_len {self.max_model_len}")
