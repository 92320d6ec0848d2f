// Root-mean-square norms, with the residual addition before them: float32 inside, rounded once.
#include "kernels_of_isa.h"
#include "vector.h"

namespace trunnion_cpu::TRUNNION_ISA {
namespace {

// Adds the residual if there is one -> the sum of squares of what is normalised.
template <class T>
float add_and_square(const T* x, const T* residual, T* sum, int64_t size) {
  Floats squares = {};
  for (int64_t i = 0; i < size; i += kLanes) {
    Floats values = take(x + i, size - i);
    if (residual != nullptr) {
      put(sum + i, values + take(residual + i, size - i), size - i);
      // As it was rounded: the next layer reads the same.
      values = take(sum + i, size - i);
    }
    squares += values * values;
  }
  return sum_of(squares);
}

template <class T>
void rows_of(const NormArgs& args, int64_t first, int64_t last) {
  const auto* weight = static_cast<const T*>(args.weight);
  const float offset = args.unit_offset ? 1.0f : 0.0f;
  for (int64_t row = first; row < last; ++row) {
    const T* x = row_at<T>(args.x, row);
    const T* residual = args.residual.data == nullptr ? nullptr : row_at<T>(args.residual, row);
    T* sum = residual == nullptr ? nullptr : static_cast<T*>(args.sum) + row * args.size;
    const float squares = add_and_square(x, residual, sum, args.size);
    const float factor = 1.0f / __builtin_sqrtf(squares / static_cast<float>(args.size) + args.eps);
    const T* values = residual == nullptr ? x : sum;
    T* out = static_cast<T*>(args.out) + row * args.size;
    for (int64_t i = 0; i < args.size; i += kLanes) {
      const int64_t left = args.size - i;
      put(out + i, take(values + i, left) * factor * (take(weight + i, left) + offset), left);
    }
  }
}

}  // namespace

void rms_norm(const NormArgs& args, int64_t first, int64_t last) {
  if (args.element == Element::kFloat32) return rows_of<float>(args, first, last);
  rows_of<BFloat16>(args, first, last);
}

}  // namespace trunnion_cpu::TRUNNION_ISA
