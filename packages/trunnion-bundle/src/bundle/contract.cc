#include "bundle/contract.h"

#include <algorithm>

namespace trunnion::bundle {
namespace {

ModuleSpec read_module(const JsonNode& node) {
  node.expect_keys({"inputs", "outputs", "batch", "symbols"});
  ModuleSpec module;
  module.json = node.raw();
  for (const JsonNode& item : node.at("inputs").items(1, 64)) module.inputs.push_back(read_tensor(item, "pad"));
  for (const JsonNode& item : node.at("outputs").items(1, 64)) module.outputs.push_back(read_tensor(item, ""));
  const JsonNode batch = node.at("batch");
  if (!batch.is_null()) {
    batch.expect_keys({"min", "max"});
    Bounds bounds;
    bounds.min = batch.at("min").integer(1, 1);
    bounds.max = batch.at("max").integer(1, kMaxSize);
    module.batch = bounds;
  }
  module.symbols = read_symbols(node.at("symbols"));
  for (const auto* tensors : {&module.inputs, &module.outputs}) {
    for (const TensorSpec& tensor : *tensors) {
      if ((tensor.batch_axis >= 0) != module.batch.has_value()) {
        throw BundleError(node.place() + ": \"" + tensor.name +
                          "\" must have a batch axis exactly where the module has a batch");
      }
      for (const Dim& dim : tensor.dims) {
        if (dim.size == 0 && !dim.is_batch() && !module.symbols.contains(dim.symbol)) {
          throw BundleError(node.place() + ": \"" + tensor.name + "\" has unknown symbol \"" + dim.symbol + "\"");
        }
      }
    }
  }
  return module;
}

// A lowering's own keys are its engine's to check; here: that it is one of ours and has every module.
Lowering read_lowering(const std::string& platform, const JsonNode& node, const Contract& contract) {
  Lowering lowering{.platform = platform, .engine = node.at("engine").string(64), .json = node.raw()};
  node.at("engine").choice({"aoti", "pjrt", "sim"});
  const JsonNode modules = node.at("modules");
  for (const auto& [name, module] : contract.modules) modules.at(name);
  for (const auto& [name, module] : modules.members(1, 64)) {
    if (!contract.modules.contains(name)) throw BundleError(module.place() + " is no module of the bundle");
  }
  return lowering;
}

std::map<std::string, FileSpec> read_files(const JsonNode& node) {
  std::map<std::string, FileSpec> files;
  for (const auto& [path, file] : node.members(0, 1000000)) {
    if (!is_path(path)) throw BundleError("files has the path \"" + path + "\", which may lead out of the bundle");
    file.expect_keys({"sha256", "size"});
    files[path] = FileSpec{file.at("sha256").sha256(), file.at("size").integer(0, INT64_MAX)};
  }
  return files;
}

void check_listed(const Contract& contract) {
  const auto expect = [&](const std::string& path, const std::string& place) {
    if (!contract.files.contains(path)) throw BundleError(place + " names " + path + ", which files does not list");
  };
  for (const std::string& path : contract.weights) expect(path, "weights");
  for (const auto& [name, signature] : contract.signatures) {
    for (const std::string& path : signature.warmup) expect(path, "signatures." + name + ".warmup");
    for (const std::string& path : signature.golden) expect(path, "signatures." + name + ".golden");
  }
}

}  // namespace

Contract read_contract(std::string_view text) {
  const nlohmann::json json = parse_strictly(text, "bundle.json");
  const JsonNode node(json, "bundle.json");
  if (node.at("format").string() != "trunnion-bundle") node.at("format").fail("\"trunnion-bundle\"");
  const JsonNode version = node.at("format_version");
  if (version.integer(INT64_MIN, INT64_MAX) != kFormatVersion) version.fail(std::to_string(kFormatVersion));
  node.expect_keys({"format", "format_version", "name", "description", "producer", "modules", "signatures",
                    "default_signature", "weights", "source", "lowerings", "files"});
  Contract contract;
  contract.name = node.at("name").string(64);
  contract.description = node.at("description").string();
  node.at("producer").expect_keys({"framework", "framework_version", "tool_version"});
  contract.framework = node.at("producer").at("framework").string(64);
  for (const auto& [name, module] : node.at("modules").members(1, 64)) {
    if (!is_name(name)) throw BundleError(module.place() + ": a module cannot have this name");
    contract.modules.emplace(name, read_module(module));
  }
  for (const auto& [name, signature] : node.at("signatures").members(1, 64)) {
    if (!is_name(name)) throw BundleError(signature.place() + ": a signature cannot have this name");
    contract.signatures.emplace(name, read_signature(name, signature, contract.modules));
  }
  contract.default_signature = node.at("default_signature").name();
  if (!contract.signatures.contains(contract.default_signature)) node.at("default_signature").fail("a signature");
  for (const JsonNode& path : node.at("weights").items(0, 100000)) contract.weights.push_back(path.path());
  for (const auto& [platform, lowering] : node.at("lowerings").members(1, 64)) {
    contract.lowerings.emplace(platform, read_lowering(platform, lowering, contract));
  }
  contract.files = read_files(node.at("files"));
  check_listed(contract);
  return contract;
}

}  // namespace trunnion::bundle
