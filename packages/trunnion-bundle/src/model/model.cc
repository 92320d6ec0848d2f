#include "model/model.h"

#include <algorithm>

#include "engine/engine_places.h"
#include "plugin/plugin.h"

namespace trunnion::bundle {
namespace {

// The order in which lowerings are tried; of several for processors the most demanding first.
std::pair<int, int64_t> rank_of(const Lowering& lowering) {
  const std::string& platform = lowering.platform;
  const auto starts = [&](const char* prefix) { return platform.rfind(prefix, 0) == 0; };
  if (starts("cuda-")) return {0, 0};
  if (starts("npu-")) return {1, 0};
  if (starts("cpu-")) {
    const auto isa = lowering.json.find("isa");
    return {2, isa == lowering.json.end() || !isa->is_array() ? 0 : -static_cast<int64_t>(isa->size())};
  }
  if (starts("pjrt-")) return {3, 0};
  return {lowering.engine == "sim" ? 5 : 4, 0};
}

bool is_compiled_at_load(const Lowering& lowering) {
  return lowering.engine == "pjrt" && lowering.json.value("program", "") == "mlir";
}

std::vector<const Lowering*> candidates(const Contract& contract, const std::string& asked) {
  std::vector<const Lowering*> found;
  for (const auto& [platform, lowering] : contract.lowerings) {
    // A simulation stands in for nothing: it is asked for, or all there is.
    const bool is_hidden = lowering.engine == "sim" && contract.lowerings.size() > 1;
    if (asked.empty() ? !is_hidden : platform == asked) found.push_back(&lowering);
  }
  std::stable_sort(found.begin(), found.end(), [](const Lowering* a, const Lowering* b) { return rank_of(*a) < rank_of(*b); });
  return found;
}

}  // namespace

Model::Model(std::string name, int64_t version, VerifiedBundle bundle)
    : name_(std::move(name)), version_(version), bundle_(std::move(bundle)) {}

std::shared_ptr<Model> Model::load(const std::string& name, int64_t version, const std::filesystem::path& folder,
                                   const LoadOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  std::shared_ptr<Model> model(new Model(name, version, verify_bundle(folder)));
  const auto verified = std::chrono::steady_clock::now();
  model->open(options);
  LoadTimes& times = model->times_;
  times.verify = std::chrono::duration<double>(verified - start).count();
  for (const auto& [signature, opened] : model->signatures_) times.warm += opened->warm_seconds();
  times.open = std::chrono::duration<double>(std::chrono::steady_clock::now() - verified).count() - times.warm;
  return model;
}

void Model::open(const LoadOptions& options) {
  std::string reasons;
  const auto pass_over = [&](const Lowering& lowering, const std::string& reason) {
    reasons += (reasons.empty() ? "" : "; ") + lowering.platform + ": " + reason;
  };
  for (const Lowering* lowering : candidates(contract(), options.platform)) {
    if (is_compiled_at_load(*lowering) && !options.allows_jit) {
      pass_over(*lowering, "it would be compiled here, which --no-jit forbids");
      continue;
    }
    try {
      open_on(*lowering, options);
      platform_ = lowering->platform;
      is_jit_ = is_compiled_at_load(*lowering);
      passed_over_ = reasons;
      return;
    } catch (const EngineRefused& error) {
      signatures_.clear();
      pass_over(*lowering, error.what());
    }
  }
  std::string choices;
  for (const auto& [platform, lowering] : contract().lowerings) choices += (choices.empty() ? "" : ", ") + platform;
  throw BundleError(reasons.empty() ? "the bundle has no lowering for platform " + options.platform + "; it has " + choices
                                    : "no lowering runs here: " + reasons);
}

void Model::open_on(const Lowering& lowering, const LoadOptions& options) {
  const std::string library = find_engine(lowering.engine, options.engines).string();
  for (const auto& [name, spec] : contract().signatures) {
    EngineOptions given{.bundle = bundle_.folder.string(), .lowering = lowering.json.dump(), .module = spec.module,
                        .contract = contract().modules.at(spec.module).json.dump(), .weights = {}, .num_runners = spec.batching.options.num_runners, .settings = options.settings};
    for (const std::string& path : contract().weights) given.weights.push_back((bundle_.folder / path).string());
    try {
      signatures_.emplace(name, std::make_unique<Signature>(contract(), spec, open_engine(library, given), bundle_.folder, options.allows_plugins));
    } catch (const InvalidRequest& error) {
      throw BundleError("signature " + name + ": its warm-up is refused: " + error.what());
    } catch (const PluginFailed& error) {
      throw BundleError("signature " + name + ": its warm-up failed: " + error.what());
    } catch (const EngineFailed& error) {
      throw BundleError("signature " + name + ": its warm-up failed: " + error.what());
    }
  }
}

Signature* Model::find(const std::string& signature) const {
  const auto found = signatures_.find(signature.empty() ? contract().default_signature : signature);
  return found == signatures_.end() ? nullptr : found->second.get();
}

bool Model::drain(std::chrono::milliseconds timeout) const {
  const auto end = std::chrono::steady_clock::now() + timeout;
  bool is_idle = true;
  for (const auto& [name, signature] : signatures_) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    is_idle = signature->drain(std::max(left, std::chrono::milliseconds(0))) && is_idle;
  }
  return is_idle;
}

std::string Model::metrics() const {
  const std::string labels = "model=\"" + name_ + "\",version=\"" + std::to_string(version_) + "\"";
  std::string text;
  for (const auto& [name, signature] : signatures_) text += signature->metrics(labels);
  return text;
}

}  // namespace trunnion::bundle
