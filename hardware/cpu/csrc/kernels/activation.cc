// Gated activations: float32 inside, rounded once.
#include "kernels_of_isa.h"
#include "vector.h"

namespace trunnion_cpu::TRUNNION_ISA {
namespace {

TRUNNION_INLINE Floats silu(Floats x) { return x / (1.0f + exp_of(-x)); }

template <class T>
void rows_of(const GatedArgs& args, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    const T* gate = row_at<T>(args.x, row);
    const T* up = gate + args.size;
    T* out = static_cast<T*>(args.out) + row * args.size;
    int64_t i = 0;
    for (; i + kLanes <= args.size; i += kLanes) store(out + i, silu(load(gate + i)) * load(up + i));
    if (i < args.size) {
      const int64_t left = args.size - i;
      store(out + i, silu(load(gate + i, left)) * load(up + i, left), left);
    }
  }
}

}  // namespace

void silu_and_mul(const GatedArgs& args, int64_t first, int64_t last) {
  if (args.element == Element::kFloat32) return rows_of<float>(args, first, last);
  rows_of<BFloat16>(args, first, last);
}

}  // namespace trunnion_cpu::TRUNNION_ISA
