// The closed set of native operators of steps before and after the module; docs/format.md says what each computes.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "bundle/contract.h"
#include "tensor/tensor.h"

namespace trunnion::bundle {

// What is known of a value before any request: its dims follow from those of the request.
struct ValueType {
  Dtype dtype = Dtype::kFp32;
  int num_dims = 0;
  int batch_axis = -1;
  std::optional<IndexRange> range;
};

struct Operator {
  std::vector<ValueType> outputs;
  // Throws InvalidRequest where a request's sizes are at fault.
  std::function<std::vector<Tensor>(std::span<const Tensor* const> inputs)> run;
};

// `place` names the step in errors; assets lie in `folder`. Throws BundleError: wrong parameters, or an operator that this
// program does not have.
Operator make_operator(const StepSpec& step, std::span<const ValueType> inputs, const std::string& place,
                       const std::filesystem::path& folder);

// Parts of it, by what they do.
Operator make_elementwise(const StepSpec& step, std::span<const ValueType> inputs, const JsonNode& parameters);
Operator make_reduction(const StepSpec& step, std::span<const ValueType> inputs, const JsonNode& parameters);
Operator make_word_piece(const StepSpec& step, std::span<const ValueType> inputs, const JsonNode& parameters,
                         const std::filesystem::path& folder);

// The parameter `lengths`: ascending.
std::vector<int64_t> read_lengths(const JsonNode& parameters);
// The parameter `axis`, which is no batch axis.
int read_axis(const JsonNode& parameters, const ValueType& input);

}  // namespace trunnion::bundle
