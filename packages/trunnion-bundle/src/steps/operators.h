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

// What is known of a value before any request.
struct ValueType {
  Dtype dtype = Dtype::kFp32;
  std::vector<Dim> dims;
  int batch_axis = -1;
  std::optional<IndexRange> range;

  int num_dims() const { return static_cast<int>(std::ssize(dims)); }
};

// What an operator is made from beside its step and the types of its inputs.
struct OperatorContext {
  std::filesystem::path folder;  // of the bundle, where assets lie
  Symbols symbols;               // of the signature
  bool allows_plugins = false;
};

struct Operator {
  std::vector<ValueType> outputs;
  // Throws InvalidRequest where a request's sizes are at fault.
  std::function<std::vector<Tensor>(std::span<const Tensor* const> inputs)> run;
};

// `place` names the step in errors. Throws BundleError: wrong parameters, or an operator that this program does not have.
Operator make_operator(const StepSpec& step, std::span<const ValueType> inputs, const std::string& place,
                       const OperatorContext& context);

// Parts of it, by what they do.
Operator make_elementwise(const StepSpec& step, std::span<const ValueType> inputs, const JsonNode& parameters,
                          const OperatorContext& context);
Operator make_reduction(const StepSpec& step, std::span<const ValueType> inputs, const JsonNode& parameters);
Operator make_word_piece(const StepSpec& step, std::span<const ValueType> inputs, const JsonNode& parameters,
                         const OperatorContext& context);
Operator make_plugin(const StepSpec& step, std::span<const ValueType> inputs, const JsonNode& parameters,
                     const OperatorContext& context);

// The parameter `lengths`: ascending.
std::vector<int64_t> read_lengths(const JsonNode& parameters);
// The dim that `lengths` and the parameter `symbol` make: the only length, or a symbol of the signature with their ends.
Dim read_padded_dim(const JsonNode& parameters, const std::vector<int64_t>& lengths, const Symbols& symbols);
// The parameter `axis`, which is no batch axis.
int read_axis(const JsonNode& parameters, const ValueType& input);

}  // namespace trunnion::bundle
