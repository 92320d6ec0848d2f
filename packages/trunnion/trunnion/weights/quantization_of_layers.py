"""Gives each layer of a model the scheme of the checkpoint's modules that it is made of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from trunnion.errors import UnsupportedError
from trunnion.interfaces.quantization import Scheme
from trunnion.weights.mxfp4_source import BLOCKS
from trunnion.weights.name_map import Ignored, Refused, WeightMap
from trunnion.weights.quantization_rules import QuantizationConfig

WEIGHTS = ("weight", "weight_packed", "qweight")
"""What the weight of a module is called, plain or packed. The name of a stack in MXFP4 ends in `BLOCKS` instead."""


class QuantizedLayers:
    """`trunnion.interfaces.quantization.Quantization` of one checkpoint and one family.

    Ignore lists and targets are written in the checkpoint's own names: they are asked about these, whatever a family
    renames or fuses. `names` are the checkpoint's tensors; a layer that has none there is unquantised.
    """

    def __init__(self, config: QuantizationConfig, weight_map: WeightMap, names: Iterable[str]) -> None:
        self._config = config
        self._modules: dict[str, dict[str, str]] = defaultdict(dict)
        for name in names:
            module, _, leaf = name.rpartition(".")
            resolved = weight_map.resolve(name)
            if not (leaf in WEIGHTS or leaf.endswith(BLOCKS)) or isinstance(resolved, Ignored | Refused):
                continue
            for target in resolved:
                self._modules[target.param.rpartition(".")[0]][module] = leaf

    def scheme(self, prefix: str) -> Scheme | None:
        """Of the layer or block of experts named `prefix`; None: unquantised.

        Raises:
            UnsupportedError: its parts are quantised differently.
        """
        found: dict[Scheme | None, str] = {}
        for module, leaf in self._modules.get(prefix, {}).items():
            is_plain = leaf == "weight" and self._config.plain_is_unquantised
            found.setdefault(None if is_plain else self._config.scheme_of(module), module)
        if len(found) > 1:
            listed = "; ".join(f"{module}: {_describe(scheme)}" for scheme, module in found.items())
            raise UnsupportedError(f"{prefix} is one layer here, and its parts must be quantised alike: {listed}")
        return next(iter(found), None)

    def embedding_scheme(self, prefix: str) -> None:
        """None: in these formats embeddings are unquantised."""
        return None


def _describe(scheme: Scheme | None) -> str:
    return "unquantised" if scheme is None else repr(scheme)
