// Numbers of float16, as scales are stored.
#pragma once

#include "vector.h"

namespace trunnion_cpu::TRUNNION_ISA {
namespace {

TRUNNION_INLINE Floats half_floats(const uint16_t* from) {
#if defined(__AVX512F__)
  return (Floats)_mm512_cvtph_ps((__m256i)load_as<Halves>(from));
#else
  const Words words = __builtin_convertvector(load_as<Halves>(from), Words);
  // The exponent moves from a bias of 15 to one of 127 by a multiplication, which subnormal numbers survive.
  const Floats size = (Floats)((words & 0x7fffu) << 13) * 0x1p112f;
  const Words not_finite = (Words)((words & 0x7c00u) == 0x7c00u) & 0x7f800000u;
  return (Floats)((Words)size | not_finite | ((words & 0x8000u) << 16));
#endif
}

}  // namespace
}  // namespace trunnion_cpu::TRUNNION_ISA
