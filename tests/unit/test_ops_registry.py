"""The operator registry: one owner per dispatch key, no duplicates, declined calls counted with their reason."""

from __future__ import annotations

import pytest
import torch

from trunnion.ops.registry import OPERATORS, OperatorRegistry


def _fake(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.fixture
def operators(request: pytest.FixtureRequest) -> OperatorRegistry:
    made = OperatorRegistry(f"trunnion_test_{abs(hash(request.node.name))}")

    @made.define("double(Tensor x) -> Tensor", fake=_fake)
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @made.define("negate(Tensor x) -> Tensor", fake=_fake)
    def negate(x: torch.Tensor) -> torch.Tensor:
        return -x

    return made


def _call(operators: OperatorRegistry, name: str, x: torch.Tensor) -> torch.Tensor:
    return getattr(getattr(torch.ops, operators.namespace), name)(x)


def test_reference_runs_without_a_package(operators: OperatorRegistry) -> None:
    assert _call(operators, "double", torch.ones(3)).tolist() == [2, 2, 2]
    assert operators.names() == ("double", "negate")


def test_fake_gives_shapes_on_meta(operators: OperatorRegistry) -> None:
    assert _call(operators, "double", torch.empty(3, 5, device="meta")).shape == (3, 5)


def test_kernel_of_a_package_wins_until_it_is_unregistered(operators: OperatorRegistry) -> None:
    operators.register("toy", "CPU", "double", lambda x: x * 3)
    assert _call(operators, "double", torch.ones(1)).item() == 3
    assert operators.registered("CPU") == ("double",)
    operators.unregister("toy")
    assert _call(operators, "double", torch.ones(1)).item() == 2
    assert operators.registered("CPU") == ()
    operators.register("other", "CPU", "double", lambda x: x * 4)
    assert _call(operators, "double", torch.ones(1)).item() == 4


def test_kernel_wins_under_inference_mode(operators: OperatorRegistry) -> None:
    operators.register("toy", "CPU", "double", lambda x: x * 3)
    with torch.inference_mode():
        assert _call(operators, "double", torch.ones(1)).item() == 3
        assert _call(operators, "negate", torch.ones(1)).item() == -1


def test_duplicate_kernel_raises(operators: OperatorRegistry) -> None:
    operators.register("toy", "CPU", "double", lambda x: x)
    with pytest.raises(ValueError, match="'toy' has already registered 'double' on CPU"):
        operators.register("toy", "CPU", "double", lambda x: x)


def test_second_package_on_a_key_raises(operators: OperatorRegistry) -> None:
    operators.register("toy", "CPU", "double", lambda x: x)
    with pytest.raises(ValueError, match="CPU belongs to package 'toy'; 'other' cannot"):
        operators.register("other", "CPU", "negate", lambda x: x)


def test_duplicate_operator_raises(operators: OperatorRegistry) -> None:
    with pytest.raises(ValueError, match="'double' is already defined"):
        operators.define("double(Tensor x) -> Tensor", fake=_fake)


def test_unknown_operator_names_the_choices(operators: OperatorRegistry) -> None:
    with pytest.raises(ValueError, match="unknown operator 'triple'; defined: double, negate"):
        operators.register("toy", "CPU", "triple", lambda x: x)


def test_declined_calls_run_the_reference_and_are_counted(operators: OperatorRegistry) -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] % 2:
            return operators.decline("double", "odd size", x)
        return torch.full_like(x, 7)

    operators.register("toy", "CPU", "double", double)
    assert _call(operators, "double", torch.ones(2)).tolist() == [7, 7]
    assert _call(operators, "double", torch.ones(3)).tolist() == [2, 2, 2]
    assert _call(operators, "double", torch.ones(1)).tolist() == [2]
    assert operators.declined() == {("double", "odd size"): 2}
    operators.reset_declined()
    assert operators.declined() == {}


def test_dense_operators_are_defined() -> None:
    import trunnion.ops  # noqa: F401

    dense = {"rms_norm", "fused_add_rms_norm", "rotary_embedding", "silu_and_mul", "gelu_tanh_and_mul"}
    assert dense <= set(OPERATORS.names())


def test_kernels_that_were_borrowed_go_and_those_before_stay(operators: OperatorRegistry) -> None:
    operators.register("toy", "CPU", "double", lambda x: x * 3)
    with operators.borrowed():
        operators.register("other", "Meta", "negate", lambda x: x)
        assert operators.registered("Meta") == ("negate",)
    assert (operators.registered("CPU"), operators.registered("Meta"), operators.owner("Meta")) == (
        ("double",),
        (),
        None,
    )
    with pytest.raises(RuntimeError, match="on purpose"), operators.borrowed():
        operators.register("other", "Meta", "negate", lambda x: x)
        raise RuntimeError("on purpose")
    assert operators.registered("Meta") == ()
