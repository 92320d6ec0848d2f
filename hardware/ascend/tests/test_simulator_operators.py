"""Operators of torch on the simulated NPU, through torch_npu's own calls, against the same on the host.

Rules compute with torch on the CPU, so what is compared is how torch_npu called them: order of arguments, dtypes,
strides and offsets of views, results in place and in given outputs.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hardware.ascend.tests.simulated import SIMULATION
from torch.nn import functional

Make = Callable[..., torch.Tensor]


class Inputs:
    """The same numbers on either device, as views with strides and an offset."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._generator = torch.Generator().manual_seed(1)

    def __call__(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        wide = torch.randn(*(size + 1 for size in shape), generator=self._generator).to(dtype).to(self.device)
        view = wide[tuple(slice(1, None) for _ in shape)]
        return view.transpose(-1, -2).contiguous().transpose(-1, -2) if len(shape) > 1 else view

    def positive(self, *shape: int) -> torch.Tensor:
        return self(*shape).abs() + 0.5

    def numbers(self, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, shape, generator=self._generator).to(self.device)

    def truths(self, *shape: int) -> torch.Tensor:
        return self.numbers(2, *shape).bool()


def filled(make: Callable[[torch.Tensor], object], tensor: torch.Tensor) -> torch.Tensor:
    """The tensor after something was done to it in place."""
    make(tensor)
    return tensor


BF16 = torch.bfloat16
CASES: dict[str, Callable[[Inputs], torch.Tensor | tuple[torch.Tensor, ...]]] = {
    "add": lambda x: torch.add(x(7, 5), x(7, 5), alpha=2),
    "add of a broadcast": lambda x: x(7, 5) + x(5),
    "add of a number": lambda x: x(7, 5) + 2.5,
    "add in place": lambda x: filled(lambda t: t.add_(x(7, 5), alpha=3), x(7, 5)),
    "add of two dtypes": lambda x: x(7, 5, dtype=BF16) + x(7, 5),
    "sub": lambda x: x(7, 5) - x(7, 5),
    "number minus tensor": lambda x: 1 - x(7, 5),
    "mul": lambda x: x(7, 5) * x(7, 5),
    "mul in place": lambda x: filled(lambda t: t[1:].mul_(x(6, 5)), x(7, 5)),
    "div": lambda x: x(7, 5) / x.positive(7, 5),
    "floor division": lambda x: x.numbers(100, 7) // 3,
    "div rounded": lambda x: torch.div(x(7, 5), x.positive(7, 5), rounding_mode="trunc"),
    "remainder": lambda x: x.numbers(100, 7) % 8,
    "pow": lambda x: x(7, 5).pow(2),
    "pow of tensors": lambda x: x.positive(7).pow(x(7)),
    "number to the power": lambda x: 2.0 ** x(7),
    "neg": lambda x: -x(7, 5),
    "abs": lambda x: x(7, 5).abs(),
    "exp": lambda x: x(7, 5).exp(),
    "log": lambda x: x.positive(7, 5).log(),
    "sqrt": lambda x: x.positive(7, 5).sqrt(),
    "rsqrt": lambda x: x.positive(7, 5).rsqrt(),
    "reciprocal": lambda x: x.positive(7, 5).reciprocal(),
    "sin": lambda x: x(7, 5).sin(),
    "cos": lambda x: x(7, 5).cos(),
    "tanh": lambda x: x(7, 5).tanh(),
    "erf": lambda x: x(7, 5).erf(),
    "floor": lambda x: x(7, 5).floor(),
    "ceil": lambda x: x(7, 5).ceil(),
    "round": lambda x: (x(7, 5) * 3).round(),
    "clamp": lambda x: x(7, 5).clamp(-0.5, 0.5),
    "clamp from below": lambda x: x(7, 5).clamp(min=0.1),
    "maximum": lambda x: torch.maximum(x(7, 5), x(7, 5)),
    "addcmul": lambda x: torch.addcmul(x(7), x(7), x(7), value=0.5),
    "eq": lambda x: x.numbers(3, 7) == x.numbers(3, 7),
    "ne of a number": lambda x: x.numbers(3, 7) != 1,
    "gt": lambda x: x(7, 5) > x(7, 5),
    "ge of a number": lambda x: x(7, 5) >= 0,
    "lt": lambda x: x(7, 5) < x(7, 5),
    "le of a number": lambda x: x(7, 5) <= 0,
    "and": lambda x: x.truths(7) & x.truths(7),
    "or": lambda x: x.truths(7) | x.truths(7),
    "not": lambda x: ~x.truths(7),
    "logical not": lambda x: x.numbers(3, 7).logical_not(),
    "where": lambda x: torch.where(x.truths(7, 5), x(7, 5), x(7, 5)),
    "where of a number": lambda x: torch.where(x.truths(7, 5), x(7, 5), 0.0),
    "is finite": lambda x: (x(7) / 0).isfinite(),
    "sigmoid": lambda x: x(7, 5).sigmoid(),
    "silu": lambda x: functional.silu(x(7, 5)),
    "gelu with tanh": lambda x: functional.gelu(x(7, 5), approximate="tanh"),
    "relu": lambda x: functional.relu(x(7, 5)),
    "softplus": lambda x: functional.softplus(x(7, 5)),
    "softmax": lambda x: x(7, 5).softmax(-1),
    "softmax in float32": lambda x: torch.softmax(x(7, 5, dtype=BF16), -1, dtype=torch.float32),
    "log softmax": lambda x: x(7, 5).log_softmax(-1),
    "sum": lambda x: x(7, 5).sum(),
    "sum along": lambda x: x(7, 5).sum(0, keepdim=True),
    "mean": lambda x: x(7, 5).mean(-1, keepdim=True),
    "cumsum": lambda x: x(7, 5).cumsum(0),
    "max": lambda x: x(7, 5).max(),
    "max along": lambda x: tuple(x(7, 5).max(-1)),
    "amax": lambda x: x(7, 5).amax(-1),
    "argmax": lambda x: x(7, 5).argmax(-1),
    "any": lambda x: x.truths(7, 5).any(-1),
    "all": lambda x: x.truths(7, 5).all(),
    "topk": lambda x: tuple(x(7, 5).topk(3)),
    "sort": lambda x: tuple(x(7, 5).sort(-1, descending=True)),
    "argsort": lambda x: x(7, 5).argsort(-1),
    "var": lambda x: x(7, 5).var(-1),
    "matmul": lambda x: x(7, 5) @ x(5, 3),
    "matmul in bfloat16": lambda x: x(7, 5, dtype=BF16) @ x(5, 3, dtype=BF16),
    "batched matmul": lambda x: x(2, 7, 5) @ x(2, 5, 3),
    "linear": lambda x: functional.linear(x(7, 5), x(3, 5)),
    "linear with bias": lambda x: functional.linear(x(7, 5), x(3, 5), x(3)),
    "linear of three dimensions": lambda x: functional.linear(x(2, 7, 5), x(3, 5), x(3)),
    "addmm": lambda x: torch.addmm(x(7, 3), x(7, 5), x(5, 3), beta=0.5, alpha=2),
    "baddbmm": lambda x: torch.baddbmm(x(2, 7, 3), x(2, 7, 5), x(2, 5, 3)),
    "einsum": lambda x: torch.einsum("bhd,hdc->bhc", x(7, 2, 5), x(2, 5, 3)),
    "attention": lambda x: functional.scaled_dot_product_attention(x(1, 2, 7, 8), x(1, 2, 7, 8), x(1, 2, 7, 8)),
    "embedding": lambda x: functional.embedding(x.numbers(9, 2, 7), x(9, 5)),
    "index select": lambda x: x(9, 5).index_select(0, x.numbers(9, 7)),
    "index": lambda x: x(9, 5)[x.numbers(9, 7)],
    "index of two dimensions": lambda x: x(9, 5)[x.numbers(9, 7), x.numbers(5, 7)],
    "index after a slice": lambda x: x(3, 9, 5)[:, x.numbers(9, 7)],
    "index by truths": lambda x: x(9, 5)[x.truths(9)],
    "index put": lambda x: filled(lambda t: t.index_put_((torch.arange(3).to(x.device),), x(3, 5)), x(9, 5)),
    "slice assigned": lambda x: filled(lambda t: t[2:5].copy_(x(3, 5)), x(9, 5)),
    "gather": lambda x: x(9, 5).gather(1, x.numbers(5, 9, 2)),
    "scatter": lambda x: x(9, 5).scatter(1, torch.arange(5).expand(9, 5).to(x.device), x(9, 5)),
    "scatter of a number": lambda x: x(9, 5).scatter(1, x.numbers(5, 9, 2), 1.0),
    "scatter add": lambda x: x(9, 5).scatter_add(1, x.numbers(5, 9, 2), x(9, 2)),
    "index add": lambda x: x(9, 5).index_add(0, x.numbers(9, 7), x(7, 5)),
    "index copy": lambda x: filled(lambda t: t.index_copy_(0, torch.tensor([4, 1]).to(x.device), x(2, 5)), x(9, 5)),
    "index fill": lambda x: filled(lambda t: t.index_fill_(0, torch.tensor([4, 1]).to(x.device), 2.0), x(9, 5)),
    "is close": lambda x: torch.isclose(x(7, 5), x(7, 5), rtol=0.5, atol=0.5),
    "triangular solve": lambda x: torch.linalg.solve_triangular(
        x(5, 5).tril() + 5 * torch.eye(5, device=x.device), x(5, 3), upper=False
    ),
    "masked fill": lambda x: x(7, 5).masked_fill(x.truths(7, 5), float("-inf")),
    "nonzero": lambda x: x.truths(7, 5).nonzero(),
    "masked select": lambda x: x(7, 5).masked_select(x.truths(7, 5)),
    "cat": lambda x: torch.cat((x(7, 5), x(7, 3)), -1),
    "stack": lambda x: torch.stack((x(7, 5), x(7, 5)), 1),
    "contiguous": lambda x: x(2, 7, 5).permute(2, 0, 1).contiguous(),
    "expand and copy": lambda x: x(7, 1).expand(7, 5).clone(),
    "repeat": lambda x: x(7, 5).repeat(2, 1),
    "repeat interleave": lambda x: x(7, 5).repeat_interleave(2, 0),
    "flip": lambda x: x(7, 5).flip(0),
    "roll": lambda x: x(7, 5).roll(2, 0),
    "pad": lambda x: functional.pad(x(7, 5), (1, 2), value=3.0),
    "triu": lambda x: x(7, 7).triu(1),
    "tril": lambda x: x(7, 7).tril(),
    "to bfloat16": lambda x: x(7, 5).to(BF16),
    "to integers": lambda x: (x(7, 5) * 9).to(torch.int32),
    "arange": lambda x: torch.arange(3, 21, 2, device=x.device),
    "arange of floats": lambda x: torch.arange(0, 1, 0.25, device=x.device),
    "linspace": lambda x: torch.linspace(0, 1, 7, device=x.device),
    "full": lambda x: torch.full((7, 5), 3.5, device=x.device),
    "zeros like": lambda x: torch.zeros_like(x(7, 5)),
    "ones": lambda x: torch.ones(7, 5, device=x.device),
    "eye": lambda x: torch.eye(5, device=x.device),
    "layer norm": lambda x: functional.layer_norm(x(7, 5), (5,), x(5), x(5)),
    "layer norm without a bias": lambda x: functional.layer_norm(x(7, 5), (5,), x(5)),
    "vector norm": lambda x: torch.linalg.vector_norm(x(7, 5), dim=-1, keepdim=True),
    "normalize": lambda x: functional.normalize(x(7, 5), dim=-1),
    "given output": lambda x: torch.mul(x(7, 5), x(7, 5), out=torch.empty(7, 5, device=x.device)),
    "one hot": lambda x: functional.one_hot(x.numbers(5, 7), 5),
    "nothing": lambda x: x(7, 5)[:0] + 1,
}


@pytest.mark.parametrize("name", CASES)
def test_an_operator_gives_what_the_host_gives(name: str) -> None:
    expected, found = CASES[name](Inputs("cpu")), CASES[name](Inputs("npu"))
    for on_host, on_device in zip(_parts(expected), _parts(found), strict=True):
        assert on_device.device.type == "npu"
        assert on_device.dtype == on_host.dtype
        torch.testing.assert_close(on_device.cpu(), on_host, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_an_operator_is_computed_by_a_rule(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """torch_npu computes what it has no operator for on the CPU, and says so; a device would wait for that."""
    CASES[name](Inputs("npu"))
    assert "fall back to run on the CPU" not in capfd.readouterr().err


def _parts(value: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (value,) if isinstance(value, torch.Tensor) else value


def test_gelu_on_the_device_is_the_one_with_tanh() -> None:
    """CANN's document of aclnnGelu has that formula, and torch_npu calls it for either form."""
    x = Inputs("cpu")(7, 5)
    torch.testing.assert_close(functional.gelu(x.npu()).cpu(), functional.gelu(x, approximate="tanh"))


def test_every_rule_names_its_source() -> None:
    places = ("ops-math/", "ops-nn/", "ops-transformer/", "ascend-transformer-boost/", "Ascend/op-plugin ")
    strays = {rule.name: rule.source for rule in SIMULATION.rules.values() if not rule.source.startswith(places)}
    assert not strays
