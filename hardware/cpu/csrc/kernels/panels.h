// Products of many rows of bfloat16: a panel of the weight is packed once, features side by side, and meets all rows.
//
// Every lane of a vector holds a pair of values of one feature, and meets the same pair of a row. Sums stay in
// registers, and need not be added up across lanes.
#pragma once

#include "kernels.h"
#include "vector.h"

#if defined(__AVX512BF16__)
namespace trunnion_cpu::TRUNNION_ISA {
namespace {

constexpr int kPanelTiles = 2;
constexpr int kPanelSums = 24;  // vectors of them: registers are left for weights and a row
constexpr int64_t kPanelFeatures = kPanelTiles * kLanes;
constexpr int64_t kPanelDepth = 1024;  // values of a feature: with two tiles 64 KiB, on the stack
constexpr int64_t kPairs = kLanes;     // of values in a vector
constexpr int64_t kPairsAhead = 32;  // of a feature
constexpr int64_t kPanelRowsPerItem = 256;

typedef __m512i Pairs;

// 16 vectors of 16 pairs, rows for columns.
TRUNNION_INLINE void transpose(Pairs (&rows)[kLanes]) {
  Pairs mixed[kLanes];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    mixed[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
    mixed[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(mixed[i], mixed[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(mixed[i], mixed[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(mixed[i + 1], mixed[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(mixed[i + 1], mixed[i + 3]);
  }
  // Quarter q of rows[4 * i + j] holds rows 4 * i ... 4 * i + 3 of column 4 * q + j.
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const Pairs even_first = _mm512_shuffle_i32x4(rows[j], rows[4 + j], 0x88);
    const Pairs even_second = _mm512_shuffle_i32x4(rows[8 + j], rows[12 + j], 0x88);
    const Pairs odd_first = _mm512_shuffle_i32x4(rows[j], rows[4 + j], 0xdd);
    const Pairs odd_second = _mm512_shuffle_i32x4(rows[8 + j], rows[12 + j], 0xdd);
    mixed[j] = _mm512_shuffle_i32x4(even_first, even_second, 0x88);
    mixed[8 + j] = _mm512_shuffle_i32x4(even_first, even_second, 0xdd);
    mixed[4 + j] = _mm512_shuffle_i32x4(odd_first, odd_second, 0x88);
    mixed[12 + j] = _mm512_shuffle_i32x4(odd_first, odd_second, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) rows[i] = mixed[i];
}

// [features, depth] -> [depth / 2, 16 features, 2] at `panel`. `take_row(n, k, left)` is feature n's values from k on, of
// which there are `left`; what it gives for others meets zeros.
template <class TakeRow>
void pack_tile(const TakeRow& take_row, int64_t features, int64_t depth, BFloat16* panel) {
  for (int64_t k = 0; k < depth; k += 2 * kPairs) {
    Pairs rows[kLanes];
#pragma GCC unroll 16
    for (int n = 0; n < kLanes; ++n) rows[n] = n < features ? take_row(n, k, depth - k) : _mm512_setzero_si512();
    transpose(rows);
#pragma GCC unroll 16
    for (int p = 0; p < kLanes; ++p) _mm512_store_si512(panel + k * kLanes + p * 2 * kLanes, rows[p]);
  }
}

// Values of a row-major weight of bfloat16.
struct DenseRows {
  const LinearArgs& args;
  Pairs operator()(int64_t feature, int64_t k, int64_t left) const {
    const __mmask32 mask = left >= 2 * kPairs ? ~0u : (1u << left) - 1;
    return _mm512_maskz_loadu_epi16(mask, static_cast<const BFloat16*>(args.weight) + feature * args.weight_stride + k);
  }
};

struct Panel {
  const BFloat16* values;
  const BFloat16* next;     // the panel after it, to be asked for meanwhile; null: it is not in memory yet
  int64_t tile_stride;      // from one tile of 16 features to the next
  int64_t first, features;  // of the weight
  int64_t begin, pairs;     // of x
  float* partial;           // [rows of the item, kPanelFeatures]: sums of the panels before and after
  bool is_first, is_last;
};

// What is asked for while a panel meets rows. The processor by itself does not look beyond a tile.
enum class Ahead {
  kNothing,
  kTile,  // one tile of the next panel: others are asked for by other rows
  kAll,   // what comes next of each tile
};

template <int kRows, int kTiles, Ahead kAhead>
void panel_rows(const LinearArgs& args, const Panel& panel, int64_t row, float* partial,
                [[maybe_unused]] const BFloat16* ahead) {
  const auto* x = static_cast<const BFloat16*>(args.x) + row * args.x_stride + panel.begin;
  Floats sums[kTiles][kRows] = {};
  if (!panel.is_first) {
    for (int m = 0; m < kRows; ++m) {
      for (int n = 0; n < kTiles; ++n) sums[n][m] = load(partial + m * kTiles * kLanes + n * kLanes);
    }
  }
  for (int64_t p = 0; p < panel.pairs; ++p) {
    __m512bh weights[kTiles];
    if constexpr (kAhead == Ahead::kTile) _mm_prefetch(ahead + p * 2 * kLanes, _MM_HINT_T1);
    if constexpr (kAhead == Ahead::kAll) {
      const int64_t left = panel.pairs - p - kPairsAhead;
      const BFloat16* from = left > 0 ? panel.values + (p + kPairsAhead) * 2 * kLanes : panel.next - left * 2 * kLanes;
#pragma GCC unroll 8
      for (int n = 0; n < kTiles; ++n) _mm_prefetch(from + n * panel.tile_stride, _MM_HINT_T0);
    }
#pragma GCC unroll 8
    for (int n = 0; n < kTiles; ++n) {
      weights[n] = (__m512bh)_mm512_loadu_si512(panel.values + n * panel.tile_stride + p * 2 * kLanes);
    }
#pragma GCC unroll 12
    for (int m = 0; m < kRows; ++m) {
      int32_t pair;
      memcpy(&pair, x + m * args.x_stride + 2 * p, sizeof pair);
      const auto both = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 8
      for (int n = 0; n < kTiles; ++n) {
        sums[n][m] = (Floats)_mm512_dpbf16_ps((__m512)sums[n][m], weights[n], both);
      }
    }
  }
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kTiles; ++n) {
      const int64_t left = panel.features - n * kLanes;
      if (!panel.is_last) {
        store(partial + m * kTiles * kLanes + n * kLanes, sums[n][m]);
      } else if (left > 0) {
        const int64_t feature = panel.first + n * kLanes;
        if (args.bias != nullptr) sums[n][m] += take(static_cast<const BFloat16*>(args.bias) + feature, left);
        const __m256i rounded = (__m256i)_mm512_cvtneps_pbh((__m512)sums[n][m]);
        const __mmask16 mask = left >= kLanes ? 0xffff : (1u << left) - 1;
        _mm256_mask_storeu_epi16(static_cast<BFloat16*>(args.out) + (row + m) * args.features + feature, mask, rounded);
      }
    }
  }
}

template <int kTiles, Ahead kAhead, int kRows>
void panel_rows_at_once(const LinearArgs& args, const Panel& panel, int64_t row, int64_t rows, float* partial,
                        const BFloat16* ahead) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return panel_rows_at_once<kTiles, kAhead, kRows - 1>(args, panel, row, rows, partial, ahead);
  }
  panel_rows<kRows, kTiles, kAhead>(args, panel, row, partial, ahead);
}

// The rows are cut evenly.
template <int kTiles>
void panel_block(const LinearArgs& args, const Panel& panel, int64_t row, int64_t rows) {
  constexpr int kMost = kPanelSums / kTiles;
  float* partial = panel.partial;
  const int64_t blocks = (rows + kMost - 1) / kMost;
  if (blocks == 1 && panel.next != nullptr) {
    return panel_rows_at_once<kTiles, Ahead::kAll, kMost>(args, panel, row, rows, partial, nullptr);
  }
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t now = (rows + blocks - block - 1) / (blocks - block);
    if (block < kTiles && panel.next != nullptr) {
      const BFloat16* ahead = panel.next + block * panel.tile_stride;
      panel_rows_at_once<kTiles, Ahead::kTile, kMost>(args, panel, row, now, partial, ahead);
    } else {
      panel_rows_at_once<kTiles, Ahead::kNothing, kMost>(args, panel, row, now, partial, nullptr);
    }
    row += now;
    rows -= now;
    partial += now * kTiles * kLanes;
  }
}

// Features [first, last) for rows [row, row + rows). `take_row(feature, k, left)` gives values of the weight.
template <class TakeRow>
void panels(const LinearArgs& args, const TakeRow& take_row, int64_t row, int64_t rows, int64_t first, int64_t last) {
  alignas(64) BFloat16 values[kPanelTiles * kPanelDepth * kLanes];
  alignas(64) float partial[kPanelRowsPerItem * kPanelFeatures];
  for (; first < last; first += kPanelFeatures) {
    const int64_t features = last - first < kPanelFeatures ? last - first : kPanelFeatures;
    for (int64_t begin = 0; begin < args.size; begin += kPanelDepth) {
      const int64_t depth = args.size - begin < kPanelDepth ? args.size - begin : kPanelDepth;
      for (int tile = 0; tile < kPanelTiles; ++tile) {
        const int64_t top = first + tile * kLanes;
        BFloat16* to = values + tile * kPanelDepth * kLanes;
        // A weight that lies in tiles is no more than made dense.
        if constexpr (requires { take_row.tile(top, begin, depth, to); }) {
          take_row.tile(top, begin, depth, to);
        } else {
          const auto take = [&](int64_t n, int64_t k, int64_t left) { return take_row(top + n, begin + k, left); };
          pack_tile(take, features - tile * kLanes, depth, to);
        }
      }
      const Panel panel{.values = values,
                        .next = nullptr,
                        .tile_stride = kPanelDepth * kLanes,
                        .first = first,
                        .features = features,
                        .begin = begin,
                        .pairs = (depth + 1) / 2,
                        .partial = partial,
                        .is_first = begin == 0,
                        .is_last = begin + depth == args.size};
      panel_block<kPanelTiles>(args, panel, row, rows);
    }
  }
}

// What items of such products like to be, for that many rows in all: cut evenly, so that a panel pays for each.
ItemShape panel_item(int64_t rows) {
  const int64_t blocks = (rows + kPanelRowsPerItem - 1) / kPanelRowsPerItem;
  return {kPanelFeatures, (rows + blocks - 1) / blocks};
}

template <class TakeRow>
void panel_items(const LinearArgs& args, const TakeRow& take_row, int64_t begin, int64_t end) {
  const int64_t across = (args.features + args.features_per_item - 1) / args.features_per_item;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t first = item % across * args.features_per_item;
    const int64_t last = first + args.features_per_item < args.features ? first + args.features_per_item : args.features;
    const int64_t row = item / across * args.rows_per_item;
    const int64_t rows = row + args.rows_per_item < args.rows ? args.rows_per_item : args.rows - row;
    panels(args, take_row, row, rows, first, last);
  }
}

}  // namespace
}  // namespace trunnion_cpu::TRUNNION_ISA
#endif
