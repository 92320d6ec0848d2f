// Operators that treat each element by itself, and padding of an axis.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "steps/elements.h"
#include "steps/operators.h"

namespace trunnion::bundle {
namespace {

using Inputs = std::span<const Tensor* const>;

// An operator of one output, which has the input's dims.
template <typename Compute>
Operator elementwise(ValueType output, Compute compute) {
  const Dtype dtype = output.dtype;
  return Operator{{std::move(output)}, [dtype, compute](Inputs inputs) {
                    Tensor result = make_tensor(dtype, inputs[0]->dims);
                    compute(*inputs[0], result, count_of(result.dims));
                    std::vector<Tensor> results;
                    results.push_back(std::move(result));
                    return results;
                  }};
}

template <typename Function>
Operator scalar_function(ValueType output, Function function) {
  return elementwise(std::move(output), [function](const Tensor& x, Tensor& y, int64_t count) {
    for (int64_t i = 0; i < count; ++i) store(y, i, function(load(x, i)));
  });
}

// Whether the integers of `range` are integers of `dtype`.
bool holds(Dtype dtype, const IndexRange& range) {
  bool all = is_integer(dtype);
  visit_type(dtype, [&](auto zero) {
    using Element = decltype(zero);
    if constexpr (std::is_integral_v<Element>) {
      all = all && std::in_range<Element>(range.min);
      for (const int64_t bound : range.below) all = all && std::in_range<Element>(bound - 1);
    }
  });
  return all;
}

Operator make_cast(ValueType input, const JsonNode& parameters) {
  parameters.expect_keys({"dtype"});
  const auto dtype = dtype_of(parameters.at("dtype").string(16));
  if (!dtype || *dtype == Dtype::kBytes) parameters.at("dtype").fail(dtype_choices());
  // A range survives where no value of it can change.
  if (input.range && !holds(*dtype, *input.range)) input.range.reset();
  input.dtype = *dtype;
  return scalar_function(std::move(input), [](Scalar x) { return x; });
}

Operator make_clip(ValueType input, const JsonNode& parameters) {
  parameters.expect_keys({"min", "max"});
  const JsonNode low = parameters.at("min"), high = parameters.at("max");
  if (low.is_null() && high.is_null()) low.fail("min or max to be a number");
  const bool integral = is_integer(input.dtype);
  const auto bound = [&](const JsonNode& node, Scalar otherwise) -> Scalar {
    if (node.is_null()) return otherwise;
    return integral ? static_cast<Scalar>(node.integer(INT64_MIN, INT64_MAX)) : node.number();
  };
  const Scalar min = bound(low, -HUGE_VALL), max = bound(high, HUGE_VALL);
  input.range.reset();
  if (integral && !low.is_null() && !high.is_null()) {
    input.range = IndexRange{low.integer(INT64_MIN, INT64_MAX), {high.integer(INT64_MIN, INT64_MAX - 1) + 1}};
  }
  return scalar_function(std::move(input),
                         [=](Scalar x) { return std::isnan(x) ? x : std::min(std::max(x, min), max); });
}

uint64_t mixed(uint64_t value, uint64_t seed) {
  uint64_t z = value + (seed + 1) * 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

uint64_t fnv1a(const std::string& bytes) {
  uint64_t hash = 0xCBF29CE484222325U;
  for (const char byte : bytes) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001B3U;
  return hash;
}

Operator make_hash_mod(ValueType input, const JsonNode& parameters) {
  parameters.expect_keys({"rows", "seed"});
  if (input.dtype != Dtype::kBytes && !is_integer(input.dtype)) {
    throw BundleError(parameters.place() + ": hash_mod takes integers or BYTES, not " + name_of(input.dtype));
  }
  const auto seed = static_cast<uint64_t>(parameters.at("seed").integer(0, INT64_MAX));
  std::vector<int64_t> rows;
  if (parameters.at("rows").is_array()) {
    for (const JsonNode& item : parameters.at("rows").items(1, 1000000)) rows.push_back(item.integer(1, kMaxSize));
  } else {
    rows.push_back(parameters.at("rows").integer(1, kMaxSize));
  }
  input.dtype = Dtype::kInt64;
  input.range = IndexRange{0, rows};
  return elementwise(std::move(input), [rows, seed](const Tensor& x, Tensor& y, int64_t count) {
    const auto num_rows = std::ssize(rows);
    if (num_rows > 1 && (x.dims.empty() || x.dims.back() != num_rows)) {
      throw InvalidRequest("the last axis is not the " + std::to_string(num_rows) + " that hash_mod has rows for");
    }
    for (int64_t i = 0; i < count; ++i) {
      uint64_t value = 0;
      if (x.dtype == Dtype::kBytes) {
        value = fnv1a(x.strings[static_cast<size_t>(i)]);
      } else {
        visit_type(x.dtype, [&](auto zero) {
          value = static_cast<uint64_t>(static_cast<int64_t>(x.as<decltype(zero)>()[static_cast<size_t>(i)]));
        });
      }
      const auto modulus = static_cast<uint64_t>(rows[static_cast<size_t>(i % num_rows)]);
      y.as<int64_t>()[i] = static_cast<int64_t>(mixed(value, seed) % modulus);
    }
  });
}

Operator make_normalize(ValueType input, const JsonNode& parameters) {
  parameters.expect_keys({"axis", "mean", "std"});
  const auto axis = static_cast<size_t>(read_axis(parameters, input));
  const auto read = [&](const char* key) {
    std::vector<float> values;
    for (const JsonNode& item : parameters.at(key).items(1, 1000000)) values.push_back(static_cast<float>(item.number()));
    return values;
  };
  const std::vector<float> mean = read("mean"), std = read("std");
  for (const float value : std) {
    if (!(value > 0)) parameters.at("std").fail("numbers above 0");
  }
  input.dtype = Dtype::kFp32;
  input.range.reset();
  return elementwise(std::move(input), [=](const Tensor& x, Tensor& y, int64_t count) {
    const int64_t size = x.dims[axis];
    for (const auto* values : {&mean, &std}) {
      if (std::ssize(*values) != 1 && std::ssize(*values) != size) {
        throw InvalidRequest("axis " + std::to_string(axis) + " has " + std::to_string(size) + " positions, normalize has " +
                             std::to_string(values->size()));
      }
    }
    int64_t inner = 1;
    for (size_t i = axis + 1; i < x.dims.size(); ++i) inner *= x.dims[i];
    for (int64_t i = 0; i < count; ++i) {
      const auto position = static_cast<size_t>(i / inner % size);
      const float m = mean[mean.size() == 1 ? 0 : position], s = std[std.size() == 1 ? 0 : position];
      y.as<float>()[i] = (static_cast<float>(load(x, i)) - m) / s;
    }
  });
}

Operator make_mask(ValueType input, const JsonNode& parameters) {
  parameters.expect_keys({"value", "dtype"});
  const int64_t value = parameters.at("value").integer(INT64_MIN, INT64_MAX);
  parameters.at("dtype").choice({"INT64", "INT32", "BOOL", "FP32"});
  input.dtype = *dtype_of(parameters.at("dtype").string());
  input.range.reset();
  if (is_integer(input.dtype)) input.range = IndexRange{0, {2}};
  return scalar_function(std::move(input), [value](Scalar x) -> Scalar { return x != static_cast<Scalar>(value); });
}

Operator make_sigmoid(ValueType input, const JsonNode& parameters) {
  parameters.expect_keys({});
  if (input.dtype != Dtype::kFp32 && input.dtype != Dtype::kFp64) {
    throw BundleError(parameters.place() + ": sigmoid takes FP32 or FP64, not " + name_of(input.dtype));
  }
  return scalar_function(std::move(input), [](Scalar x) -> Scalar { return 1 / (1 + std::exp(-static_cast<double>(x))); });
}

Operator make_pad(const StepSpec& step, ValueType input, const JsonNode& parameters, const OperatorContext& context) {
  parameters.expect_keys({"axis", "lengths", "value", "symbol"});
  if (!step.is_request) throw BundleError(parameters.place() + ": pad has scope batch, expected request");
  const auto axis = static_cast<size_t>(read_axis(parameters, input));
  const std::vector<int64_t> lengths = read_lengths(parameters);
  const double value = parameters.at("value").number();
  input.dims[axis] = read_padded_dim(parameters, lengths, context.symbols);
  if (input.range) {
    const auto element = static_cast<int64_t>(value);
    input.range->min = std::min(input.range->min, element);
    for (int64_t& bound : input.range->below) bound = std::max(bound, element + 1);
  }
  const auto run = [axis, lengths, value](Inputs inputs) {
    const Tensor& x = *inputs[0];
    const auto fitting = std::lower_bound(lengths.begin(), lengths.end(), x.dims[axis]);
    if (fitting == lengths.end()) {
      throw InvalidRequest("axis " + std::to_string(axis) + " has " + std::to_string(x.dims[axis]) +
                           " positions, at most " + std::to_string(lengths.back()) + " are allowed");
    }
    std::vector<int64_t> dims = x.dims;
    dims[axis] = *fitting;
    std::vector<Tensor> results;
    results.push_back(make_tensor(x.dtype, std::move(dims)));
    Tensor& y = results[0];
    const int64_t count = count_of(y.dims);
    for (int64_t i = 0; i < count; ++i) store(y, i, value);
    copy_rows(x, 0, y, 0, x.dims[axis], static_cast<int>(axis));
    return results;
  };
  return Operator{{std::move(input)}, run};
}

}  // namespace

Operator make_elementwise(const StepSpec& step, std::span<const ValueType> inputs, const JsonNode& parameters,
                          const OperatorContext& context) {
  const ValueType& input = inputs[0];
  if (step.op == "cast") return make_cast(input, parameters);
  if (step.op == "clip") return make_clip(input, parameters);
  if (step.op == "hash_mod") return make_hash_mod(input, parameters);
  if (step.op == "normalize") return make_normalize(input, parameters);
  if (step.op == "mask") return make_mask(input, parameters);
  if (step.op == "sigmoid") return make_sigmoid(input, parameters);
  return make_pad(step, input, parameters, context);
}

}  // namespace trunnion::bundle
