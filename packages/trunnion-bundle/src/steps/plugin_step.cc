// The operator that a bundle brings itself: a plugin, and the checks of what it gives.
#include <map>
#include <memory>

#include "plugin/plugin.h"
#include "steps/element_checks.h"
#include "steps/operators.h"

namespace trunnion::bundle {
namespace {

#if defined(__x86_64__)
constexpr const char* kMachine = "linux-x86_64";
#elif defined(__aarch64__)
constexpr const char* kMachine = "linux-aarch64";
#else
constexpr const char* kMachine = "this machine";
#endif

std::filesystem::path library_of(const JsonNode& parameters, const std::filesystem::path& folder) {
  std::string choices, found;
  for (const auto& [machine, node] : parameters.at("libraries").members(1, 2)) {
    if (machine != "linux-x86_64" && machine != "linux-aarch64") {
      throw BundleError(node.place() + ": unknown machine; choices: linux-aarch64, linux-x86_64");
    }
    const std::string path = node.path();
    if (path.rfind("plugins/", 0) != 0) node.fail("a path under plugins/");
    choices += (choices.empty() ? "" : ", ") + machine;
    if (machine == kMachine) found = path;
  }
  if (found.empty()) throw BundleError(parameters.place() + ": the plugin has no library for " + kMachine + "; it has: " + choices);
  return folder / found;
}

std::vector<TensorSpec> read_outputs(const JsonNode& parameters, const Symbols& symbols) {
  std::vector<TensorSpec> outputs;
  for (const JsonNode& node : parameters.at("outputs").items(1, 64)) {
    node.expect_keys({"dtype", "dims", "batch_axis"});
    read_type(node, false, outputs.emplace_back());
    for (const Dim& dim : outputs.back().dims) {
      if (dim.size == 0 && !dim.is_batch() && !symbols.contains(dim.symbol)) node.at("dims").fail("integers, \"batch\" and symbols of the signature");
    }
  }
  const std::vector<JsonNode> ranges = parameters.at("index_ranges").items(outputs.size(), outputs.size());
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (!ranges[i].is_null()) outputs[i].index_range = read_index_range(ranges[i], outputs[i]);
  }
  return outputs;
}

// The batch and the symbols of one call: first those of the inputs, then what the plugin says.
class Sizes {
 public:
  Sizes(const std::vector<ValueType>& types, std::span<const Tensor* const> inputs, const Symbols& symbols) : symbols_(symbols) {
    for (size_t i = 0; i < types.size(); ++i) {
      for (size_t k = 0; k < types[i].dims.size(); ++k) {
        if (types[i].dims[k].size == 0) sizes_.emplace(types[i].dims[k].symbol, inputs[i]->dims[k]);
      }
    }
  }

  // Why an output cannot have these dims, or "".
  std::string problem(const TensorSpec& wanted, Dtype dtype, std::span<const int64_t> dims) {
    bool is_right = dtype == wanted.dtype && dims.size() == wanted.dims.size();
    for (size_t k = 0; is_right && k < dims.size(); ++k) is_right = fits(wanted.dims[k], dims[k]);
    if (is_right) return "";
    std::string text = "[";
    for (const int64_t size : dims) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
    const auto number = static_cast<int32_t>(dtype);
    const bool is_known = number >= TRN_DTYPE_BOOL && number <= TRN_DTYPE_BYTES;
    text = (is_known ? name_of(dtype) : "dtype " + std::to_string(number)) + std::string(" ") + text + "], the step declares ";
    text += name_of(wanted.dtype) + std::string(" ") + text_of(wanted.dims);
    for (const auto& [symbol, size] : sizes_) text += ", " + symbol + " " + std::to_string(size);
    return text;
  }

 private:
  bool fits(const Dim& dim, int64_t size) {
    if (dim.size > 0) return size == dim.size;
    const auto bounds = symbols_.find(dim.symbol);
    if (bounds != symbols_.end() && (size < bounds->second.min || size > bounds->second.max)) return false;
    return size >= 1 && sizes_.emplace(dim.symbol, size).first->second == size;
  }

  const Symbols& symbols_;
  std::map<std::string, int64_t> sizes_;
};

std::vector<Tensor> run(const Plugin& plugin, const std::vector<ValueType>& types, const std::vector<TensorSpec>& outputs,
                        const Symbols& symbols, std::span<const Tensor* const> inputs) {
  Sizes sizes(types, inputs, symbols);
  const auto check = [&](int32_t output, Dtype dtype, std::span<const int64_t> dims) {
    const std::string problem = sizes.problem(outputs[static_cast<size_t>(output)], dtype, dims);
    return problem.empty() ? "" : "output " + std::to_string(output) + " is " + problem;
  };
  std::vector<Tensor> results = plugin.run(inputs, static_cast<int32_t>(outputs.size()), check);
  for (size_t i = 0; i < results.size(); ++i) {
    if (const std::string problem = wrong_element(results[i], outputs[i].index_range); !problem.empty()) {
      throw PluginFailed("plugin " + plugin.title() + ": output " + std::to_string(i) + " " + problem);
    }
  }
  return results;
}

}  // namespace

Operator make_plugin(const StepSpec& step, std::span<const ValueType> inputs, const JsonNode& parameters,
                     const OperatorContext& context) {
  parameters.expect_keys({"libraries", "configuration", "outputs", "index_ranges"});
  const std::vector<TensorSpec> outputs = read_outputs(parameters, context.symbols);
  const std::filesystem::path path = library_of(parameters, context.folder);
  if (!context.allows_plugins) {
    throw BundleError(parameters.place() + ": " + path.filename().string() +
                      " is code of the bundle's author, which runs only where plugins are allowed (--allow-plugins)");
  }
  const auto plugin = std::make_shared<const Plugin>(path, parameters.at("configuration").string(kMaxSize));
  Operator made;
  for (const TensorSpec& output : outputs) made.outputs.push_back({output.dtype, output.dims, output.batch_axis, output.index_range});
  const std::vector<ValueType> types(inputs.begin(), inputs.end());
  made.run = [plugin, types, outputs, symbols = context.symbols, is_request = step.is_request](std::span<const Tensor* const> given) {
    try {
      return run(*plugin, types, outputs, symbols, given);
    } catch (const InvalidRequest& error) {
      // Who of a batch was refused is not known, so nobody is told to be at fault.
      if (is_request) throw;
      throw PluginFailed(error.what());
    }
  };
  return made;
}

}  // namespace trunnion::bundle
