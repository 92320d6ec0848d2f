// What products of experts share: rows in the order of their experts, whose weights are read once for all of them.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "isa.h"
#include "items.h"
#include "scratch.h"
#include "tensors.h"
#include "threads.h"

namespace trunnion_cpu {

constexpr int64_t kSharedElements = 1 << 15;  // below which waking others costs more than it saves

inline int64_t bytes_of(Element element) { return element == Element::kFloat32 ? 4 : 2; }

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
template <class Args>
struct Products {
  void (*linear)(const Args& args, int64_t first, int64_t last);
  std::vector<Args> of = {};
  std::vector<int64_t> ends = {};

  void add(const Args& args) {
    of.push_back(args);
    ends.push_back((ends.empty() ? 0 : ends.back()) + num_items(args));
  }

  void run_all(int64_t threads) const { share(ends.empty() ? 0 : ends.back(), threads, run, *this); }

  static void run(const Products& products, int64_t first, int64_t last) {
    for (int64_t item = first; item < last; ++item) {
      const int64_t number = std::upper_bound(products.ends.begin(), products.ends.end(), item) - products.ends.begin();
      const int64_t local = number == 0 ? item : item - products.ends[number - 1];
      products.linear(products.of[number], local, local + 1);
    }
  }
};

inline float value_at(const void* from, int64_t at, Element element) {
  if (element == Element::kFloat32) return static_cast<const float*>(from)[at];
  const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(from)[at]) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline void put_at(void* to, int64_t at, float value, Element element) {
  if (element == Element::kFloat32) {
    static_cast<float*>(to)[at] = value;
    return;
  }
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  static_cast<uint16_t*>(to)[at] = (value != value ? bits | 0x400000 : rounded) >> 16;
}

struct GatherArgs {
  const char* x;  // rows of `stride` bytes
  int64_t stride, bytes;
  const Sorted& sorted;
  char* out;
};

inline void gather_rows(const GatherArgs& args, int64_t first, int64_t last) {
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

inline void sum_tokens(const SumArgs& args, int64_t first, int64_t last) {
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

inline Tensor matrix(const Tensor& like, int64_t rows, int64_t columns) {
  const int64_t shape[] = {rows, columns};
  return torch::stable::new_empty(like, torch::headeronly::IntHeaderOnlyArrayRef(shape, 2));
}

// Of tokens that were sent to experts: gate_up and down are called as (sorted, rows, out, threads), activate as (joined
// [rows, 2 * inner], activated [rows, inner], threads).
template <class GateUp, class Activate, class Down>
Tensor run_experts(const Tensor& x, int64_t experts, int64_t inner, const Tensor& topk_weights, const Tensor& topk_ids,
                   const GateUp& gate_up, const Activate& activate, const Down& down) {
  using torch::headeronly::ScalarType;
  const Element element = element_of(x, "x");
  const int64_t tokens = x.size(0), hidden = x.size(1);
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
  gate_up(sorted, sorted_x.data_ptr(), joined.mutable_data_ptr(), threads);
  activate(joined, activated, threads);
  down(sorted, activated.data_ptr(), results.mutable_data_ptr(), threads);
  std::vector<int64_t> row_of(num_rows);
  for (int64_t row = 0; row < num_rows; ++row) row_of[sorted.choices[row]] = row;
  const SumArgs sums{results.data_ptr(), row_of.data(), static_cast<const float*>(topk_weights.data_ptr()),
                     out.mutable_data_ptr(), hidden, sorted.top_k, element};
  share(tokens, few, sum_tokens, sums);
  return out;
}

// silu(gate) * up
inline void activate_rows(const Tensor& joined, Tensor& activated, int64_t threads) {
  const int64_t inner = activated.size(1), elements = activated.numel();
  const GatedArgs args{Rows(joined).places(), activated.mutable_data_ptr(), inner, element_of(joined, "x")};
  share(activated.size(0), elements < kSharedElements ? 1 : threads, kernels().silu_and_mul, args);
}

}  // namespace trunnion_cpu
