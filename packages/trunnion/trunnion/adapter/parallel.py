"""Cuts an adapted model over ranks: by the plan that transformers has for it, else by the names of projections."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trunnion.adapter.experts import is_plain
from trunnion.config import BuildContext
from trunnion.errors import UnsupportedError
from trunnion.interfaces.collectives import Collectives
from trunnion.interfaces.weights import Placement, placements_of
from trunnion.layers.linear import LinearBase, RowParallelLinear

COLUMNS, ROWS, EXPERTS, OWN = "colwise", "rowwise", "moe_tp_experts", "local_params"
"""Styles of a plan that are cut. What has another style, or none, every rank holds whole."""
KV_NAMES = ("k_proj", "v_proj")
"""Projections that are held by several ranks where there are fewer heads of keys and values than ranks."""
COUNTS = ("num_heads", "num_attention_heads", "n_heads", "num_key_value_heads", "num_kv_heads")
"""What attention modules call their numbers of heads."""
WIDTHS = ("hidden_size", "embed_dim", "all_head_size", "inner_dim")
"""What they call the features of all query heads."""
BLOCKS = (
    (("q_proj", "k_proj", "v_proj"), ("o_proj", "out_proj", "dense")),
    (("gate_proj", "up_proj"), ("down_proj",)),
    (("up_proj",), ("down_proj",)),
    (("fc1",), ("fc2",)),
)
"""Projections of one module that are cut by their outputs, and that whose inputs follow: where there is no plan."""


@dataclass(frozen=True)
class Cut:
    """What happens to one module of the model."""

    name: str
    style: str


def find_cuts(model: Any, size: int) -> list[Cut]:
    """The modules that `size` ranks share.

    Raises:
        UnsupportedError: there are none, or heads do not divide.
    """
    heads = getattr(model.config.get_text_config(decoder=True), "num_attention_heads", size)
    if heads % size:
        raise UnsupportedError(f"{heads} query heads cannot be divided over {size} ranks")
    plan = {name: style for name, style in (model._tp_plan or {}).items() if style in (COLUMNS, ROWS, EXPERTS, OWN)}
    cuts = _planned(model, plan) or _by_structure(model)
    if not any(cut.style in (COLUMNS, EXPERTS) for cut in cuts):
        raise UnsupportedError(
            f"transformers has no tensor-parallel plan for {type(model).__name__}, and its projections go by other "
            "names than those of Llama or OPT: it runs on one rank"
        )
    return cuts


def cut_over_ranks(model: nn.Module, cuts: list[Cut], ctx: BuildContext, device: torch.device) -> None:
    """Put this rank's part in the place of each cut module of `model`, on `device`; the rest is left where it is.

    Raises:
        UnsupportedError: a size does not divide over the ranks.
    """
    for cut in cuts:
        theirs = model.get_submodule(cut.name)
        try:
            ours = _part(theirs, cut, model, ctx, device)
        except ValueError as error:
            raise UnsupportedError(f"{cut.name}: {error}") from error
        path, _, child = cut.name.rpartition(".")
        parent = model.get_submodule(path)
        parent._modules[child] = ours
        if cut.style == ROWS and any(hasattr(parent, name) for name in COUNTS):
            _count_own(parent, theirs.in_features, ctx.parallel.size)


def without_weights(model: nn.Module) -> Any:
    """A copy of `model` that shares its parameters and whose modules can be replaced."""
    return copy.deepcopy(model, {id(each): each for each in model.parameters()})


def place(model: nn.Module, device: torch.device) -> None:
    """Have what `model` holds on `device`, in parameters of its own; what is tied stays so."""
    placed: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if id(parameter) not in placed:
                placed[id(parameter)] = nn.Parameter(parameter.detach().to(device), requires_grad=False)
            module._parameters[name] = placed[id(parameter)]
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            module._buffers[name] = buffer.to(device)


def note(cuts: list[Cut], size: int) -> str:
    """A line for the load's report."""
    columns, experts = (sum(cut.style == style for cut in cuts) for style in (COLUMNS, EXPERTS))
    return (
        f"adapter: {columns} projections with what follows them and {experts} blocks of experts are cut over {size} "
        "ranks, the rest is on every rank"
    )


def _planned(model: nn.Module, plan: Mapping[str, str]) -> list[Cut]:
    cuts = []
    for name, module in model.named_modules():
        style = plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))
        if style is not None and _is_cuttable(module, style):
            cuts.append(Cut(name, style))
    return cuts


def _is_cuttable(module: nn.Module, style: str) -> bool:
    if style == EXPERTS:
        return is_plain(module)
    return style == OWN or type(module) is nn.Linear


def _by_structure(model: nn.Module) -> list[Cut]:
    cuts = []
    for name, module in model.named_modules():
        linears = {child for child, each in module.named_children() if type(each) is nn.Linear}
        for columns, rows in BLOCKS:
            row = next((each for each in rows if each in linears), None)
            if row is not None and linears.issuperset(columns):
                cuts += [Cut(f"{name}.{column}", COLUMNS) for column in columns]
                cuts.append(Cut(f"{name}.{row}", ROWS))
                break
    return cuts


def _part(theirs: Any, cut: Cut, model: nn.Module, ctx: BuildContext, device: torch.device) -> nn.Module:
    if cut.style == OWN:
        return _own_parameters(theirs, ctx, device)
    if cut.style == EXPERTS:
        return _Experts(_part_of_experts(theirs, ctx, device), ctx.parallel.collectives)
    bias = theirs.bias is not None
    layer: LinearBase
    with torch.device("meta"):
        if cut.style == ROWS:
            layer = RowParallelLinear(theirs.in_features, theirs.out_features, bias=bias, ctx=ctx, prefix=cut.name)
        else:
            parent, _, child = cut.name.rpartition(".")
            heads = _kv_heads(theirs, model.get_submodule(parent)) if child in KV_NAMES else None
            layer = _columns(theirs, heads, ctx, cut.name)
    _fill(layer, theirs, device)
    return layer


def _count_own(attention: Any, width: int, size: int) -> None:
    """Have an attention module count the heads of this rank, where it counts them."""
    for name in COUNTS:
        if isinstance(count := getattr(attention, name, None), int):
            setattr(attention, name, max(count // size, 1))
    for name in WIDTHS:
        if getattr(attention, name, None) == width:
            setattr(attention, name, width // size)


def _columns(theirs: nn.Linear, kv_heads: int | None, ctx: BuildContext, name: str) -> LinearBase:
    """This rank's output features; of fewer heads than ranks, the one that its query heads read."""
    rank, size = ctx.parallel.rank, ctx.parallel.size
    if kv_heads is not None and kv_heads < size:
        if size % kv_heads:
            raise ValueError(f"{size} ranks cannot share {kv_heads} KV heads evenly")
        count = theirs.out_features // kv_heads
        first = rank // (size // kv_heads) * count
    else:
        ctx.parallel.divide(kv_heads or size, "KV heads")
        count = ctx.parallel.divide(theirs.out_features, "out_features")
        first = rank * count
    shape = (theirs.out_features, theirs.in_features)
    place = Placement(shape=shape, source=(slice(first, first + count),), target=(slice(0, count),))
    bias = theirs.bias is not None
    return LinearBase(theirs.in_features, count, {"": place}, bias=bias, ctx=ctx, prefix=name)


def _kv_heads(theirs: nn.Linear, attention: Any) -> int | None:
    head_dim = getattr(attention, "head_dim", None)
    return theirs.out_features // head_dim if isinstance(head_dim, int) and head_dim > 0 else None


def _fill(layer: LinearBase, theirs: nn.Module, device: torch.device) -> None:
    own = dict(theirs.named_parameters(recurse=False))
    for name, parameter in list(layer.named_parameters(recurse=False)):
        place = placements_of(parameter)[""]
        part = own[name].detach()[place.source].to(device, copy=True)
        layer._parameters[name] = nn.Parameter(part, requires_grad=False)
    if device.type != "meta":
        layer.finalize()


def _own_parameters(theirs: Any, ctx: BuildContext, device: torch.device) -> nn.Module:
    """A module whose own parameters have a row per head: those of this rank's heads."""
    rank = ctx.parallel.rank
    for name, parameter in list(theirs.named_parameters(recurse=False)):
        count = ctx.parallel.divide(parameter.shape[0], name)
        part = parameter.detach()[rank * count : (rank + 1) * count].to(device, copy=True)
        theirs._parameters[name] = nn.Parameter(part, requires_grad=False)
    module: nn.Module = theirs
    return module


def _part_of_experts(theirs: Any, ctx: BuildContext, device: torch.device) -> nn.Module:
    """Of each expert this rank's gate and up rows, and the columns of `down` that they meet."""
    rank = ctx.parallel.rank
    gate, up = theirs.gate_up_proj.detach().chunk(2, dim=1)
    count = ctx.parallel.divide(gate.shape[1], "features of an expert")
    mine = slice(rank * count, (rank + 1) * count)
    parts = {
        "gate_up_proj": torch.cat((gate[:, mine], up[:, mine]), dim=1).to(device),
        "down_proj": theirs.down_proj.detach()[:, :, mine].to(device, copy=True),
    }
    for name, part in parts.items():
        theirs._parameters[name] = nn.Parameter(part.contiguous(), requires_grad=False)
    module: nn.Module = theirs
    return module


class _Experts(nn.Module):
    """A rank's part of a block of experts: the ranks' sums are summed."""

    def __init__(self, part: nn.Module, collectives: Collectives) -> None:
        super().__init__()
        self.part = part
        self._collectives = collectives

    def forward(self, *given: Any, **named: Any) -> torch.Tensor:
        """As transformers' experts -> [T, H], the same on every rank."""
        return self._collectives.all_reduce(self.part(*given, **named))
