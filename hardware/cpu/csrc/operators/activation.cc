// silu_and_mul, as the operator of the same name in `trunnion`.
#include "isa.h"
#include "tensors.h"
#include "threads.h"

namespace trunnion_cpu {
namespace {

constexpr int64_t kShared = 1 << 15;  // elements below which waking others costs more than it saves

Tensor silu_and_mul(const Tensor& x) {
  STD_TORCH_CHECK(last_size(x) % 2 == 0, "x has ", last_size(x), " features, expected gate and up of one size");
  const int64_t size = last_size(x) / 2;
  const Rows rows(x);
  Tensor out = like_with_last(x, size);
  const GatedArgs args{rows.places(), out.mutable_data_ptr(), size, element_of(x, "x")};
  share(rows.count, rows.count * size < kShared ? 1 : num_threads(), kernels().silu_and_mul, args);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(trunnion_cpu, library) { library.def("silu_and_mul(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(trunnion_cpu, CPU, library) { library.impl("silu_and_mul", TORCH_BOX(&silu_and_mul)); }

}  // namespace trunnion_cpu
