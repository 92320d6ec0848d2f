// Where a tile of keys and values of one head lies in a paged cache.
#pragma once

#include "vector.h"

namespace trunnion_cpu::TRUNNION_ISA {
namespace {

// Keys [first, first + count); past the end the last one stands again, and whoever asks hides it.
template <class Stored>
struct PagedKeys {
  int64_t first, count;
  const Stored* keys[kTileKeys];
  const Stored* values[kTileKeys];
};

template <class Stored>
void find_keys(const AttendArgs& args, const int32_t* table, int64_t head, PagedKeys<Stored>& tile) {
  const int64_t token = args.kv_heads * args.head_dim;
  // One division for all: keys follow each other within blocks, and blocks within the table.
  int64_t place = tile.first / args.block_size, within = tile.first % args.block_size;
  for (int64_t i = 0; i < tile.count; ++i) {
    const int64_t block = table[place], offset = within * token + head * args.head_dim;
    tile.keys[i] = static_cast<const Stored*>(args.k_cache) + block * args.k_block_stride + offset;
    tile.values[i] = static_cast<const Stored*>(args.v_cache) + block * args.v_block_stride + offset;
    if (++within == args.block_size) {
      within = 0;
      ++place;
    }
  }
  for (int64_t i = tile.count; i < kTileKeys; ++i) {
    tile.keys[i] = tile.keys[tile.count - 1];
    tile.values[i] = tile.values[tile.count - 1];
  }
}

}  // namespace
}  // namespace trunnion_cpu::TRUNNION_ISA
