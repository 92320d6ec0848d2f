#include "steps/operators.h"

#include <set>

namespace trunnion::bundle {
namespace {

const std::set<std::string> kElementwise = {"cast", "clip", "hash_mod", "normalize", "mask", "sigmoid", "pad"};
const std::set<std::string> kReductions = {"pool", "l2_normalize", "softmax", "top_k"};

}  // namespace

int read_axis(const JsonNode& parameters, const ValueType& input) {
  const JsonNode axis = parameters.at("axis");
  const int found = static_cast<int>(axis.integer(0, input.num_dims() - 1));
  if (found == input.batch_axis) axis.fail("another axis than the batch's");
  return found;
}

std::vector<int64_t> read_lengths(const JsonNode& parameters) {
  std::vector<int64_t> lengths;
  for (const JsonNode& item : parameters.at("lengths").items(1, 1000)) {
    lengths.push_back(item.integer(lengths.empty() ? 1 : lengths.back() + 1, kMaxSize));
  }
  return lengths;
}

Dim read_padded_dim(const JsonNode& parameters, const std::vector<int64_t>& lengths, const Symbols& symbols) {
  const JsonNode node = parameters.at("symbol");
  if (node.is_null() && lengths.size() == 1) return Dim{.size = lengths[0], .symbol = ""};
  const auto found = node.is_null() ? symbols.end() : symbols.find(node.name());
  if (found == symbols.end() || found->second.min != lengths.front() || found->second.max != lengths.back()) {
    node.fail("a symbol of the signature from " + std::to_string(lengths.front()) + " to " + std::to_string(lengths.back()));
  }
  return Dim{.size = 0, .symbol = found->first};
}

Operator make_operator(const StepSpec& step, std::span<const ValueType> inputs, const std::string& place,
                       const OperatorContext& context) {
  const JsonNode parameters(step.parameters, place + ".parameters");
  if (step.op == "plugin") return make_plugin(step, inputs, parameters, context);
  const bool takes_mask = step.op == "pool" && inputs.size() == 2;
  if (inputs.size() != 1 && !takes_mask) {
    throw BundleError(place + ": " + step.op + " has " + std::to_string(inputs.size()) + " inputs, expected 1");
  }
  if (step.op == "word_piece") return make_word_piece(step, inputs, parameters, context);
  if (inputs[0].dtype == Dtype::kBytes && step.op != "hash_mod") {
    throw BundleError(place + ": " + step.op + " takes no BYTES");
  }
  if (kElementwise.contains(step.op)) return make_elementwise(step, inputs, parameters, context);
  if (kReductions.contains(step.op)) return make_reduction(step, inputs, parameters);
  throw BundleError(place + ": this server does not have the operator " + step.op);
}

}  // namespace trunnion::bundle
