// Products of int8 weights with rows that are quantised to int8 on the way: exact integers, scaled at the end.
#include "kernels_of_isa.h"
#include "tiles.h"

namespace trunnion_cpu::TRUNNION_ISA {
namespace {

constexpr float kLargest = 127.0f, kTiny = 1e-12f;
constexpr float kMagic = 12582912.0f;  // 1.5 * 2 ** 23: adding it rounds to an even integer

#if defined(__AVX512VNNI__)
// The instruction multiplies unsigned with signed bytes: weights are moved by 128, and the sum of x makes up for it.
template <class T>
struct Int8 {
  using X = int8_t;
  using Stored = int8_t;
  using Out = T;
  using Sum = Ints;
  using Block = __m512i;
  static constexpr int64_t kStep = 64;
  static TRUNNION_INLINE Block moved(__m512i weights) { return _mm512_xor_si512(weights, _mm512_set1_epi8(-128)); }
  static TRUNNION_INLINE Block take(const Stored* weight) { return moved(_mm512_loadu_si512(weight)); }
  static TRUNNION_INLINE Block take(const Stored* weight, int64_t count) {
    return moved(_mm512_maskz_loadu_epi8((__mmask64)((1ull << count) - 1), weight));
  }
  static TRUNNION_INLINE Block take_x(const X* x) { return _mm512_loadu_si512(x); }
  static TRUNNION_INLINE Sum add(Sum sum, Block weight, Block x) {
    return (Sum)_mm512_dpbusd_epi32((__m512i)sum, weight, x);
  }
  static TRUNNION_INLINE float total(Sum sum, const LinearArgs& args, int64_t row, int64_t feature) {
    const int32_t exact = _mm512_reduce_add_epi32((__m512i)sum) - 128 * (int32_t)args.x_sums[row];
    return (float)exact * (args.x_scales[row] * args.weight_scales[feature]);
  }
};
#else
template <class T>
struct Int8 {
  using X = float;
  using Stored = int8_t;
  using Out = T;
  using Sum = Floats;
  typedef int8_t Bytes __attribute__((vector_size(kLanes)));
  struct Block {
    Floats values;
  };
  static constexpr int64_t kStep = kLanes;
  static TRUNNION_INLINE Block widen(Bytes bytes) {
    return {__builtin_convertvector(__builtin_convertvector(bytes, Ints), Floats)};
  }
  static TRUNNION_INLINE Block take(const Stored* weight) { return widen(load_as<Bytes>(weight)); }
  static TRUNNION_INLINE Block take(const Stored* weight, int64_t count) {
    return widen(load_first<Bytes>(weight, count));
  }
  static TRUNNION_INLINE Block take_x(const X* x) { return {load(x)}; }
  static TRUNNION_INLINE Sum add(Sum sum, Block weight, Block x) { return sum + weight.values * x.values; }
  static TRUNNION_INLINE float total(Sum sum, const LinearArgs& args, int64_t row, int64_t feature) {
    return sum_of(sum) * (args.x_scales[row] * args.weight_scales[feature]);
  }
};
#endif

// What is not finite makes the scale, and so the row's products, no number.
template <class T>
float largest_size(const T* x, int64_t size) {
  Floats largest = {}, not_finite = {};
  for (int64_t i = 0; i < size; i += kLanes) {
    const Floats value = take(x + i, size - i);
    largest = larger(larger(value, -value), largest);
    not_finite += value * 0.0f;
  }
  return largest_of(largest) + sum_of(not_finite);
}

template <class T>
void quantise_row(const T* x, typename Int8<T>::X* out, int64_t size, int64_t width, float scale, float& sum) {
  float total = 0.0f;
  for (int64_t i = 0; i < size; i += kLanes) {
    const Floats scaled = smaller(larger(take(x + i, size - i) / scale, broadcast(-kLargest)), broadcast(kLargest));
    const Floats rounded = (scaled + kMagic) - kMagic;
    const int64_t count = size - i < kLanes ? size - i : kLanes;
    for (int64_t lane = 0; lane < count; ++lane) out[i + lane] = (typename Int8<T>::X)rounded[lane];
    total += sum_of(rounded);
  }
  for (int64_t i = size; i < width; ++i) out[i] = 0;
  sum = total;
}

template <class T>
void quantise_rows(const QuantiseArgs& args, int64_t first, int64_t last) {
  const int64_t width = quantised_size(args.size);
  for (int64_t row = first; row < last; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
    float scale = args.scale == nullptr ? 0.0f : *args.scale;
    if (scale == 0.0f) {
      scale = largest_size(x, args.size) / kLargest;
      scale = scale < kTiny ? kTiny : scale;
    }
    args.scales[row] = scale;
    auto* out = static_cast<typename Int8<T>::X*>(args.out) + row * width;
    quantise_row<T>(x, out, args.size, width, scale, args.sums[row]);
  }
}

}  // namespace

int64_t quantised_size(int64_t size) {
  constexpr int64_t step = Int8<float>::kStep;
  return (size + step - 1) / step * step;
}

int64_t quantised_bytes() { return sizeof(Int8<float>::X); }

void quantise(const QuantiseArgs& args, int64_t first, int64_t last) {
  if (args.element == Element::kFloat32) return quantise_rows<float>(args, first, last);
  quantise_rows<BFloat16>(args, first, last);
}

void w8a8_linear(const LinearArgs& args, int64_t first, int64_t last) {
  if (args.element == Element::kFloat32) return items<Int8<float>>(args, first, last);
  items<Int8<BFloat16>>(args, first, last);
}

}  // namespace trunnion_cpu::TRUNNION_ISA
