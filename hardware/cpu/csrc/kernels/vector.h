// Vectors of the compiler's own kind: as wide as the instruction set that a file is compiled for.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "kernels.h"

#define TRUNNION_INLINE inline __attribute__((always_inline))

namespace trunnion_cpu::TRUNNION_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr bool kManyRegisters = true;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
constexpr bool kManyRegisters = false;
#else
constexpr int kLanes = 4;
constexpr bool kManyRegisters = false;
#endif

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));
typedef uint16_t BFloat16;

template <class T>
TRUNNION_INLINE const T* row_at(const RowPlaces& rows, int64_t row) {
  return static_cast<const T*>(rows.data) + row / rows.inner * rows.outer_stride + row % rows.inner * rows.inner_stride;
}

TRUNNION_INLINE Floats broadcast(float value) { return value - Floats{}; }

template <class Vector>
TRUNNION_INLINE Vector load_as(const void* from) {
  Vector value;
  memcpy(&value, from, sizeof value);
  return value;
}

// The first `count` elements, zeros behind them; nothing past them is read.
template <class Vector>
TRUNNION_INLINE Vector load_first(const void* from, int64_t bytes) {
  alignas(64) char buffer[sizeof(Vector)] = {};
  memcpy(buffer, from, bytes);
  return load_as<Vector>(buffer);
}

TRUNNION_INLINE Floats widen(Halves halves) { return (Floats)(__builtin_convertvector(halves, Words) << 16); }

// Rounded to nearest even; what is not a number stays one.
TRUNNION_INLINE Halves narrow(Floats values) {
  Words bits = (Words)values;
  Words rounded = bits + 0x7fff + ((bits >> 16) & 1);
  Words quiet = bits | 0x400000;
  Words is_nan = (Words)(values != values);
  return __builtin_convertvector(((rounded & ~is_nan) | (quiet & is_nan)) >> 16, Halves);
}

TRUNNION_INLINE Floats load(const float* from) { return load_as<Floats>(from); }
TRUNNION_INLINE Floats load(const BFloat16* from) { return widen(load_as<Halves>(from)); }
TRUNNION_INLINE Floats load(const float* from, int64_t count) { return load_first<Floats>(from, 4 * count); }
TRUNNION_INLINE Floats load(const BFloat16* from, int64_t count) {
  return widen(load_first<Halves>(from, 2 * count));
}
TRUNNION_INLINE void store(float* to, Floats values) { memcpy(to, &values, sizeof values); }
TRUNNION_INLINE void store(BFloat16* to, Floats values) {
  Halves halves = narrow(values);
  memcpy(to, &halves, sizeof halves);
}
TRUNNION_INLINE void store(float* to, Floats values, int64_t count) { memcpy(to, &values, 4 * count); }
TRUNNION_INLINE void store(BFloat16* to, Floats values, int64_t count) {
  Halves halves = narrow(values);
  memcpy(to, &halves, 2 * count);
}

// The next vector of `left` elements, of which there may be fewer than it holds.
template <class T>
TRUNNION_INLINE Floats take(const T* from, int64_t left) {
  return left >= kLanes ? load(from) : load(from, left);
}

template <class T>
TRUNNION_INLINE void put(T* to, Floats values, int64_t left) {
  if (left >= kLanes) {
    store(to, values);
  } else {
    store(to, values, left);
  }
}

TRUNNION_INLINE float to_float(float value) { return value; }
TRUNNION_INLINE float to_float(BFloat16 value) {
  uint32_t bits = (uint32_t)value << 16;
  float wide;
  memcpy(&wide, &bits, 4);
  return wide;
}
TRUNNION_INLINE void store_one(float* to, float value) { *to = value; }
TRUNNION_INLINE void store_one(BFloat16* to, float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  *to = value != value ? (bits | 0x400000) >> 16 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

TRUNNION_INLINE float sum_of(Floats values) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)values);
#else
  float lanes[kLanes];
  memcpy(lanes, &values, sizeof values);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
#endif
}

TRUNNION_INLINE Floats larger(Floats a, Floats b) { return a > b ? a : b; }
TRUNNION_INLINE Floats smaller(Floats a, Floats b) { return a < b ? a : b; }

TRUNNION_INLINE float largest_of(Floats values) {
#pragma GCC unroll 4
  for (int half = kLanes / 2; half > 0; half /= 2) {
    Ints other;
    for (int i = 0; i < kLanes; ++i) other[i] = i ^ half;
    values = larger(values, __builtin_shuffle(values, other));
  }
  return values[0];
}

// e ** x to about two units in the last place (the polynomial is that of Cephes' expf).
TRUNNION_INLINE Floats exp_of(Floats x) {
  x = x > 88.0f ? broadcast(88.0f) : x;
  x = x < -87.0f ? broadcast(-87.0f) : x;
  const float magic = 12582912.0f;  // 1.5 * 2 ** 23: adding it rounds to an integer
  Floats power = (x * 1.44269504f + magic) - magic;
  Floats rest = x - power * 0.693359375f;
  rest = rest + power * 2.12194440e-4f;
  Floats sum = broadcast(1.9875691500e-4f);
  sum = sum * rest + 1.3981999507e-3f;
  sum = sum * rest + 8.3334519073e-3f;
  sum = sum * rest + 4.1665795894e-2f;
  sum = sum * rest + 1.6666665459e-1f;
  sum = sum * rest + 5.0000001201e-1f;
  sum = sum * rest * rest + rest + 1.0f;
  Ints exponent = __builtin_convertvector(power, Ints);
  return sum * (Floats)((exponent + 127) << 23);
}

}  // namespace
}  // namespace trunnion_cpu::TRUNNION_ISA
