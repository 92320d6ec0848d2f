// Products of weights of 4 or 8 bits by groups, in the tiles of tiled.cc, with rows in the model's dtype.
//
// Integers as they are stored are exact in bfloat16 and float32. What a group's amount to is scaled once, and its zero
// point taken off by the sum of the group's row. Many rows of bfloat16 meet panels, where there are products of its
// pairs: the weight, made dense and rounded to bfloat16.
#include "kernels_of_isa.h"
#include "panels.h"
#include "vector.h"

namespace trunnion_cpu::TRUNNION_ISA {
namespace {

constexpr int64_t kTile = 16, kChunk = 64;
constexpr int64_t kFeaturesOfItem = 4 * kTile;
constexpr int64_t kMostRowsOfItem = 256;  // which the second cache holds
constexpr int kParts = kTile / kLanes;  // vectors of a tile's features

// How a chunk's values meet those of a row: kVectors times kValues values of each feature. X is what prepared rows hold.
template <int kBits>
struct Singles {
  using X = float;
  static constexpr int kVectors = 32 / kBits, kValues = 1, kMaxRows = kManyRegisters ? 6 : 3;
  struct Chunk {
    Words words[kParts];
  };
  static TRUNNION_INLINE Chunk take(const uint8_t* codes) {
    Chunk chunk;
    for (int part = 0; part < kParts; ++part) chunk.words[part] = load_as<Words>(codes + part * kLanes * 4);
    return chunk;
  }
  static TRUNNION_INLINE Floats value(const Chunk& chunk, int part, int number) {
    // Of 4 bits, lower halves of bytes come first.
    const int place = number % 4 * 8 + number / 4 * 4;
    return __builtin_convertvector((Ints)(chunk.words[part] >> place & ((1u << kBits) - 1)), Floats);
  }
  static TRUNNION_INLINE Floats add(Floats sum, Floats value, const X* x) { return sum + value * *x; }
};

#if defined(__AVX512BF16__)
template <int kBits>
struct PairsOf {
  using X = BFloat16;
  static constexpr int kVectors = 16 / kBits, kValues = 2, kMaxRows = 12;
  struct Chunk {
    __m512i words[kBits == 4 ? 1 : 2];
  };
  static TRUNNION_INLINE __m512 floats_at(const uint8_t* codes) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)codes)));
  }
  static TRUNNION_INLINE Chunk take(const uint8_t* codes) {
    if constexpr (kBits == 4) {
      return {{_mm512_loadu_si512(codes)}};
    } else {
      // Four values of each of 8 features, twice; then the first two of all, and the others.
      const auto low = (__m512i)_mm512_cvtne2ps_pbh(floats_at(codes + 16), floats_at(codes));
      const auto high = (__m512i)_mm512_cvtne2ps_pbh(floats_at(codes + 48), floats_at(codes + 32));
      const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
      const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
      return {{_mm512_permutex2var_epi32(low, even, high), _mm512_permutex2var_epi32(low, odd, high)}};
    }
  }
  static TRUNNION_INLINE __m512bh value(const Chunk& chunk, int, int number) {
    if constexpr (kBits == 8) return (__m512bh)chunk.words[number];
    // Twice 0 ... 15 in bfloat16: an index counts by its lower five bits.
    alignas(64) static constexpr BFloat16 kNumbers[] = {
        0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120,
        0x4130, 0x4140, 0x4150, 0x4160, 0x4170, 0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0,
        0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170};
    typedef uint16_t Indices __attribute__((vector_size(64)));
    const auto index = (__m512i)((Indices)chunk.words[0] >> (uint16_t)(4 * number));
    return (__m512bh)_mm512_permutexvar_epi16(index, _mm512_load_si512(kNumbers));
  }
  static TRUNNION_INLINE Floats add(Floats sum, __m512bh value, const X* x) {
    int32_t pair;
    memcpy(&pair, x, sizeof pair);
    return (Floats)_mm512_dpbf16_ps((__m512)sum, value, (__m512bh)_mm512_set1_epi32(pair));
  }
};

// Of 8 values, those that a vector's pairs meet, as halves of 16 bits of a chunk of 4 bits fall apart.
constexpr int kOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};
#endif

template <class Type, int kRows>
constexpr int tiles_at_once() {
  return kManyRegisters ? (kRows <= Type::kMaxRows / 3 ? 4 : 2) : 1;
}

// Values of one group of kTiles tiles by kRows rows. The first rows to meet them ask for the next tiles: with products
// to compute in between, the processor does not look as far by itself.
template <class Type, int kRows, int kTiles>
TRUNNION_INLINE void multiply(Floats (&dots)[kTiles][kRows][kParts], const uint8_t* codes, int64_t tile_bytes,
                              const typename Type::X* x, int64_t width, int64_t size, bool is_first) {
  for (int64_t k = 0; k < size; k += Type::kVectors * Type::kValues, codes += kChunk) {
    typename Type::Chunk chunks[kTiles];
#pragma GCC unroll 4
    for (int n = 0; n < kTiles; ++n) {
      chunks[n] = Type::take(codes + n * tile_bytes);
      if (kRows > 2 && is_first) __builtin_prefetch(codes + (kTiles + n) * tile_bytes);
    }
#pragma GCC unroll 8
    for (int number = 0; number < Type::kVectors; ++number) {
#pragma GCC unroll 4
      for (int n = 0; n < kTiles; ++n) {
#pragma GCC unroll 4
        for (int part = 0; part < kParts; ++part) {
          const auto value = Type::value(chunks[n], part, number);
#pragma GCC unroll 12
          for (int m = 0; m < kRows; ++m) {
            dots[n][m][part] = Type::add(dots[n][m][part], value, x + m * width + k + number * Type::kValues);
          }
        }
      }
    }
  }
}

TRUNNION_INLINE Floats zeros_of(const TiledGroupsArgs& args, int64_t at) {
  if (args.zero_points == nullptr) return broadcast((float)(1 << (args.bits - 1)));
  typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
  return __builtin_convertvector(__builtin_convertvector(load_as<Bytes>(args.zero_points + at), Ints), Floats);
}

template <class Type, class T, int kRows, int kTiles>
void tiles_by_rows(const TiledGroupsArgs& args, int64_t row, int64_t tile, bool is_first) {
  constexpr int64_t kStep = Type::kVectors * Type::kValues;
  const int64_t tile_bytes = 2 * args.bits * args.width;
  const uint8_t* codes = args.codes + tile * tile_bytes;
  const auto* x = static_cast<const typename Type::X*>(args.x) + row * args.width;
  Floats sums[kTiles][kRows][kParts] = {};
  for (int64_t group = 0; group < args.groups; ++group) {
    const int64_t begin = group * args.group_size;
    const int64_t size = begin + args.group_size < args.width ? args.group_size : args.width - begin;
    Floats dots[kTiles][kRows][kParts] = {};
    multiply<Type, kRows, kTiles>(dots, codes + begin / kStep * kChunk, tile_bytes, x + begin, args.width, size,
                                  is_first);
#pragma GCC unroll 4
    for (int n = 0; n < kTiles; ++n) {
#pragma GCC unroll 4
      for (int part = 0; part < kParts; ++part) {
        const int64_t at = ((tile + n) * args.groups + group) * kTile + part * kLanes;
        const Floats scale = load(static_cast<const T*>(args.scales) + at), zero = zeros_of(args, at);
#pragma GCC unroll 12
        for (int m = 0; m < kRows; ++m) {
          const float x_sum = args.x_sums[(row + m) * args.groups + group];
          sums[n][m][part] += scale * (dots[n][m][part] - zero * x_sum);
        }
      }
    }
  }
  for (int n = 0; n < kTiles; ++n) {
    for (int part = 0; part < kParts; ++part) {
      const int64_t feature = (tile + n) * kTile + part * kLanes, left = args.features - feature;
      if (left <= 0) continue;
      const Floats bias = args.bias == nullptr ? Floats{} : take(static_cast<const T*>(args.bias) + feature, left);
      T* out = static_cast<T*>(args.out) + row * args.features + feature;
      for (int m = 0; m < kRows; ++m) put(out + m * args.features, sums[n][m][part] + bias, left);
    }
  }
}

template <class Type, class T, int kRows>
void tiles_of(const TiledGroupsArgs& args, int64_t row, int64_t first, int64_t last, bool is_first) {
  constexpr int kTiles = tiles_at_once<Type, kRows>();
  for (; first + kTiles <= last; first += kTiles) tiles_by_rows<Type, T, kRows, kTiles>(args, row, first, is_first);
  for (; first < last; ++first) tiles_by_rows<Type, T, kRows, 1>(args, row, first, is_first);
}

template <class Type, class T, int kRows = Type::kMaxRows>
void rows_at_once(const TiledGroupsArgs& args, int64_t rows, int64_t row, int64_t first, int64_t last,
                  bool is_first) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return tiles_of<Type, T, kRows>(args, row, first, last, is_first);
    rows_at_once<Type, T, kRows - 1>(args, rows, row, first, last, is_first);
  }
}

// The rows are cut evenly. Those of one run of tiles follow each other, so that the first cache holds its codes.
template <class Type, class T>
void items(const TiledGroupsArgs& args, int64_t begin, int64_t end) {
  const int64_t tiles = (args.features + kTile - 1) / kTile, per_item = args.features_per_item / kTile;
  const int64_t across = (tiles + per_item - 1) / per_item;
  constexpr int64_t kRun = tiles_at_once<Type, Type::kMaxRows>();
  for (int64_t item = begin; item < end; ++item) {
    const int64_t last = item % across * per_item + per_item < tiles ? item % across * per_item + per_item : tiles;
    const int64_t top = item / across * args.rows_per_item;
    const int64_t num_rows = top + args.rows_per_item < args.rows ? args.rows_per_item : args.rows - top;
    const int64_t run = num_rows > Type::kMaxRows ? kRun : per_item;
    for (int64_t first = item % across * per_item; first < last; first += run) {
      const int64_t end_of_run = first + run < last ? first + run : last;
      int64_t row = top, left = num_rows;
      for (int64_t blocks = (left + Type::kMaxRows - 1) / Type::kMaxRows; blocks > 0; --blocks) {
        const int64_t rows = (left + blocks - 1) / blocks;
        rows_at_once<Type, T>(args, rows, row, first, end_of_run, row == top);
        row += rows;
        left -= rows;
      }
    }
  }
}

#if defined(__AVX512BF16__)
constexpr int64_t kRowsForPanels = 40;

// Tiles of dense values.
template <int kBits>
struct DenseTiles {
  const TiledGroupsArgs& args;

  // [depth / 2, 16 features, 2] at `panel`, of values from `begin` on; zeros past the last tile.
  void tile(int64_t first, int64_t begin, int64_t depth, BFloat16* panel) const {
    using Type = Singles<kBits>;
    constexpr int64_t kStep = Type::kVectors;
    uint16_t places[32];
    for (int k = 0; k < 32; ++k) places[k] = k / 2 + k % 2 * 16;
    const __m512i interleaved = _mm512_loadu_si512(places);
    const int64_t number = first / kTile;
    const bool is_there = first < args.features;
    const uint8_t* codes = args.codes + number * 2 * kBits * args.width + begin / kStep * kChunk;
    Floats scale = {}, zero = {};
    for (int64_t k = 0; k < depth; k += kStep, codes += kChunk) {
      if (!is_there) {
        for (int p = 0; p < kStep / 2; ++p) _mm512_store_si512(panel + k * kLanes + p * 32, _mm512_setzero_si512());
        continue;
      }
      if (k == 0 || (begin + k) % args.group_size == 0) {
        const int64_t at = (number * args.groups + (begin + k) / args.group_size) * kTile;
        scale = load(static_cast<const BFloat16*>(args.scales) + at);
        zero = zeros_of(args, at);
      }
      const auto chunk = Type::take(codes);
#pragma GCC unroll 4
      for (int p = 0; p < kStep / 2; ++p) {
        const auto even = (__m512)((Type::value(chunk, 0, 2 * p) - zero) * scale);
        const auto odd = (__m512)((Type::value(chunk, 0, 2 * p + 1) - zero) * scale);
        const auto both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
        _mm512_store_si512(panel + k * kLanes + p * 32, _mm512_permutexvar_epi16(interleaved, both));
      }
    }
  }
};

void panels_of_tiles(const TiledGroupsArgs& args, int64_t first, int64_t last) {
  const LinearArgs linear{
      .x = args.x,
      .x_stride = args.x_stride,
      .weight = nullptr,
      .weight_stride = 0,
      .bias = args.bias,
      .out = args.out,
      .rows = args.rows,
      .features = args.features,
      .size = args.size,
      .features_per_item = args.features_per_item,
      .rows_per_item = args.rows_per_item,
      .element = args.element,
      .x_scales = nullptr,
      .x_sums = nullptr,
      .weight_scales = nullptr,
  };
  if (args.bits == 4) return panel_items(linear, DenseTiles<4>{args}, first, last);
  panel_items(linear, DenseTiles<8>{args}, first, last);
}
#endif

template <class T>
float sum_of_group(const T* x, int64_t size) {
  Floats sum = {};
  for (int64_t k = 0; k < size; k += kLanes) sum += take(x + k, size - k);
  return sum_of(sum);
}

template <class T>
void to_floats(const T* x, float* out, int64_t size, int64_t width) {
  int64_t k = 0;
  for (; k + kLanes <= size; k += kLanes) store(out + k, load(x + k));
  for (; k < width; ++k) out[k] = k < size ? to_float(x[k]) : 0.0f;
}

#if defined(__AVX512BF16__)
void to_pairs(const BFloat16* x, BFloat16* out, int64_t size, int64_t width, int64_t bits) {
  uint16_t places[32];
  for (int k = 0; k < 32; ++k) places[k] = k / 8 * 8 + (bits == 4 ? kOrder[k % 8] : k % 8);
  const __m512i order = _mm512_loadu_si512(places);
  for (int64_t k = 0; k < width; k += 32) {
    const __mmask32 given = size - k >= 32 ? ~0u : (1u << (size > k ? size - k : 0)) - 1;
    const __mmask32 taken = width - k >= 32 ? ~0u : (1u << (width - k)) - 1;
    _mm512_mask_storeu_epi16(out + k, taken, _mm512_permutexvar_epi16(order, _mm512_maskz_loadu_epi16(given, x + k)));
  }
}
#endif

template <class T>
void prepare_rows(const PrepareGroupsArgs& args, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
    for (int64_t group = 0; group < args.groups; ++group) {
      const int64_t begin = group * args.group_size;
      const int64_t size = begin + args.group_size < args.size ? args.group_size : args.size - begin;
      args.sums[row * args.groups + group] = sum_of_group(x + begin, size);
    }
#if defined(__AVX512BF16__)
    if constexpr (sizeof(T) == sizeof(BFloat16)) {
      to_pairs(x, static_cast<BFloat16*>(args.out) + row * args.width, args.size, args.width, args.bits);
      continue;
    }
#endif
    to_floats(x, static_cast<float*>(args.out) + row * args.width, args.size, args.width);
  }
}

}  // namespace

ItemShape tiled_groups_item([[maybe_unused]] Element element, int64_t rows, bool& takes_prepared) {
  takes_prepared = false;
#if defined(__AVX512BF16__)
  takes_prepared = element == Element::kBFloat16 && rows >= kRowsForPanels;
  if (takes_prepared) return panel_item(rows);
#endif
  const int64_t blocks = rows > kMostRowsOfItem ? (rows + kMostRowsOfItem - 1) / kMostRowsOfItem : 1;
  return {kFeaturesOfItem, rows > 0 ? (rows + blocks - 1) / blocks : 1};
}

int64_t prepared_group_bytes([[maybe_unused]] Element element) {
#if defined(__AVX512BF16__)
  if (element == Element::kBFloat16) return sizeof(BFloat16);
#endif
  return sizeof(float);
}

void prepare_groups(const PrepareGroupsArgs& args, int64_t first, int64_t last) {
  if (args.element == Element::kFloat32) return prepare_rows<float>(args, first, last);
  prepare_rows<BFloat16>(args, first, last);
}

void tiled_groups_linear(const TiledGroupsArgs& args, int64_t first, int64_t last) {
#if defined(__AVX512BF16__)
  if (args.is_prepared) return panels_of_tiles(args, first, last);
#endif
  if (args.element == Element::kFloat32) {
    return args.bits == 4 ? items<Singles<4>, float>(args, first, last) : items<Singles<8>, float>(args, first, last);
  }
#if defined(__AVX512BF16__)
  return args.bits == 4 ? items<PairsOf<4>, BFloat16>(args, first, last)
                        : items<PairsOf<8>, BFloat16>(args, first, last);
#else
  return args.bits == 4 ? items<Singles<4>, BFloat16>(args, first, last)
                        : items<Singles<8>, BFloat16>(args, first, last);
#endif
}

}  // namespace trunnion_cpu::TRUNNION_ISA
