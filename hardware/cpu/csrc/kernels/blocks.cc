// Products with weights in blocks of 32 features, as GGUF has them, and rows that are quantised to int8 by the same blocks.
//
// 16 features are a tile, whose codes lie block by block in chunks of 64 bytes, as tiled.cc has them, with scales (and
// minima) of a tile's block side by side elsewhere. A block's integers are summed exactly, from minus what its zero point
// amounts to; lanes are features.
#include "halves.h"
#include "int_dots.h"
#include "kernels_of_isa.h"
#include "vector.h"

namespace trunnion_cpu::TRUNNION_ISA {
namespace {

constexpr int64_t kTile = 16, kChunk = 64, kBlock = 32;
constexpr int kParts = kTile / kLanes;  // vectors of a tile's features
constexpr int kPartBytes = kChunk / kParts;
constexpr int kMaxRows = kManyRegisters ? 6 : 3;

template <int kBits>
constexpr int64_t block_bytes() {
  return kTile * kBlock * kBits / 8;
}

template <int kBits, int kRows, int kTiles>
TRUNNION_INLINE void chunk(Sum (&dots)[kTiles][kRows][kParts], const uint8_t* codes, int64_t tile_bytes, const int8_t* x,
                           int64_t x_stride) {
  constexpr int kHalves = 8 / kBits;
  Codes values[kHalves][kTiles][kParts];
#pragma GCC unroll 8
  for (int n = 0; n < kTiles; ++n) {
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      const Codes both_halves = codes_at(codes + n * tile_bytes + part * kPartBytes);
      values[0][n][part] = kBits == 4 ? lower(both_halves) : both_halves;
      if constexpr (kBits == 4) values[1][n][part] = upper(both_halves);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 2
    for (int half = 0; half < kHalves; ++half) {
      const Four four = four_of(x + m * x_stride + 4 * half);
#pragma GCC unroll 8
      for (int n = 0; n < kTiles; ++n) {
#pragma GCC unroll 4
        for (int part = 0; part < kParts; ++part) {
          dots[n][m][part] = dot<kBits>(dots[n][m][part], values[half][n][part], four);
        }
      }
    }
  }
}

template <int kBits, bool kMinima, int kRows, int kTiles>
TRUNNION_INLINE void block_of(const BlockLinearArgs& args, Floats (&sums)[kTiles][kRows][kParts], int64_t row, int64_t tile,
                              int64_t block) {
  constexpr int64_t kStep = 32 / kBits;  // values of a feature in a chunk
  const int64_t of_rows = row * args.blocks + block, of_tiles = (tile * args.blocks + block) * kTile;
  const int64_t x_stride = args.blocks * kBlock, tile_bytes = args.blocks * block_bytes<kBits>();
  const int8_t* x = args.x + row * x_stride + block * kBlock;
  const uint8_t* codes = args.codes + tile * tile_bytes + block * block_bytes<kBits>();
  Sum dots[kTiles][kRows][kParts];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    const Sum start = kMinima ? Sum{} : in_all_lanes<Sum>(args.x_shifts[of_rows + m * args.blocks]);
#pragma GCC unroll 8
    for (int n = 0; n < kTiles; ++n) {
#pragma GCC unroll 4
      for (int part = 0; part < kParts; ++part) dots[n][m][part] = start;
    }
  }
#pragma GCC unroll 8
  for (int64_t k = 0; k < kBlock; k += kStep) {
    chunk<kBits, kRows, kTiles>(dots, codes + k / kStep * kChunk, tile_bytes, x + k, x_stride);
  }
#pragma GCC unroll 8
  for (int n = 0; n < kTiles; ++n) {
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      const int64_t at = of_tiles + n * args.blocks * kTile + part * kLanes;
      const Floats scale = half_floats(args.scales + at);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        sums[n][m][part] += floats_of(dots[n][m][part]) * (scale * args.x_scales[of_rows + m * args.blocks]);
      }
      if constexpr (kMinima) {
        const Floats minimum = half_floats(args.minima + at);
#pragma GCC unroll 8
        for (int m = 0; m < kRows; ++m) sums[n][m][part] += minimum * args.x_sums[of_rows + m * args.blocks];
      }
    }
  }
}

template <class T>
TRUNNION_INLINE void finish(const BlockLinearArgs& args, Floats sum, int64_t row, int64_t feature) {
  const int64_t left = args.features - feature;
  if (left <= 0) return;
  if (args.bias != nullptr) sum += take(static_cast<const T*>(args.bias) + feature, left);
  put(static_cast<T*>(args.out) + row * args.features + feature, sum, left);
}

template <int kBits, bool kMinima, int kRows, int kTiles>
void tiles_by_rows(const BlockLinearArgs& args, int64_t row, int64_t tile) {
  Floats sums[kTiles][kRows][kParts] = {};
  for (int64_t block = 0; block < args.blocks; ++block) {
    block_of<kBits, kMinima, kRows, kTiles>(args, sums, row, tile, block);
  }
#pragma GCC unroll 8
  for (int n = 0; n < kTiles; ++n) {
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
      for (int part = 0; part < kParts; ++part) {
        const int64_t feature = (tile + n) * kTile + part * kLanes;
        if (args.element == Element::kFloat32) {
          finish<float>(args, sums[n][m][part], row + m, feature);
        } else {
          finish<BFloat16>(args, sums[n][m][part], row + m, feature);
        }
      }
    }
  }
}

constexpr int tiles_at_once(int rows) { return kManyRegisters ? (rows <= 2 ? 4 : 2) : 1; }

template <int kBits, bool kMinima, int kRows>
void tiles_of(const BlockLinearArgs& args, int64_t row, int64_t first, int64_t last) {
  constexpr int kTiles = tiles_at_once(kRows);
  for (; first + kTiles <= last; first += kTiles) tiles_by_rows<kBits, kMinima, kRows, kTiles>(args, row, first);
  for (; first < last; ++first) tiles_by_rows<kBits, kMinima, kRows, 1>(args, row, first);
}

template <int kBits, bool kMinima>
void rows_at_once(const BlockLinearArgs& args, int64_t rows, int64_t row, int64_t first, int64_t last) {
  switch (rows) {
    case 1: return tiles_of<kBits, kMinima, 1>(args, row, first, last);
    case 2: return tiles_of<kBits, kMinima, 2>(args, row, first, last);
    case 3: return tiles_of<kBits, kMinima, 3>(args, row, first, last);
    default: break;
  }
  if constexpr (kMaxRows == 6) {
    switch (rows) {
      case 4: return tiles_of<kBits, kMinima, 4>(args, row, first, last);
      case 5: return tiles_of<kBits, kMinima, 5>(args, row, first, last);
      default: return tiles_of<kBits, kMinima, 6>(args, row, first, last);
    }
  }
}

// An item is a run of tiles for a block of rows; the rows are cut evenly.
template <int kBits, bool kMinima>
void items(const BlockLinearArgs& args, int64_t begin, int64_t end) {
  const int64_t tiles = (args.features + kTile - 1) / kTile;
  const int64_t per_item = args.features_per_item / kTile;
  const int64_t across = (args.features + args.features_per_item - 1) / args.features_per_item;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t first = item % across * per_item;
    const int64_t last = first + per_item < tiles ? first + per_item : tiles;
    int64_t row = item / across * args.rows_per_item;
    int64_t left = row + args.rows_per_item < args.rows ? args.rows_per_item : args.rows - row;
    for (int64_t steps = (left + kMaxRows - 1) / kMaxRows; steps > 0; --steps) {
      const int64_t rows = (left + steps - 1) / steps;
      rows_at_once<kBits, kMinima>(args, rows, row, first, last);
      row += rows;
      left -= rows;
    }
  }
}

}  // namespace

void block_linear(const BlockLinearArgs& args, int64_t first, int64_t last) {
  if (args.bits == 8) return items<8, false>(args, first, last);
  if (args.minima == nullptr) return items<4, false>(args, first, last);
  items<4, true>(args, first, last);
}

}  // namespace trunnion_cpu::TRUNNION_ISA
