// The kernels of one instruction set, for its table.
#pragma once

#include "kernels.h"

namespace trunnion_cpu::TRUNNION_ISA {

int64_t prepared_size(Element element, int64_t size);
int64_t prepared_bytes(Element element);
void prepare(const PrepareArgs& args, int64_t first, int64_t last);
ItemShape linear_item(Element element, int64_t rows);
void linear(const LinearArgs& args, int64_t first, int64_t last);
ItemShape packed_item(int64_t rows);
void packed_linear(const LinearArgs& args, int64_t first, int64_t last);
int64_t quantised_size(int64_t size);
int64_t quantised_bytes();
void quantise(const QuantiseArgs& args, int64_t first, int64_t last);
void w8a8_linear(const LinearArgs& args, int64_t first, int64_t last);
int64_t spread_size(int64_t size);
void spread(const SpreadArgs& args, int64_t first, int64_t last);
ItemShape grouped_item(Element element, int64_t rows, bool& takes_prepared);
void grouped_linear(const GroupedArgs& args, int64_t first, int64_t last);
void quantise_blocks(const BlocksArgs& args, int64_t first, int64_t last);
void tiled_linear(const TiledArgs& args, int64_t first, int64_t last);
ItemShape tiled_groups_item(Element element, int64_t rows, bool& takes_prepared);
int64_t prepared_group_bytes(Element element);
void prepare_groups(const PrepareGroupsArgs& args, int64_t first, int64_t last);
void tiled_groups_linear(const TiledGroupsArgs& args, int64_t first, int64_t last);
void tiled_bytes_linear(const TiledBytesArgs& args, int64_t first, int64_t last);
void block_linear(const BlockLinearArgs& args, int64_t first, int64_t last);
void rms_norm(const NormArgs& args, int64_t first, int64_t last);
void silu_and_mul(const GatedArgs& args, int64_t first, int64_t last);
void rotate(const RotateArgs& args, int64_t first, int64_t last);
void attend(const AttendArgs& args, int64_t first, int64_t last);
void merge(const AttendArgs& args, int64_t first, int64_t last);
void attend_tiles(const AttendArgs& args, void* memory, int64_t first, int64_t last);

}  // namespace trunnion_cpu::TRUNNION_ISA
