"""The account drawn up before anything is allocated: which checkpoint tensor fills which part of which parameter."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch

from trunnion.errors import UnsupportedError, WeightsError
from trunnion.interfaces.weights import Known, Placement, default_of, known_of, placements_of
from trunnion.weights.name_map import SCALE_NAMES, Ignored, Refused, Target, WeightMap, kv_scale
from trunnion.weights.report import first_names
from trunnion.weights.source import TensorInfo, WeightSource


@dataclass(frozen=True, kw_only=True)
class Piece:
    """`parameter[placement.target] = view(checkpoint tensor)[placement.source]`.

    `expert` and `rows` cut a part out of a stack, of experts or of a layer's parts, before the placement's own cut.
    """

    param: str
    part: str
    placement: Placement
    expert: int | None = None
    transposed: bool = False
    rows: slice | None = None

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """This piece's own tensor, of shape `placement.shape`, as a view."""
        if self.expert is not None:
            tensor = tensor[self.expert]
        if self.transposed:
            tensor = tensor.transpose(0, 1)
        recoding, rows = self.placement.recoding, self.rows
        if recoding is not None and recoding.by_rows and rows is not None:
            tensor, rows = tensor[rows], None
        if recoding is not None:
            tensor = recoding.decode(tensor)
        if self.placement.loose:
            tensor = tensor.reshape(-1)
        if rows is not None:
            tensor = tensor[rows]
        return tensor.reshape(self.placement.shape) if self.placement.loose else tensor


@dataclass(kw_only=True)
class LoadPlan:
    """Pieces per checkpoint tensor, and what is left out and why."""

    pieces: dict[str, list[Piece]] = field(default_factory=dict)
    ignored: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    tied: dict[str, str] = field(default_factory=dict)
    """Checkpoint tensor -> the parameter it must equal."""
    known: dict[str, Known] = field(default_factory=dict)
    """Checkpoint tensor -> what it must hold; it is not loaded."""
    defaults: dict[str, float] = field(default_factory=dict)
    """Parameter that the checkpoint leaves out, as it may -> its value."""
    problems: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """What does not add up ("missing", "unexpected", "of a wrong shape", ...) -> checkpoint tensors; empty: it does."""


SHARED = "shared with the target"
"""Why a draft leaves out a tensor of a module that is its target's."""
NOT_SCALED = "scales of an fp8 cache, and kv_cache_dtype is auto"
"""Why a model whose cache has its own dtype leaves out scales."""


def lies_in(name: str, modules: Collection[str]) -> bool:
    """Whether the module or parameter `name` is one of `modules`, or lies in one."""
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def plan_load(
    model: torch.nn.Module, source: WeightSource, weight_map: WeightMap, shared_modules: Collection[str] = ()
) -> LoadPlan:
    """Account for every tensor and every part; those of `shared_modules` are loaded already.

    Raises:
        WeightsError: tensors are missing, unexpected, duplicated, or of a wrong shape or dtype; all kinds in one line.
        UnsupportedError: the map refuses a tensor.
    """
    plan = draw_up(model, source, weight_map, shared_modules)
    if plan.problems:
        raise WeightsError(describe_problems(plan, source, type(model).__name__))
    return plan


def draw_up(
    model: torch.nn.Module, source: WeightSource, weight_map: WeightMap, shared_modules: Collection[str] = ()
) -> LoadPlan:
    """As `plan_load`, but what does not add up is listed in the plan's `problems`.

    Raises:
        UnsupportedError: the map refuses a tensor.
    """
    params = {
        name: parameter
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if not lies_in(name, shared_modules)
    }
    tied = _tied(params, weight_map)
    known = _known(model)
    plan = LoadPlan()
    filled: dict[Target, str] = {}
    problems = plan.problems
    for name, info in source.infos.items():
        resolved = weight_map.resolve(name)
        if isinstance(resolved, Refused):
            raise UnsupportedError(f"{source.description}: tensor {name!r}: {resolved.reason}")
        if isinstance(resolved, Ignored):
            plan.ignored[resolved.reason].append(name)
            continue
        for target in (_by_the_layers_name(target, params) for target in resolved):
            if lies_in(target.param, shared_modules):
                plan.ignored[SHARED].append(name)
                continue
            if target.param in tied:
                plan.tied[name] = tied[target.param]
                continue
            if target.param not in params and kv_scale(weight_map.renamed(name)) == target.param:
                plan.ignored[NOT_SCALED].append(name)
                continue
            if target.param not in params and target in known:
                plan.known[name] = known[target]
                continue
            pieces = _pieces(target, info, params, name, problems)
            plan.pieces.setdefault(name, []).extend(pieces)
            for piece in pieces:
                key = Target(piece.param, piece.part)
                if key in filled:
                    problems["duplicated"].append(f"{name} (fills the same place as {filled[key]})")
                filled.setdefault(key, name)
    for param, tensor in params.items():
        default = default_of(tensor)
        if default is not None and Target(param) not in filled:
            plan.defaults[param] = default
        elif param not in tied:
            # One tensor may be missing in several parts.
            absent = dict.fromkeys(
                weight_map.checkpoint_name(Target(param, part))
                for part in placements_of(tensor)
                if Target(param, part) not in filled
            )
            if absent:
                problems["missing"] += absent
    return plan


def describe_problems(plan: LoadPlan, source: WeightSource, model_name: str) -> str:
    """One line that names everything in `plan.problems`."""
    counts = "; ".join(f"{len(names)} {kind}: {first_names(names)}" for kind, names in plan.problems.items())
    return f"{source.description} does not fit {model_name}: {counts}"


def _by_the_layers_name(target: Target, params: Mapping[str, torch.Tensor]) -> Target:
    """A scale that its layer calls otherwise; any other target as it is."""
    if target.param in params:
        return target
    for published, own in SCALE_NAMES.items():
        found = target.param.removesuffix(published) + own
        if target.param.endswith(published) and found in params:
            return Target(found, target.part)
    return target


def _known(model: torch.nn.Module) -> dict[Target, Known]:
    return {
        Target(f"{prefix}.{name}".removeprefix("."), part): known
        for prefix, module in model.named_modules()
        for (name, part), known in known_of(module).items()
    }


def _tied(params: Mapping[str, torch.Tensor], weight_map: WeightMap) -> dict[str, str]:
    """Parameter that the model ties -> the one it is tied to."""
    tied = {}
    for target, origin in weight_map.tied.items():
        if origin in params and (target not in params or params[target] is params[origin]):
            tied[target] = origin
    owners: dict[int, str] = {id(params[name]): name for name in params if name not in tied}
    for name, tensor in params.items():
        if name not in tied and owners[id(tensor)] != name:
            raise AssertionError(f"{name} shares a parameter that the weight map does not name in `tied`")
    return tied


def _pieces(
    target: Target, info: TensorInfo, params: Mapping[str, torch.Tensor], name: str, problems: dict[str, list[str]]
) -> list[Piece]:
    parameter = params.get(target.param)
    if parameter is None:
        problems["unexpected"].append(name)
        return []
    placements = placements_of(parameter)
    placement = placements.get(target.part)
    first = _first_placement(target, placements)
    recoding = None if first is None else first.recoding
    wanted = parameter.dtype if recoding is None else recoding.dtype
    plain = info.dtype is not None and info.dtype.is_floating_point and info.dtype.itemsize >= 2
    # Into a quantised weight goes what was quantised for it, and nothing else.
    is_quantised = wanted is not None and (wanted.itemsize == 1 or not wanted.is_floating_point)
    if (is_quantised or not plain) and info.dtype != wanted:
        guess = "unquantised?" if is_quantised else "quantised?"
        problems["of a wrong dtype"].append(f"{name} ({info.stored} for {_short(wanted or parameter.dtype)}: {guess})")
        return []
    if target.part.startswith("*."):
        return _stacked_pieces(target, info, placements, name, problems)
    if "+" in target.part:
        return _cut_pieces(target, info, placements, name, problems)
    if placement is None:
        problems["unexpected"].append(name)
        return []
    if not placement.accepts(info.shape):
        wants = list(placement.stored_shape)
        problems["of a wrong shape"].append(f"{name} {list(info.shape)} (the model wants {wants})")
    return [Piece(param=target.param, part=target.part, placement=placement)]


def _first_placement(target: Target, placements: Mapping[str, Placement]) -> Placement | None:
    """Of several parts, which are stored alike."""
    if target.part.startswith("*."):
        return next(iter(placements.values()), None)
    return placements.get(target.part.split("+")[0])


def _cut_pieces(
    target: Target, info: TensorInfo, placements: Mapping[str, Placement], name: str, problems: dict[str, list[str]]
) -> list[Piece]:
    """Cut the rows of a module that is one in the checkpoint as well; one number goes to all of its parts."""
    parts = target.part.split("+")
    if not set(parts) <= set(placements):
        problems["unexpected"].append(name)
        return []
    wanted = [placements[part] for part in parts]
    shape, loose = wanted[0].shape, wanted[0].loose
    if not all(place.fills_rows for place in wanted[:-1]):
        raise UnsupportedError(
            f"{name}: blocks across the parts {', '.join(parts)} that the checkpoint fuses, and orders of their "
            "features, are not supported; choices: what is stored per row, per tensor or per block within a part"
        )
    if not shape:
        whole, rows = wanted[0], [None] * len(parts)
    else:
        ends = list(itertools.accumulate(place.shape[0] for place in wanted))
        whole = Placement(shape=(ends[-1], *shape[1:]), loose=loose, recoding=wanted[0].recoding)
        rows = [slice(first, end) for first, end in zip([0, *ends], ends, strict=False)]
    if not whole.accepts(info.shape):
        problems["of a wrong shape"].append(f"{name} {list(info.shape)} (the model wants {list(whole.stored_shape)})")
    return [
        Piece(param=target.param, part=part, placement=place, rows=own)
        for part, place, own in zip(parts, wanted, rows, strict=True)
    ]


def _stacked_pieces(
    target: Target, info: TensorInfo, placements: Mapping[str, Placement], name: str, problems: dict[str, list[str]]
) -> list[Piece]:
    """Cut a stack `[E, rows, columns]` (or `[E, columns, rows]`, or `[E, rows]`) into the experts' parts, in the order
    named."""
    parts = target.part.removeprefix("*.").split("_")
    experts = sorted({int(part.split(".")[0]) for part in placements if part.split(".")[0].isdigit()})
    found = [placements[f"{experts[0]}.{part}"] for part in parts] if experts else []
    wanted = [placement.shape for placement in found]
    if not wanted:
        problems["unexpected"].append(name)
        return []
    whole = (sum(shape[0] for shape in wanted), *wanted[0][1:])
    if (recoding := found[0].recoding) is not None:
        whole = recoding.stored_shape(whole)
    shapes = {False: (len(experts), *whole), True: (len(experts), *whole[::-1])}
    ways = [False, True] if target.transposed is None else [target.transposed]
    fitting = [way for way in ways if tuple(info.shape) == shapes[way]]
    if len(fitting) > 1:
        problems["of an ambiguous layout"].append(
            f"{name} {list(info.shape)} (rows and columns are equal: may be transposed; save it one tensor per expert)"
        )
    if not fitting:
        choices = " or ".join(str(list(shapes[way])) for way in ways)
        problems["of a wrong shape"].append(f"{name} {list(info.shape)} (the model wants {choices})")
    pieces = []
    for expert in experts:
        for part, rows in zip(parts, _rows_of_parts(wanted, target.interleaved), strict=True):
            pieces.append(
                Piece(
                    param=target.param,
                    part=f"{expert}.{part}",
                    placement=placements[f"{expert}.{part}"],
                    expert=expert,
                    transposed=fitting == [True],
                    rows=rows,
                )
            )
    return pieces


def _rows_of_parts(shapes: list[tuple[int, ...]], interleaved: bool) -> list[slice]:
    """Where the rows of each part lie in a stack of all of them."""
    if interleaved:
        return [slice(first, None, len(shapes)) for first in range(len(shapes))]
    ends = list(itertools.accumulate(shape[0] for shape in shapes))
    return [slice(first, end) for first, end in zip([0, *ends], ends, strict=False)]


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
