"""Products of groups of rows, each with a matrix of its own: the experts' linear layers."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from ascend_simulator.rules import Int, Ints, Tensor, Tensors, rule

SOURCE = "ops-transformer/gmm/grouped_matmul/docs/aclnnGroupedMatmulV5.md"
BY_ROWS, NO_GROUPS = 0, -1
CUMULATIVE, COUNTS, PAIRS = 0, 1, 2
ONE_OUTPUT = (2, 3)
ACTIVATIONS = {0: None, 1: functional.relu, 2: lambda x: functional.gelu(x, approximate="tanh"), 5: functional.silu}


def group_sizes(group_list: torch.Tensor, kind: int, groups: int) -> list[int]:
    """Rows of each group, however the list says that.

    Raises:
        ValueError: the list cannot be sizes of groups.
    """
    if kind == PAIRS:
        sizes = [0] * groups
        for index, size in group_list.tolist():
            sizes[index] += size
        return sizes
    values = group_list.tolist()
    sizes = values if kind == COUNTS else [end - first for first, end in zip([0, *values[:-1]], values, strict=True)]
    if any(size < 0 for size in sizes):
        raise ValueError(f"group_list {values} of group_list_type {kind} has a group of less than nothing")
    return sizes


def _grouped(
    x: list[torch.Tensor],
    weight: list[torch.Tensor],
    bias: list[torch.Tensor] | None,
    scale: list[torch.Tensor] | None,
    per_token_scale: list[torch.Tensor] | None,
    group_list: torch.Tensor | None,
    split_item: int,
    group_type: int,
    group_list_type: int,
    act_type: int,
    out: list[torch.Tensor],
    **refused: Any,
) -> None:
    """One x, one stack of weights [G, K, N] or G of them [K, N], one output; rows beyond the groups are not written."""
    given = [name for name, value in refused.items() if value]
    if given:
        raise ValueError(f"not modelled: {', '.join(given)}")
    if len(x) != 1 or group_type != BY_ROWS or split_item not in ONE_OUTPUT or group_list is None:
        raise ValueError(
            f"{len(x)} inputs of group_type {group_type}, split_item {split_item} are not modelled: "
            f"only groups of one input's rows, and one output"
        )
    if act_type not in ACTIVATIONS:
        raise ValueError(f"act_type {act_type} is not modelled")
    _check_bias(x[0].dtype, bias)
    matrices = list(weight[0]) if len(weight) == 1 and weight[0].dim() == 3 else weight
    first = 0
    for group, size in enumerate(group_sizes(group_list, group_list_type, len(matrices))):
        rows = slice(first, first + size)
        first += size
        if first > x[0].shape[0]:
            raise ValueError(f"groups up to {group} have {first} rows of {x[0].shape[0]}")
        parts = {"bias": _of(bias, group), "scale": _of(scale, group)}
        tokens = per_token_scale[0][rows] if per_token_scale else None
        out[0][rows] = _one(x[0][rows], matrices[group], tokens, ACTIVATIONS[act_type], **parts).to(out[0].dtype)


def _check_bias(dtype: torch.dtype, bias: list[torch.Tensor] | None) -> None:
    """The table of data types without quantisation: that of x, and float32 for bfloat16."""
    wanted = torch.float32 if dtype == torch.bfloat16 else dtype
    if bias and dtype.is_floating_point and bias[0].dtype != wanted:
        raise ValueError(f"a bias of {bias[0].dtype} for rows of {dtype}, expected {wanted}")


def _of(parts: list[torch.Tensor] | None, group: int) -> torch.Tensor | None:
    if not parts:
        return None
    return parts[0][group] if len(parts) == 1 else parts[group]


def _one(
    x: torch.Tensor,
    weight: torch.Tensor,
    per_token_scale: torch.Tensor | None,
    activation: Any,
    *,
    bias: torch.Tensor | None,
    scale: torch.Tensor | None,
) -> torch.Tensor:
    """Integers are multiplied exactly; a bias of integers is added before the scales, any other after them."""
    product = x.double() @ weight.double() if x.dtype == torch.int8 else x.float() @ weight.float()
    if bias is not None and bias.dtype == torch.int32:
        product = product + bias
    if scale is not None:
        product = product * scale.float()
    if per_token_scale is not None:
        product = product * per_token_scale[:, None]
    if bias is not None and bias.dtype != torch.int32:
        product = product + bias.float()
    return product if activation is None else activation(product)


@rule("aclnnGroupedMatmulV4", source="ops-transformer/gmm/grouped_matmul/docs/aclnnGroupedMatmulV4.md")
def grouped_matmul_v4(
    x: Tensors,
    weight: Tensors,
    bias: Tensors,
    scale: Tensors,
    offset: Tensors,
    antiquant_scale: Tensors,
    antiquant_offset: Tensors,
    per_token_scale: Tensors,
    group_list: Tensor | None,
    activation_input: Tensors,
    activation_quant_scale: Tensors,
    activation_quant_offset: Tensors,
    split_item: Int,
    group_type: Int,
    group_list_type: Int,
    act_type: Int,
    out: Tensors,
    activation_out: Tensors,
    dynamic_scale_out: Tensors,
) -> None:
    _grouped(
        x,
        weight,
        bias,
        scale,
        per_token_scale,
        group_list,
        split_item,
        group_type,
        group_list_type,
        act_type,
        out,
        offset=offset,
        antiquant_scale=antiquant_scale,
        antiquant_offset=antiquant_offset,
        activation_input=activation_input,
        activation_quant_scale=activation_quant_scale,
    )


@rule("aclnnGroupedMatmulV5", source=SOURCE)
def grouped_matmul(
    x: Tensors,
    weight: Tensors,
    bias: Tensors,
    scale: Tensors,
    offset: Tensors,
    antiquant_scale: Tensors,
    antiquant_offset: Tensors,
    per_token_scale: Tensors,
    group_list: Tensor | None,
    activation_input: Tensors,
    activation_quant_scale: Tensors,
    activation_quant_offset: Tensors,
    split_item: Int,
    group_type: Int,
    group_list_type: Int,
    act_type: Int,
    tuning_config: Ints,
    out: Tensors,
    activation_out: Tensors,
    dynamic_scale_out: Tensors,
) -> None:
    _grouped(
        x,
        weight,
        bias,
        scale,
        per_token_scale,
        group_list,
        split_item,
        group_type,
        group_list_type,
        act_type,
        out,
        offset=offset,
        antiquant_scale=antiquant_scale,
        antiquant_offset=antiquant_offset,
        activation_input=activation_input,
        activation_quant_scale=activation_quant_scale,
    )


@rule("aclnnGroupedMatmulWeightNz", source="ops-transformer/gmm/grouped_matmul/docs/aclnnGroupedMatmulWeightNz.md")
def grouped_matmul_nz(
    x: Tensors,
    weight: Tensors,
    bias: Tensors,
    scale: Tensors,
    offset: Tensors,
    antiquant_scale: Tensors,
    antiquant_offset: Tensors,
    per_token_scale: Tensors,
    group_list: Tensor | None,
    activation_input: Tensors,
    activation_quant_scale: Tensors,
    activation_quant_offset: Tensors,
    split_item: Int,
    group_type: Int,
    group_list_type: Int,
    act_type: Int,
    tuning_config: Ints,
    quant_per_group_size: Int,
    out: Tensors,
    activation_out: Tensors,
    dynamic_scale_out: Tensors,
) -> None:
    """With weights in the fractal layout, which are laid out in rows when they are read."""
    _grouped(
        x,
        weight,
        bias,
        scale,
        per_token_scale,
        group_list,
        split_item,
        group_type,
        group_list_type,
        act_type,
        out,
        offset=offset,
        antiquant_scale=antiquant_scale,
        antiquant_offset=antiquant_offset,
        activation_input=activation_input,
        activation_quant_scale=activation_quant_scale,
    )
