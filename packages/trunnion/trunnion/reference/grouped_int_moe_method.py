"""The MoE method of weights alone in few bits: packed rows with scales and zero points for each expert."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

import trunnion.ops  # noqa: F401  (registers the operators)
from trunnion.errors import UnsupportedError
from trunnion.interfaces.methods import MoEMethod, MoEShape
from trunnion.interfaces.quantization import GroupedInt
from trunnion.interfaces.weights import Placement, add_parameter, set_known
from trunnion.reference.int_layouts import NAMES, scale_recoding, zero_point_recoding
from trunnion.reference.moe_method import refuse_biases_and_activations
from trunnion.reference.packed_placements import check_words, known_tensors, packed_placements, recoded
from trunnion.reference.scale_placements import block_scales


class GroupedIntMoEMethod(MoEMethod):
    """`w13` and `w2` as `GroupedIntLinearMethod` has a weight, through `grouped_int_experts`.

    Parameters have the checkpoint's names behind `w13_` and `w2_`.
    """

    def __init__(self, scheme: GroupedInt) -> None:
        self.scheme = scheme
        self.names = NAMES[scheme.layout]

    def create(self, layer: nn.Module, shape: MoEShape) -> None:
        refuse_biases_and_activations(shape, f"{self.scheme.layout.value}'s {self.scheme.bits}-bit")
        if self.scheme.is_ordered:
            raise UnsupportedError(
                f"{shape.prefix}: experts whose features are in an order of the checkpoint's ({self.names.groups}) are "
                "not supported; choices: a checkpoint without desc_act or actorder"
            )
        hidden, inner = shape.hidden_size, shape.intermediate_size
        self._create(layer, "w13", (2 * inner, hidden), shape.w13_placements, shape)
        self._create(layer, "w2", (hidden, inner), shape.w2_placements, shape)

    def apply(
        self, layer: nn.Module, x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor
    ) -> torch.Tensor:
        out: torch.Tensor = torch.ops.trunnion.grouped_int_experts(
            x, *self._operands(layer, "w13"), *self._operands(layer, "w2"), topk_weights, topk_ids,
            self.scheme.bits, layer.w13_group_size, layer.w2_group_size,
        )  # fmt: skip
        return out

    def _create(
        self,
        layer: nn.Module,
        name: str,
        size: tuple[int, int],
        placements: Mapping[str, Placement],
        shape: MoEShape,
    ) -> None:
        scheme, prefix, experts = self.scheme, f"{shape.prefix}.{name}", shape.num_experts
        check_words(scheme, placements, prefix)
        full = next(iter(placements.values())).shape[1]
        groups = block_scales(placements, size, (1, scheme.group_size or full), prefix, stacked=1)
        packed = (experts, size[0], size[1] * scheme.bits // 8)
        add_parameter(layer, f"{name}_{self.names.weight}", packed, torch.uint8, packed_placements(scheme, placements))
        scales = recoded(groups.placements, scale_recoding(scheme))
        add_parameter(layer, f"{name}_{self.names.scales}", (experts, *groups.shape), shape.dtype, scales)
        if scheme.has_zero_points:
            zeros = recoded(groups.placements, zero_point_recoding(scheme))
            add_parameter(layer, f"{name}_{self.names.zero_points}", (experts, *groups.shape), torch.uint8, zeros)
        sizes = {part: place.shape for part, place in placements.items()}
        set_known(layer, known_tensors(scheme, sizes, f"{name}_"))
        setattr(layer, f"{name}_group_size", groups.columns)

    def _operands(self, layer: nn.Module, name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        zero_points = getattr(layer, f"{name}_{self.names.zero_points}") if self.scheme.has_zero_points else None
        return getattr(layer, f"{name}_{self.names.weight}"), getattr(layer, f"{name}_{self.names.scales}"), zero_points
