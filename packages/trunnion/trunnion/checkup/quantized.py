"""Which layers of a model are quantised how, in words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from torch import nn

from trunnion.checkup.facts import QuantizedFacts
from trunnion.interfaces.quantization import MXFP4, W8A8, Activations, BlockFP8, GGUFBlocks, Quantization, Scheme
from trunnion.interfaces.weights import placements_of
from trunnion.layers.vocab_embedding import ParallelLMHead, VocabParallelEmbedding
from trunnion.weights.mxfp4_source import BLOCKS
from trunnion.weights.name_map import Target, WeightMap
from trunnion.weights.quantization_rules import QuantizationConfig

_NUMBER = re.compile(r"\.\d+(?=\.)")


def quantized_layers(model: nn.Module, quantization: Quantization) -> list[QuantizedFacts]:
    """The layers of `model` that have a method, those of equal names and schemes together."""
    counts: Counter[tuple[str, str]] = Counter()
    for prefix in _prefixes(model):
        counts[_NUMBER.sub(".*", prefix), describe_scheme(quantization.scheme(prefix))] += 1
    return [
        QuantizedFacts(layers=layers, count=count, scheme=scheme) for (layers, scheme), count in sorted(counts.items())
    ]


def describe_scheme(scheme: Scheme | None) -> str:
    """`scheme` in words."""
    if scheme is None:
        return "unquantised"
    if isinstance(scheme, BlockFP8):
        rows, columns = scheme.block
        return f"fp8 e4m3, scales per {rows} x {columns}; activations in fp8, per token and {columns} features"
    if isinstance(scheme, W8A8):
        kind = str(scheme.dtype).removeprefix("torch.")
        activations = "static" if scheme.activations is Activations.STATIC else "per token"
        return f"{kind}, scales per {'row' if scheme.per_row else 'tensor'}; activations in {kind}, {activations}"
    if isinstance(scheme, MXFP4):
        return f"MXFP4, scales per {scheme.block} features of a row; made dense at load, and held in the model's dtype"
    if isinstance(scheme, GGUFBlocks):
        return f"{scheme.type.value}, blocks of {scheme.block} as they lie; activations in int8, by the same blocks"
    groups = "one group a row" if scheme.group_size is None else f"groups of {scheme.group_size}"
    zero = "zero points" if scheme.has_zero_points else "symmetric"
    order = ", in an order of its own" if scheme.is_ordered else ""
    return f"{scheme.bits}-bit integers ({scheme.layout.value}), {groups}, {zero}{order}"


def likely_names(model: nn.Module, weight_map: WeightMap, quantization: QuantizationConfig) -> list[str]:
    """What the tensors of a checkpoint of `model` are probably called, where there is none to ask.

    Where nothing but a tensor's name tells that it is quantised, all weights but the head's are taken to be, and of
    MXFP4 all stacks of experts.
    """
    targets = [Target(name, part) for name, parameter in model.named_parameters() for part in placements_of(parameter)]
    names = [weight_map.checkpoint_name(target) for target in targets]
    if not quantization.plain_is_unquantised:
        return names
    if quantization.method == "mxfp4":
        stacks = [target.param.endswith((".w13", ".w2")) for target in targets]
        return [f"{name}{BLOCKS}" if stack else name for name, stack in zip(names, stacks, strict=True)]
    return [re.sub(r"(?<!lm_head)\.weight$", ".qweight", name) for name in names]


def num_parameters(model: nn.Module) -> int:
    """Elements of all parameters of an unquantised model on one rank, without the vocabulary's padding."""
    # A tied head has the rows of the embedding.
    padding = {
        module.weight: (module.shard.num_rows - module.shard.num_valid) * module.hidden_size
        for module in model.modules()
        if isinstance(module, VocabParallelEmbedding | ParallelLMHead)
    }
    return sum(parameter.numel() for parameter in model.parameters()) - sum(padding.values())


def _prefixes(model: nn.Module) -> Iterator[str]:
    for module in model.modules():
        tied = isinstance(module, ParallelLMHead) and module.tied_to is not None
        embeds_quantised = isinstance(module, VocabParallelEmbedding) and module.weight_method is not None
        if (hasattr(module, "method") and not tied) or embeds_quantised:
            yield str(module.prefix)
