// Signatures of a contract: what may be asked, its steps and its serving policy.
#include <algorithm>
#include <set>

#include "bundle/contract.h"

namespace trunnion::bundle {
namespace {

StepSpec read_step(const JsonNode& node, std::set<std::string>& values) {
  node.expect_keys({"op", "scope", "inputs", "outputs", "parameters"});
  StepSpec step{.op = node.at("op").string(64)};
  node.at("op").choice({"module", "cast", "clip", "hash_mod", "normalize", "pad", "mask", "pool", "l2_normalize",
                        "sigmoid", "softmax", "top_k", "word_piece", "plugin"});
  step.is_request = node.at("scope").choice({"request", "batch"}) == 0;
  for (const JsonNode& item : node.at("inputs").items(1, 64)) {
    step.inputs.push_back(item.name());
    if (!values.contains(step.inputs.back())) item.fail("a value that an earlier step makes, or an input");
  }
  for (const JsonNode& item : node.at("outputs").items(1, 64)) {
    step.outputs.push_back(item.name());
    if (!values.insert(step.outputs.back()).second) item.fail("a name that is not taken");
  }
  if (!node.at("parameters").raw().is_object()) node.at("parameters").fail("an object");
  step.parameters = node.at("parameters").raw();
  return step;
}

// Which of request and batch may follow which; `is_request` of all steps of scope request.
void check_scopes(const SignatureSpec& signature, const std::string& place) {
  bool after_module = false, seen_batch = false, seen_request = false;
  for (const StepSpec& step : signature.steps) {
    if (step.op == "module") {
      if (after_module) throw BundleError(place + " has two steps of op module, expected one");
      if (step.is_request) throw BundleError(place + ": op module has scope request, expected batch");
      after_module = true;
      continue;
    }
    if (!after_module && seen_batch && step.is_request) {
      throw BundleError(place + ": " + step.op + " of scope request follows one of scope batch");
    }
    if (after_module && seen_request && !step.is_request) {
      throw BundleError(place + ": " + step.op + " of scope batch follows one of scope request");
    }
    seen_batch = seen_batch || (!after_module && !step.is_request);
    seen_request = seen_request || (after_module && step.is_request);
  }
  if (!after_module) throw BundleError(place + " has no step of op module");
}

void check_names(const std::vector<TensorSpec>& tensors, const std::string& place) {
  std::set<std::string> names;
  for (const TensorSpec& tensor : tensors) {
    if (!names.insert(tensor.name).second) throw BundleError(place + ": \"" + tensor.name + "\" comes twice");
  }
}

}  // namespace

BatchingSpec read_batching(const JsonNode& node, const ModuleSpec& module) {
  node.expect_keys({"mode", "allowed_sizes", "padding", "max_delay_us", "max_queue_rows", "queue_timeout_us", "oversize",
                    "bypass_rows", "priority_levels", "default_priority", "runners"});
  BatchingSpec batching;
  BatchingOptions& options = batching.options;
  const bool merges = node.at("mode").choice({"merge", "alone"}) == 0;
  int64_t last = 0;
  const JsonNode sizes = node.at("allowed_sizes");
  for (const JsonNode& item : sizes.items(module.batch ? 1 : 0, module.batch ? 64 : 0)) {
    last = item.integer(last + 1, module.batch->max);
    options.allowed.push_back(last);
  }
  if (!module.batch) {
    if (merges) node.at("mode").fail("\"alone\", for there is no batch axis");
    // A request counts as one row.
    options.allowed.push_back(last = 1);
  }
  options.padding = static_cast<Padding>(node.at("padding").choice({"pad_up", "batch_down", "least_cost"}));
  options.max_delay = node.at("max_delay_us").integer(0, 10'000'000);
  options.max_queue_rows = node.at("max_queue_rows").integer(last, kMaxSize);
  const JsonNode timeout = node.at("queue_timeout_us");
  options.max_queue_delay = timeout.is_null() ? 0 : timeout.integer(1, 3'600'000'000);
  options.oversize = node.at("oversize").choice({"split", "refuse"}) == 0 ? Oversize::kSplit : Oversize::kRefuse;
  const JsonNode bypass = node.at("bypass_rows");
  options.bypass_rows = bypass.is_null() ? 0 : bypass.integer(1, last);
  if (!merges) options.bypass_rows = 1;
  options.num_priorities = static_cast<int32_t>(node.at("priority_levels").integer(1, 16));
  batching.default_priority = static_cast<int32_t>(node.at("default_priority").integer(1, options.num_priorities)) - 1;
  options.num_runners = static_cast<int32_t>(node.at("runners").integer(1, 64));
  return batching;
}

SignatureSpec read_signature(const std::string& name, const JsonNode& node,
                             const std::map<std::string, ModuleSpec>& modules) {
  node.expect_keys({"description", "inputs", "outputs", "symbols", "steps", "batching", "warmup", "golden"});
  SignatureSpec signature{.name = name, .description = node.at("description").string()};
  std::set<std::string> values;
  for (const JsonNode& item : node.at("inputs").items(1, 64)) {
    signature.inputs.push_back(read_tensor(item, "index_range"));
    values.insert(signature.inputs.back().name);
  }
  check_names(signature.inputs, node.place() + ".inputs");
  for (const JsonNode& item : node.at("outputs").items(1, 64)) signature.outputs.push_back(read_tensor(item, "tolerance"));
  check_names(signature.outputs, node.place() + ".outputs");
  signature.symbols = read_symbols(node.at("symbols"));
  for (const JsonNode& item : node.at("steps").items(1, 64)) {
    signature.steps.push_back(read_step(item, values));
    const StepSpec& step = signature.steps.back();
    if (step.op == "module") signature.module = JsonNode(step.parameters, item.place() + ".parameters").at("module").name();
  }
  check_scopes(signature, node.place() + ".steps");
  if (!modules.contains(signature.module)) {
    throw BundleError(node.place() + ".steps names module \"" + signature.module + "\", which the bundle does not have");
  }
  const ModuleSpec& module = modules.at(signature.module);
  signature.has_batch = module.batch.has_value();
  for (const auto* tensors : {&signature.inputs, &signature.outputs}) {
    for (const TensorSpec& tensor : *tensors) {
      if ((tensor.batch_axis >= 0) != signature.has_batch) {
        throw BundleError(node.place() + ": \"" + tensor.name + "\" must have a batch axis exactly where the module has one");
      }
      for (const Dim& dim : tensor.dims) {
        if (dim.size == 0 && !dim.is_batch() && !signature.symbols.contains(dim.symbol)) {
          throw BundleError(node.place() + ": \"" + tensor.name + "\" has unknown symbol \"" + dim.symbol + "\"");
        }
      }
    }
  }
  for (const TensorSpec& output : signature.outputs) {
    if (!values.contains(output.name)) {
      throw BundleError(node.place() + ": output \"" + output.name + "\" is no value of the steps");
    }
  }
  signature.batching = read_batching(node.at("batching"), module);
  for (const JsonNode& path : node.at("warmup").items(1, 64)) signature.warmup.push_back(path.path());
  for (const JsonNode& path : node.at("golden").items(1, 64)) signature.golden.push_back(path.path());
  return signature;
}

}  // namespace trunnion::bundle
