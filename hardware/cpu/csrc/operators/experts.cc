// fused_experts, as the operator of the same name in `trunnion`: rows in the order of their experts, whose weights are
// read once for all rows that were sent to them.
#include "experts.h"

#include <algorithm>
#include <cmath>

namespace trunnion_cpu {
namespace {

// A dense stack of weights [experts, features, size], with biases [experts, features] or null.
struct Stack {
  const char* weights;
  const char* biases;
  int64_t features, size;
};

Stack stack_of(const Tensor& weights, const std::optional<Tensor>& biases, int64_t experts, Element element,
               const char* what) {
  STD_TORCH_CHECK(weights.dim() == 3 && weights.size(0) == experts && weights.is_contiguous() &&
                      element_of(weights, what) == element,
                  what, " is no dense stack of ", experts, " matrices of x's dtype");
  const int64_t features = weights.size(1);
  STD_TORCH_CHECK(!biases.has_value() || (biases->numel() == experts * features && biases->is_contiguous() &&
                                          element_of(*biases, what) == element),
                  "biases of ", what, " are not ", experts, " by ", features, " values of x's dtype");
  return {static_cast<const char*>(weights.data_ptr()),
          biases.has_value() ? static_cast<const char*>(biases->data_ptr()) : nullptr, features, weights.size(2)};
}

// out [rows, features] of sorted rows [rows, size].
void multiply(const Sorted& sorted, const Stack& stack, const void* rows, void* out, Element element,
              int64_t threads) {
  const Kernels& kernel = kernels();
  const int64_t width = kernel.prepared_size(element, stack.size), bytes = bytes_of(element);
  const int64_t row_bytes = width * kernel.prepared_bytes(element);
  const PrepareArgs given{rows, stack.size, Scratch::of(sorted.rows() * row_bytes), stack.size, element};
  share(sorted.rows(), sorted.rows() * width < kSharedElements ? 1 : threads, kernel.prepare, given);
  Products<LinearArgs> products{kernel.linear};
  for (size_t e = 0; e + 1 < sorted.begins.size(); ++e) {
    const int64_t first = sorted.begins[e], count = sorted.begins[e + 1] - first;
    if (count == 0) continue;
    const ItemShape shape = kernel.linear_item(element, count);
    products.add({
        .x = static_cast<const char*>(given.out) + first * row_bytes,
        .x_stride = width,
        .weight = stack.weights + e * stack.features * stack.size * bytes,
        .weight_stride = stack.size,
        .bias = stack.biases == nullptr ? nullptr : stack.biases + e * stack.features * bytes,
        .out = static_cast<char*>(out) + first * stack.features * bytes,
        .rows = count,
        .features = stack.features,
        .size = stack.size,
        .features_per_item = features_per_item(stack.features, stack.size * bytes, threads, shape.features),
        .rows_per_item = shape.rows,
        .element = element,
        .x_scales = nullptr,
        .x_sums = nullptr,
        .weight_scales = nullptr,
    });
  }
  products.run_all(threads);
}

// (up + 1) * gate * sigmoid(alpha * gate), the gate at most `limit`, up within -limit ... limit.
struct ClampedArgs {
  const void* x;  // [rows, 2 * size]: gate, up
  void* out;
  int64_t size;
  float alpha, limit;
  Element element;
};

void clamped_rows(const ClampedArgs& args, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    for (int64_t i = 0; i < args.size; ++i) {
      const float gate = std::min(value_at(args.x, row * 2 * args.size + i, args.element), args.limit);
      const float up = value_at(args.x, (row * 2 + 1) * args.size + i, args.element);
      const float bounded = std::clamp(up, -args.limit, args.limit);
      put_at(args.out, row * args.size + i, (bounded + 1) * gate / (1 + std::exp(-args.alpha * gate)), args.element);
    }
  }
}

Tensor fused_experts(const Tensor& x, const Tensor& w13, const Tensor& w2, const Tensor& topk_weights,
                     const Tensor& topk_ids, const std::optional<Tensor>& w13_bias,
                     const std::optional<Tensor>& w2_bias, double swiglu_alpha, std::optional<double> swiglu_limit) {
  const Element element = element_of(x, "x");
  STD_TORCH_CHECK(x.dim() == 2 && w13.dim() == 3, "x is no matrix, or w13 no stack of matrices");
  const int64_t hidden = x.size(1), experts = w13.size(0), inner = w13.size(1) / 2;
  const Stack gate_up = stack_of(w13, w13_bias, experts, element, "w13");
  const Stack down = stack_of(w2, w2_bias, experts, element, "w2");
  STD_TORCH_CHECK(gate_up.size == hidden && gate_up.features == 2 * inner && down.size == inner &&
                      down.features == hidden,
                  "x of ", hidden, " features, w13 of ", gate_up.features, " by ", gate_up.size, " and w2 of ",
                  down.features, " by ", down.size, " do not fit together");
  const auto product = [element](const Stack& stack) {
    return [&stack, element](const Sorted& sorted, const void* rows, void* out, int64_t threads) {
      multiply(sorted, stack, rows, out, element, threads);
    };
  };
  const auto activate = [&](const Tensor& joined, Tensor& activated, int64_t threads) {
    if (!swiglu_limit.has_value()) return activate_rows(joined, activated, threads);
    const ClampedArgs args{joined.data_ptr(), activated.mutable_data_ptr(), inner, static_cast<float>(swiglu_alpha),
                           static_cast<float>(*swiglu_limit), element};
    share(activated.size(0), threads, clamped_rows, args);
  };
  return run_experts(x, experts, inner, topk_weights, topk_ids, product(gate_up), activate, product(down));
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(trunnion_cpu, library) {
  library.def(
      "fused_experts(Tensor x, Tensor w13, Tensor w2, Tensor topk_weights, Tensor topk_ids, Tensor? w13_bias=None,"
      " Tensor? w2_bias=None, float swiglu_alpha=1.0, float? swiglu_limit=None) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(trunnion_cpu, CPU, library) { library.impl("fused_experts", TORCH_BOX(&fused_experts)); }

}  // namespace trunnion_cpu
