"""What a person says to export a model: functions, their inputs, and what clients may ask of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trunnion_bundle.policy import Batching
from trunnion_bundle.steps import Step
from trunnion_bundle.tensors import Dim, IndexRange, Pad, Symbol, Tolerance


@dataclass(frozen=True, kw_only=True)
class Input:
    """One input by an example of it: a tensor of torch, or an array of numpy or JAX; a list of bytes for BYTES.

    Attributes:
        example: at least two rows of likely values; they become warm-up and golden requests.
        dims: a name for each axis that differs between requests. None: ("batch", sizes of the others).
        index_range: `range(rows)` of a table, or an IndexRange; None for values that index nothing.
        pad: what fills rows up to the batch's size.
    """

    example: Any
    dims: tuple[Dim, ...] | None = None
    index_range: IndexRange | range | None = None
    pad: Pad = field(default_factory=Pad)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One signature: a function, and the steps around it.

    Attributes:
        function: a `torch.nn.Module` in eval mode, or a function of JAX: `function(params, *inputs)`, or
            `function(*inputs)` without `params`.
        inputs: the function's inputs in order, by name. Each is named as a value: a client's, or one of `before`.
        outputs: names of the function's outputs, in the order in which its result is flattened.
        params: pytree of the JAX function's weights.
        method: of the `torch.nn.Module`.
        module: name of the compiled module; None: that of the endpoint. Endpoints that name one module compile it once,
            and must have the same function, inputs and outputs.
        symbols: bounds of the named sizes other than "batch".
        sizes: JAX only: for each of `symbols`, all sizes that are compiled.
        largest_batch: most rows that the function is exported for; None: no input has a batch axis.
        before, after: steps around the function.
        requests: a client's inputs, if `before` makes others of them.
        answers: names of the values that are returned. None: all that the last steps make and none reads.
        tolerance: of answers that are floats.
        more_examples: further requests (name -> example) for golden and warm-up files, of other sizes.
    """

    function: Callable[..., Any]
    inputs: Mapping[str, Input]
    outputs: Sequence[str]
    params: Any = None
    method: str = "forward"
    module: str | None = None
    symbols: Mapping[str, Symbol] = field(default_factory=dict)
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    largest_batch: int | None = 1024
    before: Sequence[Step] = ()
    after: Sequence[Step] = ()
    requests: Mapping[str, Input] | None = None
    answers: Sequence[str] | None = None
    batching: Batching = field(default_factory=Batching)
    tolerance: Tolerance = field(default_factory=lambda: Tolerance(absolute=1e-5, relative=1e-4))
    description: str = ""
    more_examples: Sequence[Mapping[str, Any]] = ()
