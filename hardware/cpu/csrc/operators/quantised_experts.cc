// w8a8_experts and grouped_int_experts, as the operators of the same names in `trunnion`.
#include "experts.h"
#include "prepared.h"

namespace trunnion_cpu {
namespace {

using torch::headeronly::ScalarType;

constexpr int64_t kLeastGroup = 32;  // groups are multiples of it: a step lies within one

// A dense stack of quantised weights [experts, features, size], with what belongs to each row.
struct Stack {
  const char* weights;
  const char* scales;
  const uint8_t* zero_points;  // null: none
  int64_t features, size, bits, group_size, groups;
};

void check_stack(const Tensor& stack, int64_t experts, ScalarType type, const char* what) {
  STD_TORCH_CHECK(stack.dim() == 3 && stack.size(0) == experts && stack.is_contiguous() && stack.scalar_type() == type,
                  what, " is no dense stack of ", experts, " matrices in ", type);
}

void check_fit(int64_t hidden, const Stack& gate_up, const Stack& down) {
  STD_TORCH_CHECK(gate_up.size == hidden && gate_up.features == 2 * down.size && down.features == hidden, "x of ", hidden,
                  " features, w13 of ", gate_up.features, " by ", gate_up.size, " and w2 of ", down.features, " by ",
                  down.size, " do not fit together");
}

Stack int8_stack(const Tensor& weights, const Tensor& scales, int64_t experts, const char* what) {
  check_stack(weights, experts, ScalarType::Char, what);
  const int64_t features = weights.size(1);
  STD_TORCH_CHECK(scales.numel() == experts * features && scales.is_contiguous() &&
                      element_of(scales, what) == Element::kFloat32,
                  "scales of ", what, " are not ", experts, " by ", features, " dense values in float32");
  return {static_cast<const char*>(weights.data_ptr()), static_cast<const char*>(scales.data_ptr()), nullptr, features,
          weights.size(2), 8, 0, 0};
}

void multiply_int8(const Sorted& sorted, const Stack& stack, const void* rows, void* out, Element element,
                   int64_t threads) {
  const Kernels& kernel = kernels();
  const int64_t num_rows = sorted.rows(), width = kernel.quantised_size(stack.size);
  const int64_t row_bytes = width * kernel.quantised_bytes();
  char* scratch = static_cast<char*>(Scratch::of(num_rows * (row_bytes + 2 * sizeof(float))));
  auto* scales = reinterpret_cast<float*>(scratch + num_rows * row_bytes);
  const QuantiseArgs given{rows, stack.size, scratch, scales, scales + num_rows, stack.size, nullptr, element};
  share(num_rows, num_rows * width < kSharedElements ? 1 : threads, kernel.quantise, given);
  Products<LinearArgs> products{kernel.w8a8_linear};
  for (size_t e = 0; e + 1 < sorted.begins.size(); ++e) {
    const int64_t first = sorted.begins[e], count = sorted.begins[e + 1] - first;
    if (count == 0) continue;
    products.add({
        .x = scratch + first * row_bytes,
        .x_stride = width,
        .weight = stack.weights + e * stack.features * stack.size,
        .weight_stride = stack.size,
        .bias = nullptr,
        .out = static_cast<char*>(out) + first * stack.features * bytes_of(element),
        .rows = count,
        .features = stack.features,
        .size = stack.size,
        .features_per_item = features_per_item(stack.features, stack.size, threads),
        .rows_per_item = kRowsPerItem,
        .element = element,
        .x_scales = given.scales + first,
        .x_sums = given.sums + first,
        .weight_scales = reinterpret_cast<const float*>(stack.scales) + e * stack.features,
    });
  }
  products.run_all(threads);
}

Tensor w8a8_experts(const Tensor& x, const Tensor& w13, const Tensor& w13_scale, const Tensor& w2,
                    const Tensor& w2_scale, const Tensor& topk_weights, const Tensor& topk_ids) {
  const Element element = element_of(x, "x");
  STD_TORCH_CHECK(x.dim() == 2 && w13.dim() == 3, "x is no matrix, or w13 no stack of matrices");
  const int64_t experts = w13.size(0);
  const Stack gate_up = int8_stack(w13, w13_scale, experts, "w13"), down = int8_stack(w2, w2_scale, experts, "w2");
  check_fit(x.size(1), gate_up, down);
  const auto product = [element](const Stack& stack) {
    return [&stack, element](const Sorted& sorted, const void* rows, void* out, int64_t threads) {
      multiply_int8(sorted, stack, rows, out, element, threads);
    };
  };
  return run_experts(x, experts, down.size, topk_weights, topk_ids, product(gate_up), activate_rows, product(down));
}

Stack grouped_stack(const Tensor& weights, const Tensor& scales, const std::optional<Tensor>& zero_points,
                    Element element, int64_t experts, int64_t bits, int64_t group_size, const char* what) {
  check_stack(weights, experts, ScalarType::Byte, what);
  const int64_t features = weights.size(1), size = weights.size(2) * 8 / bits;
  STD_TORCH_CHECK(group_size >= size || (group_size > 0 && group_size % kLeastGroup == 0), "groups of ", group_size,
                  " features, expected a multiple of ", kLeastGroup, " or all");
  const int64_t groups = (size + group_size - 1) / group_size, numbers = experts * features * groups;
  STD_TORCH_CHECK(scales.numel() == numbers && scales.is_contiguous() && element_of(scales, what) == element,
                  "scales of ", what, " are not ", experts, " by ", features, " by ", groups,
                  " dense values of x's dtype");
  STD_TORCH_CHECK(!zero_points.has_value() || (zero_points->numel() == numbers && zero_points->is_contiguous() &&
                                               zero_points->scalar_type() == ScalarType::Byte),
                  "zero points of ", what, " are not ", experts, " by ", features, " by ", groups,
                  " dense values in uint8");
  return {static_cast<const char*>(weights.data_ptr()),
          static_cast<const char*>(scales.data_ptr()),
          zero_points.has_value() ? static_cast<const uint8_t*>(zero_points->data_ptr()) : nullptr,
          features,
          size,
          bits,
          group_size,
          groups};
}

void multiply_groups(const Sorted& sorted, const Stack& stack, const void* rows, void* out, Element element,
                     int64_t threads) {
  const Kernels& kernel = kernels();
  const int64_t num_rows = sorted.rows();
  // All experts' rows are made alike: as those of an expert with rows to the average.
  int64_t used = 0;
  for (size_t e = 0; e + 1 < sorted.begins.size(); ++e) used += sorted.begins[e + 1] > sorted.begins[e];
  bool takes_prepared;
  const ItemShape shape = kernel.grouped_item(element, num_rows / std::max<int64_t>(used, 1), takes_prepared);
  PreparedRows given{nullptr, kernel.spread_size(stack.size)};
  if (takes_prepared) {
    given = prepared(kernel, {rows, stack.size, nullptr, stack.size, element}, num_rows, threads);
  } else {
    auto* wide = static_cast<float*>(Scratch::of(num_rows * given.stride * sizeof(float)));
    const SpreadArgs args{rows, stack.size, wide, stack.size, stack.bits, element};
    share(num_rows, num_rows * stack.size < kSharedElements ? 1 : threads, kernel.spread, args);
    given.data = wide;
  }
  const int64_t x_bytes = takes_prepared ? kernel.prepared_bytes(element) : sizeof(float);
  const int64_t bytes = bytes_of(element), weight_stride = stack.size * stack.bits / 8;
  Products<GroupedArgs> products{kernel.grouped_linear};
  for (size_t e = 0; e + 1 < sorted.begins.size(); ++e) {
    const int64_t first = sorted.begins[e], count = sorted.begins[e + 1] - first;
    if (count == 0) continue;
    const int64_t numbers = e * stack.features * stack.groups;
    products.add({
        .x = static_cast<const char*>(given.data) + first * given.stride * x_bytes,
        .x_stride = given.stride,
        .weight = reinterpret_cast<const uint8_t*>(stack.weights) + e * stack.features * weight_stride,
        .weight_stride = weight_stride,
        .scales = stack.scales + numbers * bytes,
        .zero_points = stack.zero_points == nullptr ? nullptr : stack.zero_points + numbers,
        .bias = nullptr,
        .out = static_cast<char*>(out) + first * stack.features * bytes,
        .rows = count,
        .features = stack.features,
        .size = stack.size,
        .bits = stack.bits,
        .group_size = stack.group_size,
        .groups = stack.groups,
        .features_per_item = features_per_item(stack.features, weight_stride, threads, shape.features),
        .rows_per_item = shape.rows,
        .element = element,
        .is_prepared = takes_prepared,
    });
  }
  products.run_all(threads);
}

Tensor grouped_int_experts(const Tensor& x, const Tensor& w13, const Tensor& w13_scales,
                           const std::optional<Tensor>& w13_zero_points, const Tensor& w2, const Tensor& w2_scales,
                           const std::optional<Tensor>& w2_zero_points, const Tensor& topk_weights,
                           const Tensor& topk_ids, int64_t bits, int64_t w13_group_size, int64_t w2_group_size) {
  const Element element = element_of(x, "x");
  STD_TORCH_CHECK(bits == 4 || bits == 8, "weights of ", bits, " bits; choices: 4, 8");
  STD_TORCH_CHECK(x.dim() == 2 && w13.dim() == 3, "x is no matrix, or w13 no stack of matrices");
  const int64_t experts = w13.size(0);
  const Stack gate_up =
      grouped_stack(w13, w13_scales, w13_zero_points, element, experts, bits, w13_group_size, "w13");
  const Stack down = grouped_stack(w2, w2_scales, w2_zero_points, element, experts, bits, w2_group_size, "w2");
  check_fit(x.size(1), gate_up, down);
  const auto product = [element](const Stack& stack) {
    return [&stack, element](const Sorted& sorted, const void* rows, void* out, int64_t threads) {
      multiply_groups(sorted, stack, rows, out, element, threads);
    };
  };
  return run_experts(x, experts, down.size, topk_weights, topk_ids, product(gate_up), activate_rows, product(down));
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(trunnion_cpu, library) {
  library.def(
      "w8a8_experts(Tensor x, Tensor w13, Tensor w13_scale, Tensor w2, Tensor w2_scale, Tensor topk_weights,"
      " Tensor topk_ids) -> Tensor");
  library.def(
      "grouped_int_experts(Tensor x, Tensor w13, Tensor w13_scales, Tensor? w13_zero_points, Tensor w2,"
      " Tensor w2_scales, Tensor? w2_zero_points, Tensor topk_weights, Tensor topk_ids, int bits, int w13_group_size,"
      " int w2_group_size) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(trunnion_cpu, CPU, library) {
  library.impl("w8a8_experts", TORCH_BOX(&w8a8_experts));
  library.impl("grouped_int_experts", TORCH_BOX(&grouped_int_experts));
}

}  // namespace trunnion_cpu
