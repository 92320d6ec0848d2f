// Products of weights in int8 with a scale per row, in tiles of 16 features, with rows quantised to int8: exact
// integers, scaled once. Tiles are those of 8 bits in tiled.cc.
#include "int_dots.h"
#include "kernels_of_isa.h"

namespace trunnion_cpu::TRUNNION_ISA {
namespace {

constexpr int64_t kTile = 16, kChunk = 64, kStep = 4;  // kStep: values of a feature in a chunk
constexpr int kParts = kTile / kLanes;                 // vectors of a tile's features
constexpr int kPartBytes = kChunk / kParts;
#if defined(__AVX512VNNI__)
constexpr int kMaxRows = 12;
#else
constexpr int kMaxRows = kManyRegisters ? 6 : 3;
#endif
constexpr int tiles_at_once(int rows) { return kManyRegisters ? (rows <= kMaxRows / 2 ? 4 : 2) : 1; }

// Values [begin, end) of kTiles tiles, the first of which begins at `codes`, by kRows rows. The first rows to meet them
// ask for the next tiles: with products to compute in between, the processor does not look as far by itself.
template <int kRows, int kTiles>
TRUNNION_INLINE void multiply(Sum (&dots)[kTiles][kRows][kParts], const uint8_t* codes, const int8_t* x, int64_t size,
                              int64_t begin, int64_t end, bool is_first) {
  for (int64_t k = begin; k < end; k += kStep) {
    Codes values[kTiles][kParts];
#pragma GCC unroll 4
    for (int n = 0; n < kTiles; ++n) {
#pragma GCC unroll 4
      for (int part = 0; part < kParts; ++part) {
        const uint8_t* at = codes + n * kTile * size + k * kTile + part * kPartBytes;
        values[n][part] = codes_at(at);
        if (kRows > 2 && is_first) __builtin_prefetch(at + kTiles * kTile * size);
      }
    }
#pragma GCC unroll 12
    for (int m = 0; m < kRows; ++m) {
      const Four four = four_of(x + m * size + k);
#pragma GCC unroll 4
      for (int n = 0; n < kTiles; ++n) {
#pragma GCC unroll 4
        for (int part = 0; part < kParts; ++part) dots[n][m][part] = dot<8>(dots[n][m][part], values[n][part], four);
      }
    }
  }
}

template <class T, int kRows, int kTiles>
TRUNNION_INLINE void finish(const TiledBytesArgs& args, const Ints (&totals)[kTiles][kRows][kParts], int64_t row,
                            int64_t tile) {
#pragma GCC unroll 4
  for (int n = 0; n < kTiles; ++n) {
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      const int64_t feature = (tile + n) * kTile + part * kLanes;
      const Floats scale = load(args.weight_scales + feature);
      const Floats bias = args.bias == nullptr ? Floats{} : load(static_cast<const T*>(args.bias) + feature);
#pragma GCC unroll 12
      for (int m = 0; m < kRows; ++m) {
        const Ints exact = totals[n][m][part] - in_all_lanes<Ints>(128 * args.x_sums[row + m]);
        const Floats value = floats_of(exact) * (scale * args.x_scales[row + m]) + bias;
        store(static_cast<T*>(args.out) + (row + m) * args.features + feature, value);
      }
    }
  }
}

template <class T, int kRows, int kTiles>
void tiles_by_rows(const TiledBytesArgs& args, int64_t row, int64_t tile, bool is_first) {
  const uint8_t* codes = args.codes + tile * kTile * args.size;
  const int8_t* x = args.x + row * args.size;
  Ints totals[kTiles][kRows][kParts] = {};
  if constexpr (kExactValues >= kMostTiledBytes) {
    multiply<kRows, kTiles>(totals, codes, x, args.size, 0, args.size, is_first);
  } else {
    for (int64_t begin = 0; begin < args.size; begin += kExactValues) {
      const int64_t end = begin + kExactValues < args.size ? begin + kExactValues : args.size;
      Sum dots[kTiles][kRows][kParts] = {};
      multiply<kRows, kTiles>(dots, codes, x, args.size, begin, end, is_first);
      for (int n = 0; n < kTiles; ++n) {
        for (int m = 0; m < kRows; ++m) {
          for (int part = 0; part < kParts; ++part) totals[n][m][part] += ints_of(dots[n][m][part]);
        }
      }
    }
  }
  finish<T, kRows, kTiles>(args, totals, row, tile);
}

template <class T, int kRows>
void tiles_of(const TiledBytesArgs& args, int64_t row, int64_t first, int64_t last, bool is_first) {
  constexpr int kTiles = tiles_at_once(kRows);
  for (; first + kTiles <= last; first += kTiles) tiles_by_rows<T, kRows, kTiles>(args, row, first, is_first);
  for (; first < last; ++first) tiles_by_rows<T, kRows, 1>(args, row, first, is_first);
}

// The rows are cut evenly. Those of one run of tiles follow each other, so that the first cache holds its codes.
template <class T, int kRows = kMaxRows>
void rows_at_once(const TiledBytesArgs& args, int64_t rows, int64_t row, int64_t first, int64_t last, bool is_first) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return tiles_of<T, kRows>(args, row, first, last, is_first);
    rows_at_once<T, kRows - 1>(args, rows, row, first, last, is_first);
  }
}

template <class T>
void items(const TiledBytesArgs& args, int64_t begin, int64_t end) {
  const int64_t tiles = args.features / kTile, per_item = args.features_per_item / kTile;
  const int64_t across = (tiles + per_item - 1) / per_item;
  constexpr int64_t kRun = tiles_at_once(kMaxRows);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t last = item % across * per_item + per_item < tiles ? item % across * per_item + per_item : tiles;
    const int64_t top = item / across * args.rows_per_item;
    const int64_t num_rows = top + args.rows_per_item < args.rows ? args.rows_per_item : args.rows - top;
    const int64_t run = num_rows > kMaxRows ? kRun : per_item;
    for (int64_t first = item % across * per_item; first < last; first += run) {
      const int64_t end_of_run = first + run < last ? first + run : last;
      int64_t row = top, left = num_rows;
      for (int64_t blocks = (left + kMaxRows - 1) / kMaxRows; blocks > 0; --blocks) {
        const int64_t rows = (left + blocks - 1) / blocks;
        rows_at_once<T>(args, rows, row, first, end_of_run, row == top);
        row += rows;
        left -= rows;
      }
    }
  }
}

}  // namespace

void tiled_bytes_linear(const TiledBytesArgs& args, int64_t first, int64_t last) {
  if (args.element == Element::kFloat32) return items<float>(args, first, last);
  items<BFloat16>(args, first, last);
}

}  // namespace trunnion_cpu::TRUNNION_ISA
