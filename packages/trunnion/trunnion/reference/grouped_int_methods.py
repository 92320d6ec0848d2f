"""The linear method of weights alone in few bits: packed rows with scales and zero points, whoever published them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import torch
from torch import nn

import trunnion.ops  # noqa: F401  (registers the operators)
from trunnion.errors import UnsupportedError, WeightsError
from trunnion.interfaces.methods import LinearMethod, LinearShape
from trunnion.interfaces.quantization import GroupedInt
from trunnion.interfaces.weights import Placement, add_parameter, set_known
from trunnion.ops.grouped_int import dequantise_groups, pack, unpack_wide
from trunnion.reference.int_layouts import NAMES, scale_recoding, zero_point_recoding
from trunnion.reference.kept import keep
from trunnion.reference.packed_placements import check_words, known_tensors, packed_placements, recoded
from trunnion.reference.scale_placements import block_scales

TAKEN = -1
"""Stands in the list of groups once a weight's features are sorted by it, until a reload brings another one."""


class GroupedIntLinearMethod(LinearMethod):
    """Values [N, K * bits / 8] uint8, scales [N, G], zero points [N, G] uint8, through `grouped_int_linear`.

    Parameters have the checkpoint's names. Where it tells the group of each feature, features are sorted by it when
    the layer is finalized, and those of the input at each call (`feature_order` [K]).
    """

    def __init__(self, scheme: GroupedInt) -> None:
        self.scheme = scheme
        self.names = NAMES[scheme.layout]

    def create(self, layer: nn.Module, shape: LinearShape) -> None:
        scheme, size = self.scheme, (shape.out_features, shape.in_features)
        full = next(iter(shape.placements.values())).shape[1]
        check_words(scheme, shape.placements, shape.prefix)
        if scheme.is_ordered and shape.in_features != full:
            raise UnsupportedError(
                f"{shape.prefix}: its features are in an order of the checkpoint's ({self.names.groups}) and cannot be "
                "cut over ranks; choices: tp_size 1, or a checkpoint without desc_act or actorder"
            )
        block = (1, scheme.group_size or full)
        groups = block_scales(shape.placements, size, block, shape.prefix)
        packed_size = (size[0], size[1] * scheme.bits // 8)
        add_parameter(layer, self.names.weight, packed_size, torch.uint8, packed_placements(scheme, shape.placements))
        scales = recoded(groups.placements, scale_recoding(scheme))
        add_parameter(layer, self.names.scales, groups.shape, shape.dtype, scales)
        if scheme.has_zero_points:
            zero_points = recoded(groups.placements, zero_point_recoding(scheme))
            add_parameter(layer, self.names.zero_points, groups.shape, torch.uint8, zero_points)
        if scheme.is_ordered:
            places = {
                part: Placement(shape=(full,), target=(index,), fills_rows=False)
                for index, part in enumerate(shape.placements)
            }
            add_parameter(layer, self.names.groups, (len(places), full), torch.int32, places)
        set_known(layer, known_tensors(scheme, _runs_of_parts(shape.placements)))
        layer.register_buffer("feature_order", None, persistent=False)
        layer.int_group_size, layer.dense_dtype = groups.columns, shape.dtype

    def finalize(self, layer: nn.Module) -> None:
        """Sort the features by group.

        Raises:
            WeightsError: groups of another size than the config says.
            UnsupportedError: parts of one layer whose features are in different groups.
        """
        if self.scheme.is_ordered:
            self._sort_features(layer)
        if layer.keeps_dense_weight:
            dense = dequantise_groups(*self._operands(layer), self.scheme.bits, layer.int_group_size)
            if layer.feature_order is not None:
                dense = dense[:, layer.feature_order.argsort()]
            keep(layer, "kept_dense_weight", dense.to(layer.dense_dtype))

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if layer.feature_order is not None:
            x = x.index_select(-1, layer.feature_order)
        out: torch.Tensor = torch.ops.trunnion.grouped_int_linear(
            x, *self._operands(layer), bias, self.scheme.bits, layer.int_group_size
        )
        return out

    def dense_weight(self, layer: nn.Module) -> torch.Tensor:
        weight: torch.Tensor = layer.kept_dense_weight
        return weight

    def _operands(self, layer: nn.Module) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        zero_points = getattr(layer, self.names.zero_points) if self.scheme.has_zero_points else None
        return getattr(layer, self.names.weight), getattr(layer, self.names.scales), zero_points

    def _sort_features(self, layer: nn.Module) -> None:
        listed = getattr(layer, self.names.groups)
        groups = listed[0].cpu().long()
        if (groups == TAKEN).all():
            return
        name = f"{layer.prefix}.{self.names.groups}"
        if not (listed == listed[:1]).all():
            raise UnsupportedError(
                f"{name}: {layer.prefix} is one layer here, and its parts must have their features in the same groups"
            )
        ordered, order = groups.sort(stable=True)
        wanted = torch.arange(len(groups)) // layer.int_group_size
        if not torch.equal(ordered, wanted):
            raise WeightsError(f"{name}: expected groups of {layer.int_group_size} features each, from 0 on")
        weight = getattr(layer, self.names.weight)
        keep(layer, "feature_order", order.to(weight.device))
        values = unpack_wide(weight, self.scheme.bits).index_select(1, layer.feature_order)
        weight.copy_(pack(values, self.scheme.bits))
        listed.fill_(TAKEN)


def _runs_of_parts(placements: Mapping[str, Placement]) -> dict[str, tuple[int, int]]:
    """Sizes of parts, and of neighbouring ones as one, for a module of the checkpoint may be several (`q+k+v`)."""
    parts = list(placements)
    columns = placements[parts[0]].shape[1]
    runs = [parts[first:end] for first, end in itertools.combinations(range(len(parts) + 1), 2)]
    return {"+".join(run): (sum(placements[part].shape[0] for part in run), columns) for run in runs}
