// w8a8_linear, as the operator of the same name in `trunnion`, for int8.
#include <optional>

#include "isa.h"
#include "items.h"
#include "scratch.h"
#include "tensors.h"
#include "threads.h"

namespace trunnion_cpu {
namespace {

constexpr int64_t kSharedRows = 1 << 14;  // elements below which one thread quantises

const float* floats_of(const Tensor& tensor, int64_t count, const char* what) {
  STD_TORCH_CHECK(tensor.is_contiguous() && tensor.numel() == count && element_of(tensor, what) == Element::kFloat32,
                  what, " has ", tensor.numel(), " values, expected ", count, " dense float32 ones");
  return static_cast<const float*>(tensor.data_ptr());
}

Tensor w8a8_linear(const Tensor& x, const Tensor& weight, const Tensor& weight_scale,
                   const std::optional<Tensor>& input_scale, const std::optional<Tensor>& bias) {
  const Element element = element_of(x, "x");
  STD_TORCH_CHECK(weight.dim() == 2 && weight.scalar_type() == torch::headeronly::ScalarType::Char,
                  "weight is no int8 matrix");
  Rows rows(x), features(weight);
  const int64_t size = last_size(x), x_stride = rows.at_one_distance();
  const int64_t weight_stride = features.at_one_distance();
  STD_TORCH_CHECK(weight.size(1) == size, "x has ", size, " features, the weight takes ", weight.size(1));
  STD_TORCH_CHECK(!bias.has_value() || (bias->numel() == features.count && bias->is_contiguous() &&
                                        element_of(*bias, "bias") == element),
                  "bias is no vector of ", features.count, " values of x's dtype");
  const Kernels& kernel = kernels();
  const int64_t threads = rows.count * features.count * size < kSharedWork ? 1 : num_threads();
  const int64_t width = kernel.quantised_size(size);
  char* scratch = static_cast<char*>(Scratch::of(rows.count * (width * kernel.quantised_bytes() + 2 * sizeof(float))));
  auto* scales = reinterpret_cast<float*>(scratch + rows.count * width * kernel.quantised_bytes());
  const QuantiseArgs given{
      .x = rows.data(),
      .x_stride = x_stride,
      .out = scratch,
      .scales = scales,
      .sums = scales + rows.count,
      .size = size,
      .scale = input_scale.has_value() ? floats_of(*input_scale, 1, "input_scale") : nullptr,
      .element = element,
  };
  share(rows.count, rows.count * size < kSharedRows ? 1 : threads, kernel.quantise, given);
  Tensor out = like_with_last(x, features.count);
  const LinearArgs args{
      .x = scratch,
      .x_stride = width,
      .weight = features.data(),
      .weight_stride = weight_stride,
      .bias = bias.has_value() ? bias->data_ptr() : nullptr,
      .out = out.mutable_data_ptr(),
      .rows = rows.count,
      .features = features.count,
      .size = size,
      .features_per_item = features_per_item(features.count, size, threads),
      .rows_per_item = kRowsPerItem,
      .element = element,
      .x_scales = given.scales,
      .x_sums = given.sums,
      .weight_scales = floats_of(weight_scale, features.count, "weight_scale"),
  };
  share(num_items(args), threads, kernel.w8a8_linear, args);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(trunnion_cpu, library) {
  library.def(
      "w8a8_linear(Tensor x, Tensor weight, Tensor weight_scale, Tensor? input_scale, Tensor? bias) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(trunnion_cpu, CPU, library) { library.impl("w8a8_linear", TORCH_BOX(&w8a8_linear)); }

}  // namespace trunnion_cpu
