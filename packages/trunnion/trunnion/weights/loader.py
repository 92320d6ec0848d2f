"""Fills a model built on the meta device from a checkpoint, with nothing left over on either side."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

import torch
from tqdm import tqdm  # type: ignore[import-untyped]

from trunnion.errors import WeightsError
from trunnion.interfaces.weights import placements_of
from trunnion.weights.name_map import WeightMap
from trunnion.weights.plan import LoadPlan, Piece, lies_in, plan_load
from trunnion.weights.report import WeightReport
from trunnion.weights.source import WeightSource


def load_weights(
    model: torch.nn.Module,
    source: WeightSource,
    weight_map: WeightMap,
    *,
    dtype: torch.dtype,
    device: torch.device,
    progress: bool = False,
    shared_modules: Collection[str] = (),
) -> WeightReport:
    """Load every parameter of `model`, move it to `device` and finalize its layers.

    Those in `shared_modules` are another model's, loaded and finalized already: they are left as they are.
    The account is settled from headers before anything is allocated. A tensor is converted to its parameter's dtype;
    places that no part covers (vocabulary padding) are zero. `dtype` is the one the model was built in, checked here.

    Raises:
        WeightsError: the checkpoint and the model do not add up, a shared parameter is stored twice and differs, or a
            tensor that the model has no use for does not hold what it must.
        UnsupportedError: a tensor that the map refuses.
    """
    start = time.perf_counter()
    plan = plan_load(model, source, weight_map, shared_modules)
    _check_dtypes(model, dtype)
    own = [module for name, module in model.named_modules() if not lies_in(name, shared_modules)]
    _materialise(own, device)
    params = dict(model.named_parameters(remove_duplicate=False))
    conversions: Counter[tuple[str, str]] = Counter()
    bytes_read = 0
    with torch.no_grad():
        for param, default in plan.defaults.items():
            params[param].fill_(default)
        for name, tensor in _progress(source, plan.pieces, progress):
            bytes_read += source.infos[name].nbytes
            for piece in plan.pieces.get(name, []):
                _place(params[piece.param], piece, tensor, name)
            if name in plan.pieces:
                loaded = params[plan.pieces[name][0].param].dtype
                conversions[source.infos[name].stored, str(loaded).removeprefix("torch.")] += 1
        for name, tensor in source.tensors(plan.known):
            if not plan.known[name].holds(tensor):
                raise WeightsError(f"{name}: expected {plan.known[name].expected}")
        for name, tensor in source.tensors(plan.tied):
            _compare_tied(params[plan.tied[name]], plan.tied[name], tensor, name)
    finalize_layers(own, device)
    return _report(model, source, plan, shared_modules, conversions, bytes_read, time.perf_counter() - start)


def finalize_layers(modules: Iterable[torch.nn.Module], device: torch.device) -> None:
    """Call `finalize()` of every layer that has one, then move buffers to `device`.

    Raises:
        AssertionError: a parameter or a buffer is still on the meta device: it would hold nothing.
    """
    modules = list(modules)
    for module in modules:
        finalize = getattr(module, "finalize", None)
        if callable(finalize):
            finalize()
    for module in modules:
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta:
                raise AssertionError(f"buffer {name} of {type(module).__name__} was never computed")
            setattr(module, name, buffer.to(device))
        for name, parameter in module.named_parameters(recurse=False):
            assert not parameter.is_meta, f"{name} of {type(module).__name__} was never materialised"


def _check_dtypes(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """A parameter is in the model's dtype or, on purpose, in float32."""
    for name, parameter in model.named_parameters():
        # Floats of one byte are quantised weights.
        is_plain = parameter.dtype.is_floating_point and parameter.dtype.itemsize > 1
        if is_plain and parameter.dtype not in (dtype, torch.float32):
            raise AssertionError(f"{name} was built as {parameter.dtype}, the model as {dtype}")


def _materialise(modules: Iterable[torch.nn.Module], device: torch.device) -> None:
    """Replace every meta parameter by zeros on `device`; shared parameters stay shared, placements stay attached."""
    made: dict[int, torch.nn.Parameter] = {}
    for module in modules:
        for name, old in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if id(old) not in made:
                new = torch.nn.Parameter(torch.zeros_like(old, device=device), requires_grad=False)
                new.__dict__.update(old.__dict__)
                made[id(old)] = new
            module._parameters[name] = made[id(old)]


def _place(parameter: torch.Tensor, piece: Piece, tensor: torch.Tensor, name: str) -> None:
    try:
        value = piece.view(tensor)[piece.placement.source]
    except WeightsError as error:
        raise WeightsError(f"{name}: {error}") from None
    target = parameter[piece.placement.target]
    if target.shape != value.shape and not (piece.placement.loose and value.dim() == 0):
        raise AssertionError(
            f"{name}: placement of {piece.param}[{piece.part}] wants {tuple(target.shape)}, got {tuple(value.shape)}"
        )
    target.copy_(value)
    narrowed = parameter.dtype == torch.float16 and value.dtype != torch.float16
    if narrowed and bool(target.isinf().any()) and not bool(value.isinf().any()):
        raise WeightsError(f"{name}: stored as {value.dtype}, holds values beyond float16; use bfloat16 or float32")


def _compare_tied(parameter: torch.Tensor, param: str, tensor: torch.Tensor, name: str) -> None:
    for placement in placements_of(parameter).values():
        value = tensor[placement.source] if tuple(tensor.shape) == placement.shape else None
        target = parameter[placement.target]
        if value is None or not torch.equal(value.to(target.dtype).to(target.device), target):
            raise WeightsError(
                f"{name} differs from {param}, but the config ties them (tie_word_embeddings: true); "
                "one of the two is wrong"
            )


def _progress(source: WeightSource, names: Iterable[str], show: bool) -> Iterator[tuple[str, torch.Tensor]]:
    wanted = set(names)
    total = sum(source.infos[name].nbytes for name in wanted)
    with tqdm(
        total=total, desc="weights", unit="B", unit_scale=True, disable=not show, file=sys.stderr, leave=False
    ) as bar:
        for name, tensor in source.tensors(wanted):
            yield name, tensor
            bar.update(source.infos[name].nbytes)


def _report(
    model: torch.nn.Module,
    source: WeightSource,
    plan: LoadPlan,
    shared_modules: Collection[str],
    conversions: Counter[tuple[str, str]],
    bytes_read: int,
    seconds: float,
) -> WeightReport:
    shared = {name: lies_in(name, shared_modules) for name, _ in model.named_parameters()}
    parameters = [parameter for name, parameter in model.named_parameters() if not shared[name]]
    return WeightReport(
        source=source.description,
        num_parameters=len(parameters),
        num_used=len(plan.pieces),
        ignored={reason: tuple(names) for reason, names in plan.ignored.items()},
        tied=tuple(plan.tied),
        known=tuple(plan.known),
        shared=tuple(name for name, is_shared in shared.items() if is_shared),
        defaults=dict(plan.defaults),
        conversions=dict(conversions),
        bytes_read=bytes_read,
        bytes_loaded=sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        seconds=seconds,
    )
