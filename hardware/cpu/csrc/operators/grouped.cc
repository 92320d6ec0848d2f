// grouped_int_linear, as the operator of the same name in `trunnion`.
#include <optional>

#include "isa.h"
#include "items.h"
#include "prepared.h"
#include "scratch.h"
#include "tensors.h"
#include "threads.h"

namespace trunnion_cpu {
namespace {

constexpr int64_t kSharedRows = 1 << 14;  // elements below which one thread widens
constexpr int64_t kLeastGroup = 32;       // groups are multiples of it: a step lies within one

const void* matrix_of(const Tensor& tensor, int64_t rows, int64_t columns, const char* what) {
  STD_TORCH_CHECK(tensor.dim() == 2 && tensor.size(0) == rows && tensor.size(1) == columns && tensor.is_contiguous(),
                  what, " is no dense matrix of ", rows, " by ", columns);
  return tensor.data_ptr();
}

PreparedRows spread(const Kernels& kernel, SpreadArgs args, int64_t rows, int64_t threads) {
  const int64_t width = kernel.spread_size(args.size);
  args.out = static_cast<float*>(Scratch::of(rows * width * sizeof(float)));
  share(rows, rows * args.size < kSharedRows ? 1 : threads, kernel.spread, args);
  return {args.out, width};
}

Tensor grouped_int_linear(const Tensor& x, const Tensor& weight, const Tensor& scales,
                          const std::optional<Tensor>& zero_points, const std::optional<Tensor>& bias, int64_t bits,
                          int64_t group_size) {
  using torch::headeronly::ScalarType;
  const Element element = element_of(x, "x");
  const int64_t size = last_size(x);
  STD_TORCH_CHECK(bits == 4 || bits == 8, "weights of ", bits, " bits; choices: 4, 8");
  STD_TORCH_CHECK(group_size >= size || (group_size > 0 && group_size % kLeastGroup == 0), "groups of ", group_size,
                  " features, expected a multiple of ", kLeastGroup, " or all");
  STD_TORCH_CHECK(weight.dim() == 2 && weight.scalar_type() == ScalarType::Byte && weight.size(1) == size * bits / 8,
                  "weight is no uint8 matrix of ", size * bits / 8, " bytes in a row");
  Rows rows(x), features(weight);
  const int64_t x_stride = rows.at_one_distance(), weight_stride = features.at_one_distance();
  const int64_t groups = (size + group_size - 1) / group_size;
  STD_TORCH_CHECK(element_of(scales, "scales") == element, "scales are not of x's dtype");
  STD_TORCH_CHECK(!zero_points.has_value() || zero_points->scalar_type() == ScalarType::Byte,
                  "zero_points are not uint8");
  STD_TORCH_CHECK(!bias.has_value() || (bias->numel() == features.count && bias->is_contiguous() &&
                                        element_of(*bias, "bias") == element),
                  "bias is no vector of ", features.count, " values of x's dtype");
  const Kernels& kernel = kernels();
  const int64_t threads = rows.count * features.count * size < kSharedWork ? 1 : num_threads();
  bool takes_prepared;
  const ItemShape shape = kernel.grouped_item(element, rows.count, takes_prepared);
  const PreparedRows given =
      takes_prepared ? prepared(kernel, {rows.data(), x_stride, nullptr, size, element}, rows.count, threads)
                     : spread(kernel, {rows.data(), x_stride, nullptr, size, bits, element}, rows.count, threads);
  Tensor out = like_with_last(x, features.count);
  const GroupedArgs args{
      .x = given.data,
      .x_stride = given.stride,
      .weight = static_cast<const uint8_t*>(features.data()),
      .weight_stride = weight_stride,
      .scales = matrix_of(scales, features.count, groups, "scales"),
      .zero_points = zero_points.has_value() ? static_cast<const uint8_t*>(matrix_of(*zero_points, features.count,
                                                                                    groups, "zero_points"))
                                             : nullptr,
      .bias = bias.has_value() ? bias->data_ptr() : nullptr,
      .out = out.mutable_data_ptr(),
      .rows = rows.count,
      .features = features.count,
      .size = size,
      .bits = bits,
      .group_size = group_size,
      .groups = groups,
      .features_per_item = features_per_item(features.count, size * bits / 8, threads, shape.features),
      .rows_per_item = shape.rows,
      .element = element,
      .is_prepared = takes_prepared,
  };
  share(num_items(args), threads, kernel.grouped_linear, args);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(trunnion_cpu, library) {
  library.def(
      "grouped_int_linear(Tensor x, Tensor weight, Tensor scales, Tensor? zero_points, Tensor? bias, int bits,"
      " int group_size) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(trunnion_cpu, CPU, library) {
  library.impl("grouped_int_linear", TORCH_BOX(&grouped_int_linear));
}

}  // namespace trunnion_cpu
