// rms_norm and fused_add_rms_norm, as the operators of the same names in `trunnion`.
#include <tuple>

#include "isa.h"
#include "tensors.h"
#include "threads.h"

namespace trunnion_cpu {
namespace {

constexpr int64_t kShared = 1 << 15;  // elements below which waking others costs more than it saves

Tensor run(const Tensor& given, const Tensor* residual, Tensor* sum, const Tensor& weight, double eps, bool unit_offset) {
  const Rows x(given);
  const int64_t size = last_size(given);
  const Element element = element_of(given, "x");
  STD_TORCH_CHECK(weight.dim() == 1 && weight.size(0) == size && weight.is_contiguous() &&
                      element_of(weight, "weight") == element,
                  "weight is no vector of ", size, " values of x's dtype");
  Tensor out = like_with_last(given, size);
  NormArgs args{
      .x = x.places(),
      .residual = {},
      .weight = weight.data_ptr(),
      .out = out.mutable_data_ptr(),
      .sum = nullptr,
      .size = size,
      .eps = static_cast<float>(eps),
      .unit_offset = unit_offset,
      .element = element,
  };
  const int64_t threads = x.count * size < kShared ? 1 : num_threads();
  if (residual == nullptr) {
    share(x.count, threads, kernels().rms_norm, args);
    return out;
  }
  const Rows added(*residual);
  STD_TORCH_CHECK(element_of(*residual, "residual") == element && last_size(*residual) == size &&
                      added.count == x.count,
                  "residual is not of x's shape and dtype");
  args.residual = added.places();
  args.sum = sum->mutable_data_ptr();
  share(x.count, threads, kernels().rms_norm, args);
  return out;
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, bool unit_offset) {
  return run(x, nullptr, nullptr, weight, eps, unit_offset);
}

std::tuple<Tensor, Tensor> fused_add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps,
                                              bool unit_offset) {
  Tensor sum = like_with_last(x, last_size(x));
  Tensor out = run(x, &residual, &sum, weight, eps, unit_offset);
  return {out, sum};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(trunnion_cpu, library) {
  library.def("rms_norm(Tensor x, Tensor weight, float eps, bool unit_offset) -> Tensor");
  library.def(
      "fused_add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps, bool unit_offset) -> (Tensor, Tensor)");
}
STABLE_TORCH_LIBRARY_IMPL(trunnion_cpu, CPU, library) {
  library.impl("rms_norm", TORCH_BOX(&rms_norm));
  library.impl("fused_add_rms_norm", TORCH_BOX(&fused_add_rms_norm));
}

}  // namespace trunnion_cpu
