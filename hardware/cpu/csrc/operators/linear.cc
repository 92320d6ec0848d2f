// linear: a product with a row-major weight, read once for all rows.
#include <algorithm>
#include <optional>

#include "isa.h"
#include "items.h"
#include "prepared.h"
#include "tensors.h"
#include "threads.h"

namespace trunnion_cpu {
namespace {

Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  const Element element = element_of(x, "x");
  STD_TORCH_CHECK(weight.dim() == 2 && element_of(weight, "weight") == element, "weight is no matrix of x's dtype");
  Rows rows(x), features(weight);
  const int64_t size = last_size(x), x_stride = rows.at_one_distance();
  const int64_t weight_stride = features.at_one_distance();
  STD_TORCH_CHECK(weight.size(1) == size, "x has ", size, " features, the weight takes ", weight.size(1));
  if (bias.has_value()) {
    STD_TORCH_CHECK(bias->dim() == 1 && bias->size(0) == features.count && bias->is_contiguous() &&
                        element_of(*bias, "bias") == element,
                    "bias is no vector of ", features.count, " values of x's dtype");
  }
  Tensor out = like_with_last(x, features.count);
  const Kernels& kernel = kernels();
  const int64_t threads = rows.count * features.count * size < kSharedWork ? 1 : num_threads();
  const ItemShape shape = kernel.linear_item(element, rows.count);
  const PreparedRows given = prepared(kernel, {rows.data(), x_stride, nullptr, size, element}, rows.count, threads);
  LinearArgs args{
      .x = given.data,
      .x_stride = given.stride,
      .weight = features.data(),
      .weight_stride = weight_stride,
      .bias = bias.has_value() ? bias->data_ptr() : nullptr,
      .out = out.mutable_data_ptr(),
      .rows = rows.count,
      .features = features.count,
      .size = size,
      .features_per_item = features_per_item(features.count, size * element_bytes(element), threads, shape.features),
      .rows_per_item = shape.rows,
      .element = element,
      .x_scales = nullptr,
      .x_sums = nullptr,
      .weight_scales = nullptr,
  };
  share(num_items(args), threads, kernel.linear, args);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(trunnion_cpu, library) {
  library.def("linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(trunnion_cpu, CPU, library) { library.impl("linear", TORCH_BOX(&linear)); }

}  // namespace trunnion_cpu
