// Products with a weight of bfloat16 that was packed once: tiles of 16 features, whose pairs of values lie side by side.
//
// A tile is [size / 2, 16 features, 2]. Where there are products of pairs, a vector of it meets a pair of a row as
// `panels.h` says; elsewhere its halves are widened.
#include "kernels_of_isa.h"
#include "panels.h"

namespace trunnion_cpu::TRUNNION_ISA {
namespace {

#if defined(__AVX512BF16__)
constexpr int64_t kFewRows = 6;  // that meet more features at once
constexpr int kFewRowsTiles = 4;
constexpr int64_t kPackedDepth = 1024;  // values of a feature that meet all rows before the next ones

constexpr int kRowSums = 4;           // of a lone row: more than one product is under way
constexpr int64_t kValuesAhead = 2048;  // 4 KiB: tiles follow each other in memory

// A lone row: the weight is read from front to back.
void one_row(const LinearArgs& args, int64_t row, int64_t first, int64_t last) {
  const auto* x = static_cast<const BFloat16*>(args.x) + row * args.x_stride;
  const auto* values = static_cast<const BFloat16*>(args.weight) + first * args.size;
  const int64_t pairs = args.size / 2, even = pairs / kRowSums * kRowSums;
  for (; first < last; first += kPackedTile, values += kPackedTile * args.size) {
    Floats sums[kRowSums] = {};
    const auto add = [&](int64_t p, Floats& sum) {
      int32_t pair;
      memcpy(&pair, x + 2 * p, sizeof pair);
      const auto weights = (__m512bh)_mm512_loadu_si512(values + p * 2 * kLanes);
      sum = (Floats)_mm512_dpbf16_ps((__m512)sum, weights, (__m512bh)_mm512_set1_epi32(pair));
    };
    for (int64_t p = 0; p < even; p += kRowSums) {
#pragma GCC unroll 4
      for (int i = 0; i < kRowSums; ++i) {
        _mm_prefetch(values + (p + i) * 2 * kLanes + kValuesAhead, _MM_HINT_T0);
        add(p + i, sums[i]);
      }
    }
    for (int64_t p = even; p < pairs; ++p) add(p, sums[0]);
    Floats sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    if (args.bias != nullptr) sum += load(static_cast<const BFloat16*>(args.bias) + first);
    store(static_cast<BFloat16*>(args.out) + row * args.features + first, sum);
  }
}

template <int kTiles>
void tiles_of(const LinearArgs& args, int64_t first, int64_t row, int64_t rows, float* partial) {
  const int64_t tile_stride = args.size * kPackedTile;
  // Rows that fit into registers need not come back; others do, to pieces of one size.
  const int64_t pieces = rows * kTiles <= kPanelSums ? 1 : (args.size + kPackedDepth - 1) / kPackedDepth;
  const int64_t depth = (args.size / 2 + pieces - 1) / pieces * 2;
  for (int64_t begin = 0; begin < args.size; begin += depth) {
    const int64_t now = args.size - begin < depth ? args.size - begin : depth;
    const BFloat16* values = static_cast<const BFloat16*>(args.weight) + first * args.size + begin * kPackedTile;
    const bool is_last = begin + now == args.size;
    const Panel panel{.values = values,
                      .next = values + now * kPackedTile + (is_last ? (kTiles - 1) * tile_stride : 0),
                      .tile_stride = tile_stride,
                      .first = first,
                      .features = kTiles * kPackedTile,
                      .begin = begin,
                      .pairs = now / 2,
                      .partial = partial,
                      .is_first = begin == 0,
                      .is_last = is_last};
    panel_block<kTiles>(args, panel, row, rows);
  }
}

template <int kTiles>
void range(const LinearArgs& args, int64_t row, int64_t rows, int64_t first, int64_t last) {
  alignas(64) float partial[kPanelRowsPerItem * kTiles * kLanes];
  for (; first + kTiles * kPackedTile <= last; first += kTiles * kPackedTile) {
    tiles_of<kTiles>(args, first, row, rows, partial);
  }
  for (; first < last; first += kPackedTile) tiles_of<1>(args, first, row, rows, partial);
}

void item(const LinearArgs& args, int64_t row, int64_t rows, int64_t first, int64_t last) {
  if (rows == 1) return one_row(args, row, first, last);
  rows <= kFewRows ? range<kFewRowsTiles>(args, row, rows, first, last) : range<2>(args, row, rows, first, last);
}
#else
constexpr int64_t kRowsAtOnce = 4;

template <int kRows>
void part_of_tile(const LinearArgs& args, int64_t row, int64_t feature) {
  const auto* x = static_cast<const BFloat16*>(args.x) + row * args.x_stride;
  const auto* weight = static_cast<const BFloat16*>(args.weight) + feature / kPackedTile * kPackedTile * args.size +
                       feature % kPackedTile * 2;
  Floats sums[kRows] = {};
  for (int64_t k = 0; k < args.size; k += 2) {
    const Words words = load_as<Words>(weight + k * kPackedTile);
    const Floats even = (Floats)(words << 16), odd = (Floats)(words & 0xffff0000u);
    for (int m = 0; m < kRows; ++m) {
      const BFloat16* pair = x + m * args.x_stride + k;
      sums[m] = (sums[m] + even * to_float(pair[0])) + odd * to_float(pair[1]);
    }
  }
  for (int m = 0; m < kRows; ++m) {
    if (args.bias != nullptr) sums[m] += load(static_cast<const BFloat16*>(args.bias) + feature);
    store(static_cast<BFloat16*>(args.out) + (row + m) * args.features + feature, sums[m]);
  }
}

void item(const LinearArgs& args, int64_t row, int64_t rows, int64_t first, int64_t last) {
  for (; first < last; first += kLanes) {
    int64_t done = 0;
    for (; done + kRowsAtOnce <= rows; done += kRowsAtOnce) part_of_tile<kRowsAtOnce>(args, row + done, first);
    for (; done < rows; ++done) part_of_tile<1>(args, row + done, first);
  }
}
#endif

}  // namespace

ItemShape packed_item(int64_t rows) {
  if (rows == 0) return {kPackedFeatures, kPackedRows};
  const int64_t blocks = (rows + kPackedRows - 1) / kPackedRows;
  return {kPackedFeatures, (rows + blocks - 1) / blocks};
}

void packed_linear(const LinearArgs& args, int64_t begin, int64_t end) {
  const int64_t across = (args.features + args.features_per_item - 1) / args.features_per_item;
  for (int64_t number = begin; number < end; ++number) {
    const int64_t first = number % across * args.features_per_item;
    const int64_t last = first + args.features_per_item < args.features ? first + args.features_per_item : args.features;
    const int64_t row = number / across * args.rows_per_item;
    const int64_t rows = row + args.rows_per_item < args.rows ? args.rows_per_item : args.rows - row;
    item(args, row, rows, first, last);
  }
}

}  // namespace trunnion_cpu::TRUNNION_ISA
