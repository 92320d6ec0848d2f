// Sums of products of rows that lie in memory with rows that were prepared for it.
//
// Prepared rows are padded with zeros to whole vectors and, where there are no products of bfloat16 pairs, widened to
// float32 with even elements before odd ones, which is how a word of two bfloat16 values falls apart for free.
#pragma once

#include "vector.h"

namespace trunnion_cpu::TRUNNION_ISA {
namespace {

// How one element type is multiplied: X is what prepared rows hold, a Block one vector's worth of weights, Out what is
// stored.
struct Float32 {
  using X = float;
  using Stored = float;
  using Out = float;
  using Sum = Floats;
  static constexpr int64_t kStep = kLanes;
  struct Block {
    Floats values;
  };
  static TRUNNION_INLINE Block take(const Stored* weight) { return {load(weight)}; }
  static TRUNNION_INLINE Block take(const Stored* weight, int64_t count) { return {load(weight, count)}; }
  static TRUNNION_INLINE Block take_x(const X* x) { return {load(x)}; }
  static TRUNNION_INLINE Floats add(Floats sum, Block weight, Block x) { return sum + weight.values * x.values; }
  static TRUNNION_INLINE float total(Floats sum, const LinearArgs&, int64_t, int64_t) { return sum_of(sum); }
  static void prepare_row(const Stored* from, X* to, int64_t size) {
    for (int64_t k = 0; k < size; k += kStep) {
      store(to + k, k + kStep <= size ? load(from + k) : load(from + k, size - k));
    }
  }
};

#if defined(__AVX512BF16__)
struct Bf16 {
  using X = BFloat16;
  using Stored = BFloat16;
  using Out = BFloat16;
  using Sum = Floats;
  static constexpr int64_t kStep = 2 * kLanes;
  using Block = __m512bh;
  static TRUNNION_INLINE Block take(const Stored* weight) { return (__m512bh)_mm512_loadu_si512(weight); }
  static TRUNNION_INLINE Block take(const Stored* weight, int64_t count) {
    return (__m512bh)_mm512_maskz_loadu_epi16((__mmask32)((1u << count) - 1), weight);
  }
  static TRUNNION_INLINE Block take_x(const X* x) { return take(x); }
  static TRUNNION_INLINE Floats add(Floats sum, Block weight, Block x) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, weight, x);
  }
  static TRUNNION_INLINE float total(Floats sum, const LinearArgs&, int64_t, int64_t) { return sum_of(sum); }
  static void prepare_row(const Stored* from, X* to, int64_t size) {
    for (int64_t k = 0; k < size; k += kStep) {
      Block block = k + kStep <= size ? take(from + k) : take(from + k, size - k);
      memcpy(to + k, &block, sizeof block);
    }
  }
};
#else
struct Bf16 {
  using X = float;
  using Stored = BFloat16;
  using Out = BFloat16;
  using Sum = Floats;
  static constexpr int64_t kStep = 2 * kLanes;
  struct Block {
    Floats even, odd;
  };
  static TRUNNION_INLINE Block split(Words words) { return {(Floats)(words << 16), (Floats)(words & 0xffff0000u)}; }
  static TRUNNION_INLINE Block take(const Stored* weight) { return split(load_as<Words>(weight)); }
  static TRUNNION_INLINE Block take(const Stored* weight, int64_t count) {
    return split(load_first<Words>(weight, 2 * count));
  }
  static TRUNNION_INLINE Block take_x(const X* x) { return {load(x), load(x + kLanes)}; }
  static TRUNNION_INLINE Floats add(Floats sum, Block weight, Block x) {
    return (sum + weight.even * x.even) + weight.odd * x.odd;
  }
  static TRUNNION_INLINE float total(Floats sum, const LinearArgs&, int64_t, int64_t) { return sum_of(sum); }
  static void prepare_row(const Stored* from, X* to, int64_t size) {
    for (int64_t k = 0; k < size; k += kStep) {
      Block block = k + kStep <= size ? take(from + k) : take(from + k, size - k);
      store(to + k, block.even);
      store(to + k + kLanes, block.odd);
    }
  }
};
#endif

}  // namespace
}  // namespace trunnion_cpu::TRUNNION_ISA
