// The table of one instruction set.
#include "kernels.h"
#include "kernels_of_isa.h"

#define TRUNNION_NAME_OF(isa) #isa
#define TRUNNION_NAME(isa) TRUNNION_NAME_OF(isa)

namespace trunnion_cpu::TRUNNION_ISA {

const Kernels kKernels = {
    .name = TRUNNION_NAME(TRUNNION_ISA),
    .prepared_size = prepared_size,
    .prepared_bytes = prepared_bytes,
    .prepare = prepare,
    .linear_item = linear_item,
    .linear = linear,
    .packed_item = packed_item,
    .packed_linear = packed_linear,
    .quantised_size = quantised_size,
    .quantised_bytes = quantised_bytes,
    .quantise = quantise,
    .w8a8_linear = w8a8_linear,
    .spread_size = spread_size,
    .spread = spread,
    .grouped_item = grouped_item,
    .grouped_linear = grouped_linear,
    .quantise_blocks = quantise_blocks,
    .tiled_linear = tiled_linear,
    .tiled_groups_item = tiled_groups_item,
    .prepared_group_bytes = prepared_group_bytes,
    .prepare_groups = prepare_groups,
    .tiled_groups_linear = tiled_groups_linear,
    .tiled_bytes_linear = tiled_bytes_linear,
    .block_linear = block_linear,
    .rms_norm = rms_norm,
    .silu_and_mul = silu_and_mul,
    .rotate = rotate,
    .attend = attend,
    .merge = merge,
    .attend_tiles = attend_tiles,
};

}  // namespace trunnion_cpu::TRUNNION_ISA
