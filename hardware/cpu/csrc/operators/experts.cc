// fused_experts, as the operator of the same name in `trunnion`: rows in the order of their experts, whose weights are
// read once for all rows that were sent to them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "isa.h"
#include "items.h"
#include "scratch.h"
#include "tensors.h"
#include "threads.h"

namespace trunnion_cpu {
namespace {

using torch::headeronly::ScalarType;

constexpr int64_t kSharedElements = 1 << 15;  // below which waking others costs more than it saves

int64_t bytes_of(Element element) { return element == Element::kFloat32 ? 4 : 2; }

// Row i of the sorted rows is choice `choices[i]` (token * top_k + number); those of expert e begin at `begins[e]`.
struct Sorted {
  std::vector<int64_t> choices, begins;
  int64_t top_k;

  Sorted(const Tensor& ids, int64_t num_experts) : choices(ids.numel()), begins(num_experts + 1), top_k(ids.size(1)) {
    const auto* expert = static_cast<const int64_t*>(ids.data_ptr());
    for (int64_t i = 0; i < ids.numel(); ++i) {
      STD_TORCH_CHECK(expert[i] >= 0 && expert[i] < num_experts, "expert ", expert[i], " of ", num_experts);
      ++begins[expert[i] + 1];
    }
    for (int64_t e = 0; e < num_experts; ++e) begins[e + 1] += begins[e];
    std::vector<int64_t> next(begins.begin(), begins.end() - 1);
    for (int64_t i = 0; i < ids.numel(); ++i) choices[next[expert[i]]++] = i;
  }

  int64_t rows() const { return choices.size(); }
};

// One product for each expert that has rows, whose items follow each other.
struct Products {
  void (*linear)(const LinearArgs& args, int64_t first, int64_t last);
  std::vector<LinearArgs> of;
  std::vector<int64_t> ends;

  static void run(const Products& products, int64_t first, int64_t last) {
    for (int64_t item = first; item < last; ++item) {
      const int64_t number = std::upper_bound(products.ends.begin(), products.ends.end(), item) - products.ends.begin();
      const int64_t local = number == 0 ? item : item - products.ends[number - 1];
      products.linear(products.of[number], local, local + 1);
    }
  }
};

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
  Products products{kernel.linear, {}, {}};
  int64_t items = 0;
  for (size_t e = 0; e + 1 < sorted.begins.size(); ++e) {
    const int64_t first = sorted.begins[e], count = sorted.begins[e + 1] - first;
    if (count == 0) continue;
    const ItemShape shape = kernel.linear_item(element, count);
    products.of.push_back({
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
    items += num_items(products.of.back());
    products.ends.push_back(items);
  }
  share(items, threads, Products::run, products);
}

float value_at(const void* from, int64_t at, Element element) {
  if (element == Element::kFloat32) return static_cast<const float*>(from)[at];
  const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(from)[at]) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

void put_at(void* to, int64_t at, float value, Element element) {
  if (element == Element::kFloat32) {
    static_cast<float*>(to)[at] = value;
    return;
  }
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  static_cast<uint16_t*>(to)[at] = (value != value ? bits | 0x400000 : rounded) >> 16;
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

struct GatherArgs {
  const char* x;  // rows of `stride` bytes
  int64_t stride, bytes;
  const Sorted& sorted;
  char* out;
};

void gather_rows(const GatherArgs& args, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    const int64_t token = args.sorted.choices[row] / args.sorted.top_k;
    std::memcpy(args.out + row * args.bytes, args.x + token * args.stride, args.bytes);
  }
}

// Sums of a token's rows by their weights, in float32, rounded once.
struct SumArgs {
  const void* rows;       // [rows, size] in the order of experts
  const int64_t* row_of;  // [tokens * top_k]
  const float* weights;   // [tokens, top_k]
  void* out;              // [tokens, size]
  int64_t size, top_k;
  Element element;
};

void sum_tokens(const SumArgs& args, int64_t first, int64_t last) {
  std::vector<float> sums(args.size);
  for (int64_t token = first; token < last; ++token) {
    std::fill(sums.begin(), sums.end(), 0.0f);
    for (int64_t choice = token * args.top_k; choice < (token + 1) * args.top_k; ++choice) {
      const float weight = args.weights[choice];
      const int64_t row = args.row_of[choice] * args.size;
      for (int64_t i = 0; i < args.size; ++i) sums[i] += weight * value_at(args.rows, row + i, args.element);
    }
    for (int64_t i = 0; i < args.size; ++i) put_at(args.out, token * args.size + i, sums[i], args.element);
  }
}

Tensor matrix(const Tensor& like, int64_t rows, int64_t columns) {
  const int64_t shape[] = {rows, columns};
  return torch::stable::new_empty(like, torch::headeronly::IntHeaderOnlyArrayRef(shape, 2));
}

Tensor fused_experts(const Tensor& x, const Tensor& w13, const Tensor& w2, const Tensor& topk_weights,
                     const Tensor& topk_ids, const std::optional<Tensor>& w13_bias,
                     const std::optional<Tensor>& w2_bias, double swiglu_alpha, std::optional<double> swiglu_limit) {
  const Element element = element_of(x, "x");
  STD_TORCH_CHECK(x.dim() == 2 && w13.dim() == 3, "x is no matrix, or w13 no stack of matrices");
  const int64_t tokens = x.size(0), hidden = x.size(1), experts = w13.size(0), inner = w13.size(1) / 2;
  const Stack gate_up = stack_of(w13, w13_bias, experts, element, "w13");
  const Stack down = stack_of(w2, w2_bias, experts, element, "w2");
  STD_TORCH_CHECK(gate_up.size == hidden && gate_up.features == 2 * inner && down.size == inner &&
                      down.features == hidden,
                  "x of ", hidden, " features, w13 of ", gate_up.features, " by ", gate_up.size, " and w2 of ",
                  down.features, " by ", down.size, " do not fit together");
  STD_TORCH_CHECK(topk_ids.dim() == 2 && topk_ids.size(0) == tokens && topk_ids.is_contiguous() &&
                      topk_ids.scalar_type() == ScalarType::Long,
                  "topk_ids is no dense int64 matrix of ", tokens, " rows");
  STD_TORCH_CHECK(topk_weights.numel() == topk_ids.numel() && topk_weights.is_contiguous() &&
                      topk_weights.scalar_type() == ScalarType::Float,
                  "topk_weights is no dense float32 matrix like topk_ids");
  const Sorted sorted(topk_ids, experts);
  const int64_t num_rows = sorted.rows(), bytes = bytes_of(element);
  const int64_t threads = num_rows * inner * hidden < kSharedWork ? 1 : num_threads();
  const int64_t few = num_rows * hidden < kSharedElements ? 1 : threads;
  Rows rows(x);
  const int64_t stride = rows.at_one_distance() * bytes;
  Tensor sorted_x = matrix(x, num_rows, hidden), joined = matrix(x, num_rows, 2 * inner);
  Tensor activated = matrix(x, num_rows, inner), results = matrix(x, num_rows, hidden), out = matrix(x, tokens, hidden);
  const GatherArgs gathered{static_cast<const char*>(rows.data()), stride, hidden * bytes, sorted,
                            static_cast<char*>(sorted_x.mutable_data_ptr())};
  share(num_rows, few, gather_rows, gathered);
  multiply(sorted, gate_up, sorted_x.data_ptr(), joined.mutable_data_ptr(), element, threads);
  if (swiglu_limit.has_value()) {
    const ClampedArgs args{joined.data_ptr(), activated.mutable_data_ptr(), inner, static_cast<float>(swiglu_alpha),
                           static_cast<float>(*swiglu_limit), element};
    share(num_rows, threads, clamped_rows, args);
  } else {
    const GatedArgs args{Rows(joined).places(), activated.mutable_data_ptr(), inner, element};
    share(num_rows, num_rows * inner < kSharedElements ? 1 : threads, kernels().silu_and_mul, args);
  }
  multiply(sorted, down, activated.data_ptr(), results.mutable_data_ptr(), element, threads);
  std::vector<int64_t> row_of(num_rows);
  for (int64_t row = 0; row < num_rows; ++row) row_of[sorted.choices[row]] = row;
  const SumArgs sums{results.data_ptr(), row_of.data(), static_cast<const float*>(topk_weights.data_ptr()),
                     out.mutable_data_ptr(), hidden, sorted.top_k, element};
  share(tokens, few, sum_tokens, sums);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(trunnion_cpu, library) {
  library.def(
      "fused_experts(Tensor x, Tensor w13, Tensor w2, Tensor topk_weights, Tensor topk_ids, Tensor? w13_bias=None,"
      " Tensor? w2_bias=None, float swiglu_alpha=1.0, float? swiglu_limit=None) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(trunnion_cpu, CPU, library) { library.impl("fused_experts", TORCH_BOX(&fused_experts)); }

}  // namespace trunnion_cpu
