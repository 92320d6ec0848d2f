// Products with weights of 4 or 8 bits in tiles of 16 features, and rows that are quantised to int8 by blocks on the way.
//
// A tile's chunk of 64 bytes holds, feature after feature, 4 values of 8 bits, or 8 of 4: the lower halves first. So one
// vector meets 4 values of a row in every lane, lanes are features, and what a block's integers amount to is scaled once.
#include "halves.h"
#include "int_dots.h"
#include "kernels_of_isa.h"
#include "vector.h"

namespace trunnion_cpu::TRUNNION_ISA {
namespace {

constexpr int64_t kTile = 16, kChunk = 64;
constexpr int kParts = kTile / kLanes;  // vectors of a tile's features
constexpr int kPartBytes = kChunk / kParts;
constexpr float kLargest = 127.0f, kTiny = 1e-12f;
constexpr float kMagic = 12582912.0f;  // 1.5 * 2 ** 23: adding it rounds to an even integer
constexpr int kMaxRows = kManyRegisters ? 6 : 3;

// What a tile has per group: one number per feature.
TRUNNION_INLINE Floats per_feature(const void* of_tiles, Element element, int64_t at) {
  if (element == Element::kFloat32) return load(static_cast<const float*>(of_tiles) + at);
  const auto* halves = static_cast<const uint16_t*>(of_tiles) + at;
  return element == Element::kBFloat16 ? load(halves) : half_floats(halves);
}

// Minus what the integers of a block would amount to if all values were the zero point.
TRUNNION_INLINE Sum start_of(const TiledArgs& args, int64_t at, int32_t x_sum) {
  if (args.mins != nullptr) return Sum{};
  if (args.zero_points == nullptr) return in_all_lanes<Sum>(-(1 << (args.bits - 1)) * x_sum);
  typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
  return __builtin_convertvector(load_as<Bytes>(args.zero_points + at), Sum) * in_all_lanes<Sum>(-x_sum);
}

template <int kBits, int kRows, int kTiles>
TRUNNION_INLINE void chunk(Sum (&dots)[kTiles][kRows][kParts], const uint8_t* codes, int64_t tile_bytes,
                           const int8_t* x, int64_t x_stride) {
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

template <class T>
void finish(const TiledArgs& args, Floats sum, int64_t row, int64_t feature) {
  const int64_t left = args.features - feature;
  if (left <= 0) return;
  if (args.bias != nullptr) sum += take(static_cast<const T*>(args.bias) + feature, left);
  put(static_cast<T*>(args.out) + row * args.features + feature, sum, left);
}

template <int kBits, int kRows, int kTiles>
void tiles_by_rows(const TiledArgs& args, int64_t row, int64_t tile) {
  constexpr int64_t kStep = 32 / kBits;  // values of a feature in a chunk
  Floats sums[kTiles][kRows][kParts] = {};
  const uint8_t* codes = args.codes + tile * args.tile_bytes;
  for (int64_t block = 0; block < args.blocks; ++block) {
    const int64_t begin = block * args.block_size;
    const int64_t end = begin + args.block_size < args.x_stride ? begin + args.block_size : args.x_stride;
    const int64_t group = begin / args.group_size;
    const int32_t* x_sums = args.x_sums + row * args.blocks + block;
    const float* x_scales = args.x_scales + row * args.blocks + block;
    Sum dots[kTiles][kRows][kParts];
#pragma GCC unroll 8
    for (int n = 0; n < kTiles; ++n) {
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
        for (int part = 0; part < kParts; ++part) {
          const int64_t at = ((tile + n) * args.groups + group) * kTile + part * kLanes;
          dots[n][m][part] = start_of(args, at, x_sums[m * args.blocks]);
        }
      }
    }
    const int8_t* x = args.x + row * args.x_stride;
    for (int64_t k = begin; k < end; k += kStep) {
      chunk<kBits, kRows, kTiles>(dots, codes + k / kStep * kChunk, args.tile_bytes, x + k, args.x_stride);
    }
#pragma GCC unroll 8
    for (int n = 0; n < kTiles; ++n) {
#pragma GCC unroll 4
      for (int part = 0; part < kParts; ++part) {
        const int64_t at = ((tile + n) * args.groups + group) * kTile + part * kLanes;
        const Floats scale = per_feature(args.scales, args.scale_element, at);
#pragma GCC unroll 8
        for (int m = 0; m < kRows; ++m) {
          sums[n][m][part] += floats_of(dots[n][m][part]) * (scale * x_scales[m * args.blocks]);
        }
        if (args.mins == nullptr) continue;
        const Floats min = per_feature(args.mins, args.scale_element, at);
#pragma GCC unroll 8
        for (int m = 0; m < kRows; ++m) {
          sums[n][m][part] += min * (x_scales[m * args.blocks] * (float)x_sums[m * args.blocks]);
        }
      }
    }
  }
  for (int n = 0; n < kTiles; ++n) {
    for (int m = 0; m < kRows; ++m) {
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

template <int kBits, int kRows>
void tiles_of(const TiledArgs& args, int64_t row, int64_t first, int64_t last) {
  constexpr int kTiles = tiles_at_once(kRows);
  for (; first + kTiles <= last; first += kTiles) tiles_by_rows<kBits, kRows, kTiles>(args, row, first);
  for (; first < last; ++first) tiles_by_rows<kBits, kRows, 1>(args, row, first);
}

template <int kBits>
void rows_at_once(const TiledArgs& args, int64_t rows, int64_t row, int64_t first, int64_t last) {
  switch (rows) {
    case 1: return tiles_of<kBits, 1>(args, row, first, last);
    case 2: return tiles_of<kBits, 2>(args, row, first, last);
    case 3: return tiles_of<kBits, 3>(args, row, first, last);
    default: break;
  }
  if constexpr (kMaxRows == 6) {
    switch (rows) {
      case 4: return tiles_of<kBits, 4>(args, row, first, last);
      case 5: return tiles_of<kBits, 5>(args, row, first, last);
      default: return tiles_of<kBits, 6>(args, row, first, last);
    }
  }
}

// An item is a run of tiles for a block of rows; the rows are cut evenly.
template <int kBits>
void items(const TiledArgs& args, int64_t begin, int64_t end) {
  const int64_t tiles = (args.features + kTile - 1) / kTile;
  const int64_t per_item = args.features_per_item / kTile;
  const int64_t across = (args.features + args.features_per_item - 1) / args.features_per_item;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t first = item % across * per_item;
    const int64_t last = first + per_item < tiles ? first + per_item : tiles;
    int64_t row = item / across * args.rows_per_item;
    int64_t left = row + args.rows_per_item < args.rows ? args.rows_per_item : args.rows - row;
    for (int64_t blocks = (left + kMaxRows - 1) / kMaxRows; blocks > 0; --blocks) {
      const int64_t rows = (left + blocks - 1) / blocks;
      rows_at_once<kBits>(args, rows, row, first, last);
      row += rows;
      left -= rows;
    }
  }
}

// What is not finite makes the scale, and so the row's products, no number.
template <class T>
float scale_of(const T* x, int64_t size) {
  Floats largest = {}, not_finite = {};
  for (int64_t i = 0; i < size; i += kLanes) {
    const Floats value = take(x + i, size - i);
    largest = larger(larger(value, -value), largest);
    not_finite += value * 0.0f;
  }
  const float scale = largest_of(largest) / kLargest;
  return (scale < kTiny ? kTiny : scale) + sum_of(not_finite);
}

template <class T>
int32_t quantise_block(const T* x, int8_t* out, int64_t size, float scale) {
  typedef int8_t Bytes __attribute__((vector_size(kLanes)));
  Floats sum = {};
  for (int64_t i = 0; i < size; i += kLanes) {
    const Floats scaled = smaller(larger(take(x + i, size - i) / scale, broadcast(-kLargest)), broadcast(kLargest));
    const Floats rounded = (scaled + kMagic) - kMagic;
    sum += rounded;
    const Bytes bytes = __builtin_convertvector(__builtin_convertvector(rounded, Ints), Bytes);
    memcpy(out + i, &bytes, size - i < kLanes ? size - i : kLanes);
  }
  return (int32_t)sum_of(sum);
}

template <class T>
void quantise_rows(const BlocksArgs& args, int64_t first, int64_t last) {
  const float given = args.scale == nullptr ? 0.0f : *args.scale;
  for (int64_t row = first; row < last; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
    int8_t* out = args.out + row * args.out_stride;
    for (int64_t block = 0; block < args.blocks; ++block) {
      const int64_t begin = block * args.block_size;
      const int64_t size = begin + args.block_size < args.size ? args.block_size : args.size - begin;
      const float scale = given == 0.0f ? scale_of(x + begin, size) : given;
      args.scales[row * args.blocks + block] = scale;
      args.sums[row * args.blocks + block] = quantise_block(x + begin, out + begin, size, scale);
    }
    for (int64_t k = args.size; k < args.out_stride; ++k) out[k] = 0;
  }
}

}  // namespace

void quantise_blocks(const BlocksArgs& args, int64_t first, int64_t last) {
  if (args.element == Element::kFloat32) return quantise_rows<float>(args, first, last);
  quantise_rows<BFloat16>(args, first, last);
}

void tiled_linear(const TiledArgs& args, int64_t first, int64_t last) {
  if (args.bits == 4) return items<4>(args, first, last);
  items<8>(args, first, last);
}

}  // namespace trunnion_cpu::TRUNNION_ISA
