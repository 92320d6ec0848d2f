// Exact products of integers, four of each of a vector's features with the same four of a row quantised to int8.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "vector.h"

namespace trunnion_cpu::TRUNNION_ISA {
namespace {

// Sum: exact, of up to kExactValues products. Four: the same four values of a row in each lane.
#if defined(__AVX2__)
constexpr int64_t kExactValues = 1 << 16;
#else
constexpr int64_t kExactValues = 128;
#endif
#if defined(__AVX512VNNI__)
typedef __m512i Four;
typedef __m512i Codes;
typedef Ints Sum;
TRUNNION_INLINE Four four_of(const int8_t* x) {
  int32_t word;
  memcpy(&word, x, 4);
  return _mm512_set1_epi32(word);
}
TRUNNION_INLINE Codes codes_at(const uint8_t* from) { return _mm512_loadu_si512(from); }
TRUNNION_INLINE Codes lower(Codes codes) { return _mm512_and_si512(codes, _mm512_set1_epi8(15)); }
TRUNNION_INLINE Codes upper(Codes codes) {
  return _mm512_and_si512(_mm512_srli_epi16(codes, 4), _mm512_set1_epi8(15));
}
template <int kBits>
TRUNNION_INLINE Sum dot(Sum sum, Codes codes, Four x) {
  return (Sum)_mm512_dpbusd_epi32((__m512i)sum, codes, x);
}
#elif defined(__AVX2__)
// Products of neighbours are added in 16 bits, which hold 2 * 15 * 127 but not 2 * 255 * 127.
#if defined(__AVX512BW__)
typedef __m512i Vector;
#define TRUNNION_EACH(operation) _mm512_##operation
TRUNNION_INLINE Vector both(Vector a, Vector b) { return _mm512_and_si512(a, b); }
#else
typedef __m256i Vector;
#define TRUNNION_EACH(operation) _mm256_##operation
TRUNNION_INLINE Vector both(Vector a, Vector b) { return _mm256_and_si256(a, b); }
#endif
typedef Vector Codes;
typedef Ints Sum;
struct Four {
  Vector bytes, even, odd;
};
TRUNNION_INLINE Four four_of(const int8_t* x) {
  int32_t word;
  memcpy(&word, x, 4);
  const Vector bytes = TRUNNION_EACH(set1_epi32)(word);
  return {bytes, TRUNNION_EACH(srai_epi16)(TRUNNION_EACH(slli_epi16)(bytes, 8), 8), TRUNNION_EACH(srai_epi16)(bytes, 8)};
}
TRUNNION_INLINE Codes codes_at(const uint8_t* from) { return load_as<Codes>(from); }
TRUNNION_INLINE Codes lower(Codes codes) { return both(codes, TRUNNION_EACH(set1_epi8)(15)); }
TRUNNION_INLINE Codes upper(Codes codes) { return lower(TRUNNION_EACH(srli_epi16)(codes, 4)); }
template <int kBits>
TRUNNION_INLINE Sum dot(Sum sum, Codes codes, Four x) {
  if constexpr (kBits == 4) {
    const Vector pairs = TRUNNION_EACH(maddubs_epi16)(codes, x.bytes);
    return sum + (Sum)TRUNNION_EACH(madd_epi16)(pairs, TRUNNION_EACH(set1_epi16)(1));
  } else {
    const Vector even = both(codes, TRUNNION_EACH(set1_epi16)(255)), odd = TRUNNION_EACH(srli_epi16)(codes, 8);
    return sum + (Sum)TRUNNION_EACH(madd_epi16)(even, x.even) + (Sum)TRUNNION_EACH(madd_epi16)(odd, x.odd);
  }
}
#else
// Integers up to 2 ** 24 are exact in float32; blocks of 128 stay below.
typedef Words Codes;
typedef Floats Sum;
struct Four {
  float values[4];
};
TRUNNION_INLINE Four four_of(const int8_t* x) { return {{(float)x[0], (float)x[1], (float)x[2], (float)x[3]}}; }
TRUNNION_INLINE Codes codes_at(const uint8_t* from) { return load_as<Codes>(from); }
TRUNNION_INLINE Codes lower(Codes codes) { return codes & 0x0f0f0f0fu; }
TRUNNION_INLINE Codes upper(Codes codes) { return (codes >> 4) & 0x0f0f0f0fu; }
TRUNNION_INLINE Floats byte_of(Codes codes, int place) {
  return __builtin_convertvector((Ints)((codes >> (8 * place)) & 255u), Floats);
}
template <int kBits>
TRUNNION_INLINE Sum dot(Sum sum, Codes codes, Four x) {
  sum += byte_of(codes, 0) * x.values[0];
  sum += byte_of(codes, 1) * x.values[1];
  sum += byte_of(codes, 2) * x.values[2];
  return sum + byte_of(codes, 3) * x.values[3];
}
#endif

TRUNNION_INLINE Floats floats_of(Floats sum) { return sum; }
TRUNNION_INLINE Floats floats_of(Ints sum) { return __builtin_convertvector(sum, Floats); }
TRUNNION_INLINE Ints ints_of(Ints sum) { return sum; }
TRUNNION_INLINE Ints ints_of(Floats sum) { return __builtin_convertvector(sum, Ints); }
template <class Vector>
TRUNNION_INLINE Vector in_all_lanes(int32_t value) {
  return (decltype(Vector{}[0]))value - Vector{};
}

}  // namespace
}  // namespace trunnion_cpu::TRUNNION_ISA
