"""A forward of the module on the meta device, where nothing is computed: its attention calls, and what is not flat.

What a module does to a request's state, or to a mask, it does here too, and fails: then the innermost module around
that has the cache or a mask in its hands is tried as one that runs once per request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from trunnion.adapter.attention import HANDLER, AttentionCall, eager_configs
from trunnion.adapter.flat_cache import FlatCache
from trunnion.adapter.latent import Handed, LatentFacts, latent_facts
from trunnion.adapter.masks import Mask
from trunnion.adapter.request_cache import RequestCache
from trunnion.adapter.units import PerRequest, UnitCall, UnitPlan
from trunnion.errors import UnsupportedError

aten = torch.ops.aten
TOKENS = 61
"""A number that is no other dimension of a model: where it stands in a shape, tokens are counted."""


@dataclass(frozen=True)
class Seen:
    """One attention call of a forward."""

    module: str
    facts: dict[str, Any]
    latent: LatentFacts | None = None
    """Of a call whose keys and values are expanded of what the module has handed to its cache."""


@dataclass
class Findings:
    """What a forward does: the attention calls of flattened modules, and the modules that run once per request."""

    calls: list[Seen] = field(default_factory=list)
    units: dict[str, UnitPlan] = field(default_factory=dict)
    asks: str | None = None
    """The operator by which the module asks the device for values: such a module is never captured."""
    why_split: str | None = None
    """What the first of the modules did that cannot be flattened."""


def find_way(
    model: nn.Module,
    forward: Any,
    candidates: Sequence[str],
    dtype: torch.dtype,
    number_of_states: int,
    handed: Handed,
    *,
    at_once: bool,
) -> Findings:
    """What `forward(input_ids, positions)` does.

    Args:
        candidates: modules that may run once per request, by name.
        at_once: the candidates do, whether or not they can be flattened.
        handed: what the flat cache is handed in `forward`.
        number_of_states: convolution and recurrent states of a layer, as transformers counts them.

    Raises:
        UnsupportedError: neither the module nor one of the candidates can run; the text says what the first one does.
    """
    trial = _Trial(dtype, number_of_states, handed, at_once=at_once)
    with trial.watching(model, candidates):
        ids, positions = (torch.zeros(TOKENS, dtype=torch.int32, device="meta") for _ in range(2))
        answers = _Answers()
        try:
            with answers:
                hidden = forward(ids, positions)
        except UnsupportedError:
            raise
        except Exception as error:
            # Whatever it is: the module is not ours, and its words are the reason.
            raise UnsupportedError(_line(error)) from error
    found = trial.findings
    found.asks = answers.asked
    if not found.calls and not found.units:
        raise UnsupportedError("no layer calls attention through transformers' interface")
    if hidden.dim() != 2 or hidden.shape[0] != TOKENS:
        raise UnsupportedError(f"{TOKENS} tokens give hidden states {list(hidden.shape)}")
    return found


class _Trial:
    def __init__(self, dtype: torch.dtype, number_of_states: int, handed: Handed, *, at_once: bool) -> None:
        self.findings = Findings()
        self._dtype = dtype
        self._number_of_states = number_of_states
        self._handed = handed
        self._at_once = at_once
        self._in_unit = False

    @contextmanager
    def watching(self, model: nn.Module, candidates: Sequence[str]) -> Iterator[None]:
        """Note attention calls instead of answering them, and see what the candidates do."""
        modules = dict(model.named_modules())
        for name, module in modules.items():
            module.__dict__[HANDLER] = self._note(name, module)
        # Some have a forward of their own already.
        before = {name: modules[name].__dict__.get("forward") for name in candidates}
        for name in candidates:
            modules[name].forward = self._watched(name, modules[name])
        try:
            yield
        finally:
            for name, forward in before.items():
                if forward is None:
                    del modules[name].forward
                else:
                    modules[name].forward = forward
            for module in modules.values():
                module.__dict__.pop(HANDLER, None)

    def _note(self, name: str, module: nn.Module) -> Callable[[AttentionCall], torch.Tensor]:
        def note(call: AttentionCall) -> torch.Tensor:
            latent = latent_facts(module, call, self._handed.take())
            self.findings.calls.append(Seen(name, call.facts(), latent))
            return call.query.new_empty(1, call.query.shape[2], call.query.shape[1], call.value.shape[3])

        return note

    def _watched(self, name: str, module: nn.Module) -> Callable[..., Any]:
        forward = module.forward

        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._in_unit:
                return forward(*args, **kwargs)
            if self._at_once or name in self.findings.units:
                return self._once_per_request(name, module, forward, args, kwargs)
            num_calls = len(self.findings.calls)
            try:
                return forward(*args, **kwargs)
            except Exception as error:
                if not any(isinstance(leaf, FlatCache | Mask) for leaf in tree_flatten((args, kwargs))[0]):
                    raise
                del self.findings.calls[num_calls:]
                units = self.findings.units
                self.findings.units = {each: plan for each, plan in units.items() if not each.startswith(f"{name}.")}
                try:
                    result = self._once_per_request(name, module, forward, args, kwargs)
                except Exception:
                    self.findings.units = units
                    units.pop(name, None)
                    raise error from None
                if self.findings.why_split is None:
                    self.findings.why_split = f"{type(module).__name__}: {_line(error)}"
                return result

        return watched

    def _once_per_request(
        self, name: str, module: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The module's call for a request that starts here, of all the tokens; noted."""
        plan = self.findings.units.setdefault(name, UnitPlan(name))
        leaves, tree = tree_flatten((args, kwargs))
        store = _RecordingStore(plan)
        own = [self._given(leaf, store) for leaf in leaves]
        eager = eager_configs(module)
        configs = {each: each.config for each in eager}
        for each, config in eager.items():
            each.config = config
        self._in_unit = True
        try:
            own_args, own_kwargs = tree_unflatten(own, tree)
            result = forward(*own_args, **own_kwargs)
        finally:
            self._in_unit = False
            for each, config in configs.items():
                each.config = config
        if not plan.kept:
            raise UnsupportedError(f"{type(module).__name__} keeps nothing")
        found, out_tree = tree_flatten(result)
        main = next((i for i, leaf in enumerate(found) if _token_dim(leaf) is not None), None)
        if main is None:
            raise UnsupportedError(f"{type(module).__name__} returns nothing for each token")
        others = [i for i, leaf in enumerate(found) if isinstance(leaf, torch.Tensor) and i != main]
        dim = _token_dim(found[main])
        assert dim is not None, "it is the main one for that"
        shape = tuple(found[main].shape)
        plan.calls.append(
            UnitCall(
                dims=tuple(_token_dim(leaf) for leaf in leaves),
                out_tree=out_tree,
                out_leaves=tuple(leaf if _is_plain(leaf) else None for leaf in found),
                main=main,
                main_dim=dim,
                main_shape=shape[:dim] + shape[dim + 1 :],
                main_dtype=found[main].dtype,
                others=tuple(others),
                can_batch=_has_batch(found[main]) and all(map(_can_batch, leaves)),
            )
        )
        for index in others:
            found[index] = PerRequest([found[index]])
        return tree_unflatten(found, out_tree)

    def _given(self, leaf: Any, store: _RecordingStore) -> Any:
        if isinstance(leaf, FlatCache):
            return RequestCache(store, self._number_of_states)
        if isinstance(leaf, Mask):
            return torch.empty(1, 1, TOKENS, TOKENS, dtype=self._dtype, device="meta")
        if isinstance(leaf, torch.Tensor) and list(leaf.shape).count(TOKENS) > 1:
            raise UnsupportedError(f"a tensor {list(leaf.shape)} of pairs of tokens is of all requests")
        return leaf.values[0] if isinstance(leaf, PerRequest) else leaf


class _Answers(TorchDispatchMode):
    """What a module asks of a value is answered as if all were zero, where there are none."""

    asked: str | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (aten._local_scalar_dense.default, aten.nonzero.default) and args[0].is_meta:
            self.asked = func._schema.name
            if func is aten.nonzero.default:
                return args[0].new_empty(0, args[0].dim(), dtype=torch.long)
            return torch.zeros((), dtype=args[0].dtype, device="cpu").item()
        return func(*args, **kwargs or {})


class _RecordingStore:
    """Of a request that starts here: notes what is kept, and keeps nothing."""

    num_cached = 0

    def __init__(self, plan: UnitPlan) -> None:
        self._plan = plan

    def old_states(self, layer: int) -> dict[str, torch.Tensor]:
        return {}

    def new_state(self, layer: int, name: str, like: torch.Tensor) -> torch.Tensor:
        if like.shape[0] != 1 or TOKENS in like.shape:
            raise UnsupportedError(f"layer {layer} keeps {name} {list(like.shape)}, which grows or is of several")
        self._plan.kept[layer, name] = tuple(like.shape[1:]), like.dtype
        return torch.zeros_like(like)

    def extend(self, layer: int, name: str, rows: torch.Tensor) -> torch.Tensor:
        if rows.shape[0] != TOKENS:
            raise UnsupportedError(f"layer {layer} keeps {rows.shape[0]} rows of {name} for {TOKENS} tokens")
        self._plan.kept[layer, name] = tuple(rows.shape[1:]), rows.dtype
        return rows


def _token_dim(leaf: Any) -> int | None:
    """Which dimension counts tokens, if exactly one does."""
    shape = list(leaf.shape) if isinstance(leaf, torch.Tensor) else []
    return shape.index(TOKENS) if shape.count(TOKENS) == 1 else None


def _has_batch(leaf: torch.Tensor) -> bool:
    """Whether a batch of one stands before the dimension that counts tokens."""
    return bool(_token_dim(leaf)) and leaf.shape[0] == 1


def _can_batch(leaf: Any) -> bool:
    """Whether an argument is one of tokens, with a batch of one, or of no request in particular."""
    if isinstance(leaf, torch.Tensor):
        return _token_dim(leaf) is None or _has_batch(leaf)
    return not isinstance(leaf, Mask | PerRequest)


def _is_plain(leaf: Any) -> bool:
    return leaf is None or isinstance(leaf, bool | int | float | str)


def _line(error: BaseException) -> str:
    if isinstance(error, UnsupportedError):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
