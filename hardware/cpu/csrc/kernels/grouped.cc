// Products with weights of 4 or 8 bits, a scale and a zero point per row and group: made dense in registers.
//
// Rows of x are widened to float32; for 4 bits even features stand before odd ones, as halves of bytes fall apart. Many
// rows of bfloat16 meet panels of the weight, made dense and rounded to bfloat16, where there are products of its pairs.
#include "kernels_of_isa.h"
#include "panels.h"
#include "vector.h"

namespace trunnion_cpu::TRUNNION_ISA {
namespace {

constexpr int kMaxRows = 4;
constexpr int kWeights = kManyRegisters ? 4 : 2;
constexpr int64_t kPair = 2 * kLanes;  // features of one step
typedef uint8_t Bytes __attribute__((vector_size(kLanes)));

// Values of one weight row at one step: the first kLanes features and the others, or even and odd ones.
struct Values {
  Floats first, second;
};

TRUNNION_INLINE Floats floats_of(Words words) { return __builtin_convertvector((Ints)words, Floats); }
TRUNNION_INLINE Floats floats_of(Bytes bytes) { return floats_of(__builtin_convertvector(bytes, Words)); }

template <int kBits>
TRUNNION_INLINE Values values_at(const uint8_t* weight, int64_t left) {
  if constexpr (kBits == 4) {
    const Bytes bytes = left >= kPair ? load_as<Bytes>(weight) : load_first<Bytes>(weight, (left + 1) / 2);
    const Words words = __builtin_convertvector(bytes, Words);
    return {floats_of(words & 15), floats_of(words >> 4)};
  } else {
    if (left >= kPair) return {floats_of(load_as<Bytes>(weight)), floats_of(load_as<Bytes>(weight + kLanes))};
    const int64_t first = left < kLanes ? left : kLanes;
    return {floats_of(load_first<Bytes>(weight, first)), floats_of(load_first<Bytes>(weight + kLanes, left - first))};
  }
}

// What turns values of one group into weights.
struct Factor {
  float scale, offset;
};

template <class T>
TRUNNION_INLINE Factor factor_at(const GroupedArgs& args, int64_t feature, int64_t group) {
  const int64_t at = feature * args.groups + group;
  const float scale = to_float(static_cast<const T*>(args.scales)[at]);
  const float zero = args.zero_points == nullptr ? (float)(1 << (args.bits - 1)) : (float)args.zero_points[at];
  return {scale, -zero * scale};
}

template <class T, int kBits, int kRows, int kFeatures>
TRUNNION_INLINE void tile(const GroupedArgs& args, int64_t row, int64_t feature) {
  const float* x = static_cast<const float*>(args.x) + row * args.x_stride;
  const uint8_t* weight = args.weight + feature * args.weight_stride;
  Floats sums[kFeatures][kRows] = {};
  for (int64_t group = 0; group < args.groups; ++group) {
    const int64_t begin = group * args.group_size;
    const int64_t end = begin + args.group_size < args.size ? begin + args.group_size : args.size;
    Factor factors[kFeatures];
#pragma GCC unroll 4
    for (int n = 0; n < kFeatures; ++n) factors[n] = factor_at<T>(args, feature + n, group);
    for (int64_t k = begin; k < end; k += kPair) {
      Values weights[kFeatures];
#pragma GCC unroll 4
      for (int n = 0; n < kFeatures; ++n) {
        const Values values = values_at<kBits>(weight + n * args.weight_stride + k * kBits / 8, end - k);
        // Past the end x is zero.
        weights[n] = {values.first * factors[n].scale + factors[n].offset,
                      values.second * factors[n].scale + factors[n].offset};
      }
#pragma GCC unroll 4
      for (int m = 0; m < kRows; ++m) {
        const Floats first = load(x + m * args.x_stride + k), second = load(x + m * args.x_stride + k + kLanes);
#pragma GCC unroll 4
        for (int n = 0; n < kFeatures; ++n) {
          sums[n][m] = (sums[n][m] + weights[n].first * first) + weights[n].second * second;
        }
      }
    }
  }
  T* out = static_cast<T*>(args.out) + row * args.features + feature;
#pragma GCC unroll 4
  for (int n = 0; n < kFeatures; ++n) {
    const float offset = args.bias == nullptr ? 0.0f : to_float(static_cast<const T*>(args.bias)[feature + n]);
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) store_one(out + m * args.features + n, sum_of(sums[n][m]) + offset);
  }
}

template <class T, int kBits, int kRows>
void rows_of(const GroupedArgs& args, int64_t row, int64_t first, int64_t last) {
  for (; first + kWeights <= last; first += kWeights) tile<T, kBits, kRows, kWeights>(args, row, first);
  for (; first < last; ++first) tile<T, kBits, kRows, 1>(args, row, first);
}

template <class T, int kBits>
void items(const GroupedArgs& args, int64_t begin, int64_t end) {
  const int64_t across = (args.features + args.features_per_item - 1) / args.features_per_item;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t first = item % across * args.features_per_item;
    const int64_t last = first + args.features_per_item < args.features ? first + args.features_per_item : args.features;
    const int64_t top = item / across * args.rows_per_item;
    const int64_t bottom = top + args.rows_per_item < args.rows ? top + args.rows_per_item : args.rows;
    for (int64_t row = top; row < bottom; row += kMaxRows) {
      switch (bottom - row) {
        case 1: rows_of<T, kBits, 1>(args, row, first, last); break;
        case 2: rows_of<T, kBits, 2>(args, row, first, last); break;
        case 3: rows_of<T, kBits, 3>(args, row, first, last); break;
        default: rows_of<T, kBits, 4>(args, row, first, last); break;
      }
    }
  }
}

template <class T>
void spread_rows(const SpreadArgs& args, int64_t first, int64_t last) {
  const int64_t width = spread_size(args.size);
  for (int64_t row = first; row < last; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
    float* out = args.out + row * width;
    for (int64_t k = 0; k < width; k += kPair) {
      for (int64_t i = 0; i < kPair; ++i) {
        const int64_t place = args.bits == 4 ? i / 2 + i % 2 * kLanes : i;
        out[k + place] = k + i < args.size ? to_float(x[k + i]) : 0.0f;
      }
    }
  }
}

#if defined(__AVX512BF16__)
// Below, making the weight dense for a few rows at a time is faster than packing it.
constexpr int64_t kRowsForPanels = 9;

template <int kBits>
struct GroupedRows {
  const GroupedArgs& args;
  Pairs operator()(int64_t feature, int64_t k, int64_t left) const {
    const int64_t at = feature * args.groups + k / args.group_size;
    const float scale = to_float(static_cast<const BFloat16*>(args.scales)[at]);
    const float zero = args.zero_points == nullptr ? (float)(1 << (kBits - 1)) : (float)args.zero_points[at];
    const Values values = values_at<kBits>(args.weight + feature * args.weight_stride + k * kBits / 8, left);
    const auto first = (__m512)((values.first - zero) * scale), second = (__m512)((values.second - zero) * scale);
    if constexpr (kBits == 8) return (Pairs)_mm512_cvtne2ps_pbh(second, first);
    const Pairs even = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(first));
    const Pairs odd = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(second));
    return _mm512_or_si512(even, _mm512_slli_epi32(odd, 16));
  }
};

void panel_items(const GroupedArgs& args, int64_t first, int64_t last) {
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
  if (args.bits == 4) return panel_items(linear, GroupedRows<4>{args}, first, last);
  panel_items(linear, GroupedRows<8>{args}, first, last);
}
#endif

}  // namespace

ItemShape grouped_item([[maybe_unused]] Element element, [[maybe_unused]] int64_t rows, bool& takes_prepared) {
  takes_prepared = false;
#if defined(__AVX512BF16__)
  takes_prepared = element == Element::kBFloat16 && rows >= kRowsForPanels;
  if (takes_prepared) return panel_item(rows);
#endif
  return {kItemFeatures, kItemRows};
}

int64_t spread_size(int64_t size) { return (size + kPair - 1) / kPair * kPair; }

void spread(const SpreadArgs& args, int64_t first, int64_t last) {
  if (args.element == Element::kFloat32) return spread_rows<float>(args, first, last);
  spread_rows<BFloat16>(args, first, last);
}

void grouped_linear(const GroupedArgs& args, int64_t first, int64_t last) {
#if defined(__AVX512BF16__)
  if (args.is_prepared) return panel_items(args, first, last);
#endif
  const bool is_float = args.element == Element::kFloat32;
  if (args.bits == 4) return is_float ? items<float, 4>(args, first, last) : items<BFloat16, 4>(args, first, last);
  return is_float ? items<float, 8>(args, first, last) : items<BFloat16, 8>(args, first, last);
}

}  // namespace trunnion_cpu::TRUNNION_ISA
