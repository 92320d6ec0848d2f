"""Reads the structure of a decoder from the names and shapes of its tensors: what is there, and what it is called."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from trunnion.errors import UnsupportedError
from trunnion.porting.vocabulary import (
    ATTENTION,
    ATTENTION_NAMES,
    EXPERTS,
    MLP,
    MLP_NAMES,
    NORM_NAMES,
    OUTER_NAMES,
    ROUTER_NAMES,
    SHARED_EXPERTS,
    TOWERS,
    known_name,
)
from trunnion.weights.name_map import WeightMap

Shape = tuple[int, ...]
_LAYER = re.compile(r"(.+?)\.(\d+)\.(.+)")
_EXPERT = re.compile(r"(.+)\.experts\.(\d+)\.(.+)")


@dataclass(kw_only=True)
class Structure:
    """A decoder: tensors by the names that a port gives them, relative to a layer or to the whole."""

    layers_path: str
    """Where the list of layers lies."""
    num_layers: int
    outer: dict[str, Shape] = field(default_factory=dict)
    """Of tensors around the layers: `embed_tokens.weight`, `norm.weight`, `lm_head.weight`, ..."""
    inner: dict[str, Shape] = field(default_factory=dict)
    """Of tensors in layers, of whichever layer has them; experts without a number: `mlp.experts.gate_proj.weight`."""
    sparse_layers: set[int] = field(default_factory=set)
    """Layers with experts."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Published path -> path in the port, where they differ; whole modules before what lies in them."""
    expert_names: dict[str, str] = field(default_factory=dict)
    """Part (gate_proj, up_proj, down_proj) -> what the checkpoint calls it within an expert."""
    is_stacked: bool = False
    """Whether experts are stored as stacks."""
    unknown: list[str] = field(default_factory=list)
    """Tensors that are none of these."""

    def has(self, name: str) -> bool:
        """Whether any layer has the tensor."""
        return name in self.inner

    @property
    def is_fused(self) -> bool:
        """Whether query, key and value are one tensor."""
        return self.has("self_attn.qkv_proj.weight")

    @property
    def gate_up_is_fused(self) -> bool:
        """Of the dense MLP."""
        return self.has("mlp.gate_up_proj.weight")

    @property
    def norms(self) -> tuple[str, ...]:
        """The norms of a layer around its attention and its MLP."""
        return tuple(name for name in NORM_NAMES if self.has(f"{name}.weight"))


def read_structure(tensors: Mapping[str, Shape]) -> Structure:
    """The decoder whose checkpoint has `tensors`, by their published names.

    Raises:
        UnsupportedError: there is no list of layers among them.
    """
    usual = WeightMap()
    named = {usual.renamed(name): shape for name, shape in tensors.items()}
    paths = Counter(match.group(1) for name in named if (match := _LAYER.fullmatch(name)))
    if not paths:
        raise UnsupportedError(f"no list of layers among {len(named)} tensors ({', '.join(list(named)[:3])}, ...)")
    path = min(paths, key=lambda path: (TOWERS.search(path) is not None, -paths[path]))
    found = Structure(layers_path=path, num_layers=0)
    if path != "model.layers":
        found.renamed[path] = "model.layers"
    layers: dict[int, dict[str, Shape]] = defaultdict(dict)
    for name, shape in named.items():
        match = _LAYER.fullmatch(name)
        if match is not None and match.group(1) == path:
            layers[int(match.group(2))][match.group(3)] = shape
        else:
            _add_outer(found, name, shape)
    found.num_layers = 1 + max(layers)
    for index, own in layers.items():
        is_sparse = any(f".{EXPERTS}." in f".{name}." for name in own)
        if is_sparse:
            found.sparse_layers.add(index)
        for name, shape in own.items():
            _add_inner(found, name, shape, is_sparse, f"{path}.{index}.{name}")
    return found


def _add_outer(found: Structure, name: str, shape: Shape) -> None:
    module, _, leaf = name.rpartition(".")
    own = known_name(OUTER_NAMES, module.rpartition(".")[2])
    # Towers beside the text have norms and embeddings of their own.
    depth = module.count(".")
    if own is None or depth > found.layers_path.count("."):
        found.unknown.append(name)
        return
    place = own if own == "lm_head" else f"model.{own}"
    if module != place:
        found.renamed[f"^{module}"] = place
    found.outer[f"{own}.{leaf}"] = shape


def _add_inner(found: Structure, name: str, shape: Shape, is_sparse: bool, whole: str) -> None:
    module, _, leaf = name.rpartition(".")
    placed = _place(found, name, module, leaf, is_sparse)
    if placed is None:
        found.unknown.append(whole)
    else:
        found.inner.setdefault(placed, shape)


def _place(found: Structure, name: str, module: str, leaf: str, is_sparse: bool) -> str | None:
    """What the port calls a layer's tensor; None if it is nothing known."""
    norm = known_name(NORM_NAMES, module)
    if norm is not None:
        return f"{_renamed(found, module, norm)}.{leaf}"
    for published in ATTENTION:
        inner = module.removeprefix(f"{published}.")
        own = known_name(ATTENTION_NAMES, inner) if inner != module else None
        if own is not None:
            return f"{_renamed_within(found, published, 'self_attn', inner, own)}.{leaf}"
    for published in MLP:
        if name.startswith(f"{published}."):
            return _place_in_mlp(found, published, name.removeprefix(f"{published}."), is_sparse)
    return None


def _place_in_mlp(found: Structure, block: str, name: str, is_sparse: bool) -> str | None:
    module, _, leaf = name.rpartition(".")
    expert = _EXPERT.fullmatch(f"{block}.{name}")
    if expert is not None:
        published, _, leaf = expert.group(3).rpartition(".")
        own = known_name(MLP_NAMES, published)
        if own is None:
            return None
        found.expert_names[own] = published
        _renamed(found, block, "mlp")
        return f"mlp.experts.{own}.{leaf}"
    if module == EXPERTS and leaf in ("gate_up_proj", "down_proj"):
        found.is_stacked = True
        return f"{_renamed(found, block, 'mlp')}.experts.{leaf}"
    if is_sparse and (module in ROUTER_NAMES or leaf == "e_score_correction_bias"):
        router = module if module in ROUTER_NAMES else ""
        if not router:
            return None
        return f"{_renamed_within(found, block, 'mlp', router, 'gate')}.{leaf}"
    for shared in SHARED_EXPERTS:
        if module == f"{shared}_gate":
            return f"{_renamed_within(found, block, 'mlp', module, 'shared_expert_gate')}.{leaf}"
        own = known_name(MLP_NAMES, module.removeprefix(f"{shared}.")) if module.startswith(f"{shared}.") else None
        if own is not None:
            return f"{_renamed_within(found, block, 'mlp', module, f'shared_expert.{own}')}.{leaf}"
    own = known_name(MLP_NAMES, module)
    return None if own is None else f"{_renamed_within(found, block, 'mlp', module, own)}.{leaf}"


def _renamed(found: Structure, published: str, own: str) -> str:
    if published != own:
        found.renamed[published] = own
    return own


def _renamed_within(found: Structure, parent: str, own_parent: str, published: str, own: str) -> str:
    _renamed(found, parent, own_parent)
    _renamed(found, f"{own_parent}.{published}", f"{own_parent}.{own}")
    return f"{own_parent}.{own}"
