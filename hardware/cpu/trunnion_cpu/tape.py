"""Records a forward as a straight list of operator calls and plays it back without any Python of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trunnion.errors import UnsupportedError
from trunnion.interfaces.break_points import BreakKind


@dataclass
class Call:
    """One line of a tape. Registers are named, everything else is a constant."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[str]
    is_sequence: bool
    reads: set[str]
    is_group: bool = False
    """Whether it is the call of a group at a break point."""


@dataclass(frozen=True)
class Register:
    """A place in a call's arguments that another call fills."""

    name: str


@dataclass
class TapeRecorder(TorchDispatchMode):
    """While active, notes every operator with its arguments. Tensors that it has not seen made are constants.

    A view of a constant is a constant. Calls at break points are noted as they are, whatever they do inside. An
    operator whose result decides shapes or Python's course cannot be played back and raises UnsupportedError.
    """

    arguments: Sequence[torch.Tensor] = ()
    """Tensors that each playback gets anew, in this order."""
    direct: Callable[[Any, Sequence[Any]], Any] = lambda function, args: function
    """(operator, arguments) -> what a playback calls in its place: the same without what need not be decided again."""
    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._names = {id(tensor): f"a{index}" for index, tensor in enumerate(self.arguments)}
        # A tensor that is gone may give its id to another one.
        self._alive: list[Any] = list(self.arguments)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Else torch imports all of its compiler at the first operator, half a second and 50 MB, to pass this by."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags:
            raise UnsupportedError(f"{func} depends on values: it cannot be recorded")
        result = func(*args, **kwargs)
        if not self._reads((args, kwargs)) and is_view(func, (args, kwargs), result):
            self._alive.append(result)
        else:
            self._note(self.direct(func, args), args, kwargs, result)
        return result

    def on_break(self, kind: BreakKind, call: Callable[..., torch.Tensor], args: tuple[Any, ...]) -> torch.Tensor:
        """Groups and collectives alike are lines of the tape."""
        with _Paused(self):
            result = call(*args)
        self._note(call, args, {}, result, is_group=kind is BreakKind.GROUP)
        return result

    def play(self, result: torch.Tensor) -> Callable[..., torch.Tensor]:
        """A function of `arguments` that makes `result` again."""
        arguments = [f"a{index}" for index in range(len(self.arguments))]
        return play_lines(self.calls, arguments, Register(self.name_of(result)))

    def name_of(self, result: torch.Tensor) -> str:
        """The register that holds it."""
        return self._names[id(result)]

    def with_last_uses(self, result: str) -> Iterator[tuple[Call, list[str]]]:
        """Each call, and the registers that nothing reads after it."""
        last_use = _last_uses(self.calls, result)
        for index, call in enumerate(self.calls):
            yield call, [name for name in (*call.outputs, *call.reads) if last_use.get(name) == index]

    def _note(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        *,
        is_group: bool = False,
    ) -> None:
        args = mapped(self._named, args)
        kwargs = {key: mapped(self._named, value) for key, value in kwargs.items()}
        outputs = list(result) if isinstance(result, tuple | list) else [result]
        names = []
        for output in outputs:
            self._alive.append(output)
            names.append(f"v{len(self._alive)}")
            self._names[id(output)] = names[-1]
        reads = {leaf.name for leaf in _leaves((args, kwargs)) if isinstance(leaf, Register)}
        self.calls.append(Call(function, args, kwargs, names, isinstance(result, tuple | list), reads, is_group))

    def _named(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and id(value) in self._names:
            return Register(self._names[id(value)])
        assert not isinstance(value, Mapping), "a mapping among the arguments: tensors in it would not be seen"
        self._alive.append(value)
        return value

    def _reads(self, arguments: Any) -> bool:
        return any(id(leaf) in self._names for leaf in _leaves(arguments) if isinstance(leaf, torch.Tensor))


def is_view(func: Any, arguments: Any, result: Any) -> bool:
    """Whether the result lies in the arguments' memory. The schema does not say: `to` and `reshape` may copy."""
    if any(arg.alias_info is not None and arg.alias_info.is_write for arg in func._schema.arguments):
        return False
    return _storages(result) <= _storages(arguments)


def _storages(values: Any) -> set[int]:
    return {leaf.untyped_storage()._cdata for leaf in _leaves(values) if isinstance(leaf, torch.Tensor)}


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """The same with `function` of each item of tuples and lists, however deep."""
    if isinstance(value, tuple | list):
        items = [mapped(function, item) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    return function(value)


def _leaves(value: Any) -> Iterator[Any]:
    """What is no container, in order."""
    if isinstance(value, tuple | list):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        yield from _leaves(tuple(value.values()))
    else:
        yield value


class _Paused:
    """Lets operators pass unseen."""

    def __init__(self, recorder: TapeRecorder) -> None:
        self._recorder = recorder

    def __enter__(self) -> None:
        self._recorder.__exit__(None, None, None)

    def __exit__(self, *error: object) -> None:
        self._recorder.__enter__()


def _last_uses(calls: Sequence[Call], result: str | None) -> dict[str, int]:
    """Register -> the number of the call that reads it last, or makes it where none does; none of what is returned."""
    last_use = {name: index for index, call in enumerate(calls) for name in (*call.outputs, *call.reads)}
    if result is not None:
        last_use.pop(result, None)
    return last_use


def play_lines(calls: Sequence[Call], arguments: Sequence[str], result: Register | torch.Tensor) -> Callable[..., Any]:
    """The tape as one Python function: locals for registers, each dropped after its last use."""
    last_use = _last_uses(calls, result.name if isinstance(result, Register) else None)
    namespace: dict[str, Any] = {}
    lines = [f"def play({', '.join(arguments)}):"]

    def text(value: Any) -> str:
        if isinstance(value, Register):
            return value.name
        if isinstance(value, list | tuple):
            items = "".join(f"{text(item)}, " for item in value)
            return f"[{items}]" if isinstance(value, list) else f"({items})"
        if value is None or type(value) in (bool, int):
            return repr(value)
        name = f"c{len(namespace)}"
        namespace[name] = value
        return name

    for index, call in enumerate(calls):
        parts = [text(value) for value in call.args] + [f"{key}={text(value)}" for key, value in call.kwargs.items()]
        targets = f"({', '.join(call.outputs)},)" if call.is_sequence else call.outputs[0]
        lines.append(f"    {targets} = {text(call.function)}({', '.join(parts)})")
        dead = [name for name in (*call.outputs, *sorted(call.reads)) if last_use.get(name) == index]
        if dead:
            lines.append(f"    del {', '.join(dict.fromkeys(dead))}")
    lines.append(f"    return {text(result)}")
    exec(compile("\n".join(lines), "<tape>", "exec"), namespace)
    play: Callable[..., torch.Tensor] = namespace["play"]
    return play
