// Tensors and symbols of a contract.
#include <algorithm>
#include <set>

#include "bundle/contract.h"

namespace trunnion::bundle {
namespace {

Dim read_dim(const JsonNode& node) {
  if (!node.is_string()) return Dim{.size = node.integer(1, kMaxSize), .symbol = ""};
  return Dim{.size = 0, .symbol = node.name()};
}

PadRule read_pad(const JsonNode& node, const TensorSpec& tensor) {
  const size_t kind = node.at("rule").choice({"zero", "repeat_row", "value"});
  PadRule rule{.kind = static_cast<PadRule::Kind>(kind), .value = 0};
  if (rule.kind == PadRule::Kind::kValue) {
    node.expect_keys({"rule", "value"});
    rule.value = node.at("value").number();
  } else {
    node.expect_keys({"rule"});
  }
  if (rule.kind != PadRule::Kind::kRepeatRow && tensor.index_range) {
    const auto lowest = *std::min_element(tensor.index_range->below.begin(), tensor.index_range->below.end());
    if (rule.value < static_cast<double>(tensor.index_range->min) || rule.value >= static_cast<double>(lowest)) {
      node.fail("a value in index_range");
    }
  }
  return rule;
}

}  // namespace

std::string text_of(const std::vector<Dim>& dims) {
  std::string text = "[";
  for (const Dim& dim : dims) text += (text.size() > 1 ? ", " : "") + (dim.size > 0 ? std::to_string(dim.size) : dim.symbol);
  return text + "]";
}

bool IndexRange::contains(const IndexRange& other) const {
  if (other.min < min) return false;
  if (below.size() == 1) {
    return std::all_of(other.below.begin(), other.below.end(), [&](int64_t bound) { return bound <= below[0]; });
  }
  for (size_t i = 0; i < below.size(); ++i) {
    if (other.below.size() != 1 && other.below.size() != below.size()) return false;
    if (other.below[other.below.size() == 1 ? 0 : i] > below[i]) return false;
  }
  return true;
}

IndexRange read_index_range(const JsonNode& node, const TensorSpec& tensor) {
  if (!is_integer(tensor.dtype)) node.fail("null, for the dtype has no index");
  node.expect_keys({"min", "below"});
  IndexRange range{.min = node.at("min").integer(INT64_MIN, INT64_MAX), .below = {}};
  const JsonNode below = node.at("below");
  if (below.is_array()) {
    const int64_t last = tensor.dims.empty() ? 0 : tensor.dims.back().size;
    for (const JsonNode& bound : below.items(1, 1000000)) range.below.push_back(bound.integer(INT64_MIN, INT64_MAX));
    if (std::ssize(range.below) != last) below.fail("one bound for each of the " + std::to_string(last) + " positions");
  } else {
    range.below.push_back(below.integer(INT64_MIN, INT64_MAX));
  }
  for (const int64_t bound : range.below) {
    if (bound <= range.min) below.fail("bounds above " + std::to_string(range.min));
  }
  return range;
}

void read_type(const JsonNode& node, bool takes_bytes, TensorSpec& tensor) {
  const auto dtype = dtype_of(node.at("dtype").string(16));
  if (!dtype || (*dtype == Dtype::kBytes && !takes_bytes)) node.at("dtype").fail(dtype_choices());
  tensor.dtype = *dtype;
  int batch_axis = -1;
  for (const JsonNode& item : node.at("dims").items(0, 8)) {
    tensor.dims.push_back(read_dim(item));
    if (!tensor.dims.back().is_batch()) continue;
    if (batch_axis >= 0) item.fail("\"batch\" once");
    batch_axis = static_cast<int>(std::ssize(tensor.dims)) - 1;
  }
  const JsonNode axis = node.at("batch_axis");
  tensor.batch_axis = axis.is_null() ? -1 : static_cast<int>(axis.integer(0, 7));
  if (tensor.batch_axis != batch_axis) axis.fail(batch_axis < 0 ? "null" : std::to_string(batch_axis));
}

// `kind_key`: what this tensor has beside the common keys: "index_range" and, of a module's input, "pad"; "tolerance"; or "".
TensorSpec read_tensor(const JsonNode& node, const char* kind_key) {
  const std::string kind = kind_key;
  if (kind == "pad") {
    node.expect_keys({"name", "dtype", "dims", "batch_axis", "index_range", "pad"});
  } else if (kind == "index_range") {
    node.expect_keys({"name", "dtype", "dims", "batch_axis", "index_range"});
  } else if (kind == "tolerance") {
    node.expect_keys({"name", "dtype", "dims", "batch_axis", "tolerance"});
  } else {
    node.expect_keys({"name", "dtype", "dims", "batch_axis"});
  }
  TensorSpec tensor{.name = node.at("name").name()};
  read_type(node, kind == "index_range", tensor);
  if (kind == "pad" || kind == "index_range") {
    const JsonNode range = node.at("index_range");
    if (!range.is_null()) tensor.index_range = read_index_range(range, tensor);
  }
  if (kind == "pad") {
    const JsonNode pad = node.at("pad");
    if (pad.is_null() != (tensor.batch_axis < 0)) pad.fail("a rule exactly where there is a batch axis");
    if (!pad.is_null()) tensor.pad = read_pad(pad, tensor);
  }
  if (kind == "tolerance") {
    const JsonNode tolerance = node.at("tolerance");
    tolerance.expect_keys({"absolute", "relative"});
    tensor.absolute = tolerance.at("absolute").number();
    tensor.relative = tolerance.at("relative").number();
    if (!(tensor.absolute >= 0) || !(tensor.relative >= 0)) tolerance.fail("numbers from 0");
  }
  return tensor;
}

Symbols read_symbols(const JsonNode& node) {
  Symbols symbols;
  for (const auto& [name, bounds] : node.members(0, 64)) {
    if (!is_name(name) || name == "batch") throw BundleError(bounds.place() + ": a symbol cannot have this name");
    bounds.expect_keys({"min", "max"});
    const int64_t min = bounds.at("min").integer(1, kMaxSize);
    symbols[name] = Bounds{min, bounds.at("max").integer(min, kMaxSize)};
  }
  return symbols;
}

}  // namespace trunnion::bundle
