// Operators that read several elements of a row at once: along one axis.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "steps/elements.h"
#include "steps/operators.h"

namespace trunnion::bundle {
namespace {

using Inputs = std::span<const Tensor* const>;

// A tensor as [outer, size, inner] around one axis.
struct Around {
  Around(const std::vector<int64_t>& dims, size_t axis) : size(dims[axis]) {
    for (size_t i = 0; i < axis; ++i) outer *= dims[i];
    for (size_t i = axis + 1; i < dims.size(); ++i) inner *= dims[i];
  }
  int64_t index(int64_t o, int64_t k, int64_t i) const { return (o * size + k) * inner + i; }
  int64_t outer = 1, size = 1, inner = 1;
};

void expect_float(const ValueType& input, const JsonNode& parameters, const std::string& op) {
  if (input.dtype == Dtype::kFp32 || input.dtype == Dtype::kFp64) return;
  throw BundleError(parameters.place() + ": " + op + " takes FP32 or FP64, not " + name_of(input.dtype));
}

enum class Pool { kMean, kSum, kMax, kFirst };

double pooled(const Tensor& x, const Tensor* mask, const Around& around, int64_t o, int64_t i, Pool kind) {
  double total = 0, most = -HUGE_VAL;
  int64_t count = 0;
  for (int64_t k = 0; k < around.size; ++k) {
    if (mask != nullptr && load(*mask, o * around.size + k) == 0) continue;
    const auto value = static_cast<double>(load(x, around.index(o, k, i)));
    if (kind == Pool::kFirst) return value;
    total += value;
    // A NaN stays the greatest once it is seen.
    if (std::isnan(value) || value > most) most = std::isnan(most) ? most : value;
    ++count;
  }
  if (kind == Pool::kSum) return total;
  if (count == 0) return 0;
  return kind == Pool::kMean ? total / static_cast<double>(count) : most;
}

Operator make_pool(std::span<const ValueType> inputs, const JsonNode& parameters) {
  parameters.expect_keys({"axis", "kind"});
  ValueType output = inputs[0];
  expect_float(output, parameters, "pool");
  const auto axis = static_cast<size_t>(read_axis(parameters, output));
  const auto kind = static_cast<Pool>(parameters.at("kind").choice({"mean", "sum", "max", "first"}));
  if (kind == Pool::kFirst && inputs.size() == 2) parameters.at("kind").fail("a kind that takes a mask");
  output.dims.erase(output.dims.begin() + static_cast<int64_t>(axis));
  if (static_cast<int>(axis) < output.batch_axis) --output.batch_axis;
  return Operator{{std::move(output)}, [axis, kind](Inputs given) {
                    const Tensor& x = *given[0];
                    const Tensor* mask = given.size() == 2 ? given[1] : nullptr;
                    const Around around(x.dims, axis);
                    if (mask != nullptr && count_of(mask->dims) != around.outer * around.size) {
                      throw InvalidRequest("the mask of pool has other dims than what it masks");
                    }
                    std::vector<Tensor> results;
                    results.push_back(make_tensor(x.dtype, dims_without(x.dims, static_cast<int>(axis))));
                    for (int64_t o = 0; o < around.outer; ++o) {
                      for (int64_t i = 0; i < around.inner; ++i) {
                        store(results[0], o * around.inner + i, pooled(x, mask, around, o, i, kind));
                      }
                    }
                    return results;
                  }};
}

// `row` computes the values of one line along the axis in place.
template <typename Row>
Operator along_axis(const ValueType& input, size_t axis, Row row) {
  return Operator{{input}, [axis, row](Inputs given) {
                    const Tensor& x = *given[0];
                    const Around around(x.dims, axis);
                    std::vector<Tensor> results;
                    results.push_back(make_tensor(x.dtype, x.dims));
                    std::vector<double> line(static_cast<size_t>(around.size));
                    for (int64_t o = 0; o < around.outer; ++o) {
                      for (int64_t i = 0; i < around.inner; ++i) {
                        for (int64_t k = 0; k < around.size; ++k) {
                          line[static_cast<size_t>(k)] = static_cast<double>(load(x, around.index(o, k, i)));
                        }
                        row(line);
                        for (int64_t k = 0; k < around.size; ++k) {
                          store(results[0], around.index(o, k, i), line[static_cast<size_t>(k)]);
                        }
                      }
                    }
                    return results;
                  }};
}

Operator make_l2_normalize(const ValueType& input, const JsonNode& parameters) {
  parameters.expect_keys({"axis", "epsilon"});
  expect_float(input, parameters, "l2_normalize");
  const double epsilon = parameters.at("epsilon").number();
  if (!(epsilon > 0)) parameters.at("epsilon").fail("a number above 0");
  const auto axis = static_cast<size_t>(read_axis(parameters, input));
  return along_axis(input, axis, [epsilon](std::vector<double>& line) {
    const double norm = std::sqrt(std::inner_product(line.begin(), line.end(), line.begin(), 0.0));
    for (double& value : line) value /= std::max(norm, epsilon);
  });
}

Operator make_softmax(const ValueType& input, const JsonNode& parameters) {
  parameters.expect_keys({"axis"});
  expect_float(input, parameters, "softmax");
  const auto axis = static_cast<size_t>(read_axis(parameters, input));
  return along_axis(input, axis, [](std::vector<double>& line) {
    if (line.empty()) return;
    const double most = *std::max_element(line.begin(), line.end());
    double total = 0;
    for (double& value : line) total += value = std::exp(value - most);
    for (double& value : line) value /= total;
  });
}

Operator make_top_k(const ValueType& input, const JsonNode& parameters) {
  parameters.expect_keys({"k"});
  if (input.num_dims() == 0 || input.batch_axis == input.num_dims() - 1) {
    throw BundleError(parameters.place() + ": top_k needs a last axis that is not the batch's");
  }
  const int64_t size = input.dims.back().size;
  if (size == 0) throw BundleError(parameters.place() + ": top_k needs one size of the last axis in all requests, not " + input.dims.back().symbol);
  const int64_t k = parameters.at("k").integer(1, size);
  ValueType values = input;
  values.dims.back().size = k;
  // Bounds by column do not survive a new order.
  values.range.reset();
  ValueType indices = values;
  indices.dtype = Dtype::kInt64;
  indices.range = IndexRange{0, {size}};
  return Operator{{values, indices}, [k, size](Inputs given) {
                    const Tensor& x = *given[0];
                    if (x.dims.back() != size) {
                      throw InvalidRequest("the last axis has " + std::to_string(x.dims.back()) + " positions, expected " + std::to_string(size));
                    }
                    std::vector<int64_t> dims = x.dims;
                    dims.back() = k;
                    std::vector<Tensor> results;
                    results.push_back(make_tensor(x.dtype, dims));
                    results.push_back(make_tensor(Dtype::kInt64, dims));
                    const int64_t rows = count_of(x.dims) / size;
                    std::vector<int64_t> order(static_cast<size_t>(size));
                    for (int64_t row = 0; row < rows; ++row) {
                      std::iota(order.begin(), order.end(), 0);
                      const auto before = [&](int64_t a, int64_t b) {
                        const Scalar left = load(x, row * size + a), right = load(x, row * size + b);
                        if (std::isnan(left) != std::isnan(right)) return std::isnan(left);
                        return left > right || (!(right > left) && a < b);
                      };
                      std::partial_sort(order.begin(), order.begin() + k, order.end(), before);
                      for (int64_t i = 0; i < k; ++i) {
                        store(results[0], row * k + i, load(x, row * size + order[static_cast<size_t>(i)]));
                        results[1].as<int64_t>()[row * k + i] = order[static_cast<size_t>(i)];
                      }
                    }
                    return results;
                  }};
}

}  // namespace

Operator make_reduction(const StepSpec& step, std::span<const ValueType> inputs, const JsonNode& parameters) {
  if (step.op == "pool") return make_pool(inputs, parameters);
  if (step.op == "l2_normalize") return make_l2_normalize(inputs[0], parameters);
  if (step.op == "softmax") return make_softmax(inputs[0], parameters);
  return make_top_k(inputs[0], parameters);
}

}  // namespace trunnion::bundle
