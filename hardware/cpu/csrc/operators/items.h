// How a product is cut into items: blocks of weight rows that a cache holds, for blocks of rows of x.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../kernels/kernels.h"

namespace trunnion_cpu {

constexpr int64_t kWeightBytesPerItem = 64 << 10;  // half of a small second-level cache
constexpr int64_t kMinFeaturesPerItem = 24;        // a multiple of what kernels take at once
constexpr int64_t kRowsPerItem = 64;
constexpr int64_t kMostTiledRows = 256;
constexpr int64_t kItemsPerThread = 4;
constexpr int64_t kSharedWork = 1 << 16;  // products below which waking others costs more than it saves

inline int64_t features_per_item(int64_t features, int64_t row_bytes, int64_t threads,
                                 int64_t multiple = kMinFeaturesPerItem) {
  int64_t most = std::max(kWeightBytesPerItem / std::max<int64_t>(row_bytes, 1), multiple);
  most = std::min(most, (features + threads * kItemsPerThread - 1) / (threads * kItemsPerThread));
  return (most + multiple - 1) / multiple * multiple;
}

// Of products with weights in tiles: few rows in one item, so that a weight is read once; many in blocks that the
// second cache holds, cut evenly.
inline int64_t rows_per_tiled_item(int64_t rows) {
  const int64_t blocks = std::max<int64_t>((rows + kMostTiledRows - 1) / kMostTiledRows, 1);
  return std::max<int64_t>((rows + blocks - 1) / blocks, 1);
}

template <class Args>
int64_t num_items(const Args& args) {
  const int64_t across = (args.features + args.features_per_item - 1) / args.features_per_item;
  return across * ((args.rows + args.rows_per_item - 1) / args.rows_per_item);
}

}  // namespace trunnion_cpu
