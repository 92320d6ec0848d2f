"""Which matrices of a GGUF file run as the blocks that they are stored in, and which are dequantised."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from trunnion.interfaces.quantization import BlockType, GGUFBlocks
from trunnion.weights.name_map import Ignored, Refused, WeightMap
from trunnion.weights.report import first_names
from trunnion.weights.source import TensorInfo, WeightSource

WEIGHT = ".weight"
TYPES = {kind.value: kind for kind in BlockType}


@dataclass(frozen=True, kw_only=True)
class KeptBlocks:
    """`trunnion.interfaces.quantization.Quantization` of one file and one family."""

    types: Mapping[str, BlockType]
    """Layer or embedding -> the type of its blocks; what has none is dequantised."""
    names: frozenset[str]
    """Matrices of the file that are kept as blocks."""
    others: Mapping[str, str]
    """Its other matrices -> what they are stored as."""

    def scheme(self, prefix: str) -> GGUFBlocks | None:
        """Of the layer named `prefix`; None: it is dequantised."""
        kind = self.types.get(prefix)
        return None if kind is None else GGUFBlocks(type=kind)

    def embedding_scheme(self, prefix: str) -> GGUFBlocks | None:
        """Of the embedding named `prefix`."""
        return self.scheme(prefix)

    def describe(self) -> str:
        """How many matrices run as they lie, and what becomes of the others, by name."""
        total = len(self.names) + len(self.others)
        line = f"{len(self.names)} of {total} matrices run in the blocks they are stored in"
        if not self.others:
            return line
        stored = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(self.others.values()).items()))
        return f"{line}; the rest ({stored}) are dequantised: {first_names(list(self.others))}"


class BlockSource(WeightSource, Protocol):
    """A source that holds blocks: a GGUF file."""

    def keeping(self, names: Collection[str]) -> BlockSource:
        """The same with the named matrices as rows of blocks."""
        ...


def keep_blocks(source: WeightSource, weight_map: WeightMap) -> tuple[KeptBlocks, WeightSource]:
    """What of a GGUF file's `source` is kept as blocks for a family, and the source that yields these."""
    kept = blocks_to_keep(source.infos, weight_map)
    return kept, cast(BlockSource, source).keeping(kept.names)


def blocks_to_keep(infos: Mapping[str, TensorInfo], weight_map: WeightMap) -> KeptBlocks:
    """The matrices of `infos`, as the file stores them, that a linear layer or an embedding is made of whole.

    What becomes one layer is kept if all of its parts are of one type; it is dequantised otherwise.
    """
    matrices = {name: info.stored for name, info in infos.items() if len(info.shape) == 2}
    parts: dict[str, list[str]] = defaultdict(list)
    for name in matrices:
        resolved = weight_map.resolve(name)
        if not isinstance(resolved, Ignored | Refused):
            for target in resolved:
                parts[target.param].append(name)
    types = {}
    for param, names in parts.items():
        stored = {matrices[name] for name in names}
        if param.endswith(WEIGHT) and len(stored) == 1 and (kind := TYPES.get(stored.pop())) is not None:
            types[param.removesuffix(WEIGHT)] = kind
    kept = frozenset(name for prefix in types for name in parts[f"{prefix}{WEIGHT}"])
    others = {name: kind for name, kind in matrices.items() if name not in kept}
    return KeptBlocks(types=types, names=kept, others=others)
