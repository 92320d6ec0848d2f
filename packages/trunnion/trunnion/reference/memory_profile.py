"""Upper bounds of what an eager step on the reference keeps in memory, read off a model's layers."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from trunnion.contract import Limits, MemoryProfile
from trunnion.interfaces.attention import (
    AttentionSpec,
    EncoderSpec,
    GroupSpec,
    LayerRowsSpec,
    LayerStateSpec,
    MLASpec,
    RecurrentSpec,
)
from trunnion.interfaces.model import LoadsItself, MultiModal
from trunnion.layers.draft_vocabulary import DraftVocabulary
from trunnion.layers.group_layer import GroupLayer
from trunnion.layers.rotary_embedding import RotaryEmbedding
from trunnion.layers.vocab_embedding import ParallelLMHead, VocabParallelEmbedding
from trunnion.reference.attention import SCORE_BYTES

FLOAT_BYTES = 4
LIVE_ROWS = 12
"""Rows of the widest layer that a token keeps at once, in float32: inputs, outputs and what lies between."""
LIVE_LOGITS = 4
LIVE_SCORES = 6
"""Scores before and after the scale, soft cap, mask and sinks, and the softmax's weights."""
LIVE_STATES = 4
"""A recurrence's states before and after a token, and what lies between."""
LIVE_DENSE = 4
"""A quantised weight in float32, its scales spread out, and what lies between."""
LIVE_KEYS = 4
"""Gathered keys and values, in their dtype and in float32."""


def profile_memory(model: nn.Module, limits: Limits) -> MemoryProfile:
    """Bytes of the weights and buffers, of a step's activations, and of the attention's scores and gathered keys."""
    tensors = [*model.parameters(), *model.buffers()]
    longest, specs = _longest(model, limits), _specs(model)
    return MemoryProfile(
        weights=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        activations=FLOAT_BYTES
        * (
            LIVE_ROWS * limits.max_num_tokens * _widest_row(model)
            + LIVE_LOGITS * limits.max_logits_rows * _vocab_rows(model)
            + LIVE_DENSE * _largest_quantised(model)
        ),
        workspaces=max((_workspace(spec, limits, longest) for spec in specs), default=0),
    )


def profile_captured_groups(
    model: nn.Module, limits: Limits, is_captured: Callable[[GroupSpec], bool] = lambda spec: True
) -> int:
    """Bytes of the groups of `reference.captured` in a full graph, where the decodes of a step are one batch.

    Args:
        is_captured: which of the model's groups they are.
    """
    rows = min(limits.max_num_seqs * limits.max_decode_query_len, limits.max_num_tokens)
    longest = _longest(model, limits)
    needed = [0]
    for spec in filter(is_captured, _specs(model)):
        if isinstance(spec, AttentionSpec | MLASpec):
            scores = FLOAT_BYTES * spec.num_qo_heads * longest * rows
            keys = FLOAT_BYTES * longest * _key_features(spec) * limits.max_num_seqs
            needed.append(LIVE_SCORES * scores + LIVE_KEYS * keys)
        else:
            needed.append(_workspace(spec, limits, longest))
    return max(needed)


def profile_encoder(model: MultiModal, max_encoder_rows: int) -> int:
    """Bytes of encoding one image that fills the pool. Its attention is torch's, which keeps no scores."""
    assert isinstance(model, nn.Module), f"{type(model).__name__} is not a module"
    return FLOAT_BYTES * LIVE_ROWS * max_encoder_rows * model.patches_per_row * _widest_row(model)


def _widest_row(model: nn.Module) -> int:
    """The most features a weight reads or makes; experts are counted one at a time, vocabulary not at all.

    Queries of latent attention are wider than any weight: each head has the features of a key.
    """
    latent = (spec for spec in _specs(model) if isinstance(spec, MLASpec))
    widest = max((spec.num_qo_heads * _key_features(spec) for spec in latent), default=0)
    if isinstance(model, LoadsItself):
        widest = max(widest, model.widest_row)
    for module in model.modules():
        if isinstance(module, DraftVocabulary):
            continue
        for parameter in module.parameters(recurse=False):
            *rows, features = parameter.shape[-2:] if parameter.dim() else (0,)
            sizes = [*rows, features * _values(parameter)]
            if _is_vocabulary(module, model):
                sizes = sizes[1:]
            widest = max(widest, *sizes, 0)
    return widest


def _largest_quantised(model: nn.Module) -> int:
    """Elements of the largest weight that is made dense in a step; experts are one at a time."""
    weights = (parameter for parameter in model.parameters() if parameter.dtype.itemsize == 1 and parameter.dim() > 1)
    return max((_at_once(weight, weight.shape[-2:].numel() * _values(weight)) for weight in weights), default=0)


def _at_once(weight: torch.Tensor, whole: int) -> int:
    """Of `whole` elements, those that its method makes dense together, if it says so."""
    return min(whole, getattr(weight, "trunnion_dense_at_once", whole))


def _values(weight: torch.Tensor) -> int:
    """The most that an element holds: bytes may be two values of 4 bits."""
    return 2 if weight.dtype == torch.uint8 else 1


def _vocab_rows(model: nn.Module) -> int:
    heads = [module for module in model.modules() if isinstance(module, ParallelLMHead)]
    drafts = [module.vocab_size for module in model.modules() if isinstance(module, DraftVocabulary)]
    plain = [m.out_features for m in model.modules() if isinstance(m, nn.Linear) and _is_vocabulary(m, model)]
    return max((*(head.shard.num_rows * head.parallel.size for head in heads), *drafts, *plain), default=0)


def _is_vocabulary(module: nn.Module, model: nn.Module) -> bool:
    """Whether a row of the weight is a token's: in layers of ours, or torch's in a model that is adapted."""
    if isinstance(module, nn.Embedding | nn.Linear):
        return module.weight.shape[0] == getattr(getattr(model, "config", None), "vocab_size", None)
    return isinstance(module, VocabParallelEmbedding | ParallelLMHead)


def _longest(model: nn.Module, limits: Limits) -> int:
    """Tokens of the longest request, by what positions reach."""
    tables = (module.cos_sin_cache for module in model.modules() if isinstance(module, RotaryEmbedding))
    return max((table.shape[0] for table in tables), default=limits.max_model_len)


def _specs(model: nn.Module) -> set[GroupSpec]:
    return {module.spec for module in model.modules() if isinstance(module, GroupLayer)}


def _key_features(spec: AttentionSpec | MLASpec) -> int:
    if isinstance(spec, MLASpec):
        return spec.kv_lora_rank + spec.rope_head_dim
    return spec.num_kv_heads * spec.head_dim


def _workspace(spec: GroupSpec, limits: Limits, longest: int) -> int:
    if isinstance(spec, LayerStateSpec):
        # Scans in plain torch keep a state for every token.
        state = sum(math.prod(tensor.shape) for tensor in spec.tensors)
        return FLOAT_BYTES * LIVE_STATES * state * limits.max_num_tokens
    if isinstance(spec, LayerRowsSpec):
        row = sum(math.prod(tensor.shape) for tensor in spec.tensors)
        longest = min(longest, limits.max_model_len)
        scores = spec.num_qo_heads * longest * min(longest, limits.max_num_tokens)
        return FLOAT_BYTES * (LIVE_SCORES * scores + LIVE_KEYS * longest * row)
    if isinstance(spec, RecurrentSpec):
        # All decodes are one batch: the states they start from and one token's update of them, and, for verifications,
        # the state after each token and all of them together.
        state = spec.num_v_heads * spec.head_k_dim * spec.head_v_dim + spec.conv_dim * (spec.conv_kernel_size - 1)
        kept = min(limits.max_num_seqs * limits.max_decode_query_len, limits.max_num_tokens)
        return FLOAT_BYTES * state * (LIVE_STATES * limits.max_num_seqs + 2 * kept)
    if isinstance(spec, EncoderSpec):
        # Written out whole, one request at a time; queries, keys and values in float32 beside them.
        longest = min(longest, limits.max_model_len, limits.max_num_tokens)
        scores = FLOAT_BYTES * spec.num_heads * longest**2
        return LIVE_SCORES * scores + LIVE_KEYS * FLOAT_BYTES * longest * spec.num_heads * spec.head_dim
    row = FLOAT_BYTES * spec.num_qo_heads * longest
    scores = max(row, min(SCORE_BYTES, row * limits.max_num_tokens))
    return LIVE_SCORES * scores + LIVE_KEYS * FLOAT_BYTES * longest * _key_features(spec)
