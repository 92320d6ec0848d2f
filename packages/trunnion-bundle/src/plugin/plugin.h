// A plugin of a bundle, behind a class: opened with RTLD_LOCAL, its errors as exceptions that name it.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "tensor/tensor.h"
#include "trunnion_bundle/plugin.h"

namespace trunnion::bundle {

// A plugin failed, or gave what its step does not declare.
struct PluginFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Plugin {
 public:
  // What is wrong with dims of an output before it is made, or "".
  using Check = std::function<std::string(int32_t output, Dtype dtype, std::span<const int64_t> dims)>;

  // Throws BundleError: no library, another version of the interface, or a configuration that it refuses.
  Plugin(const std::filesystem::path& path, const std::string& configuration);
  ~Plugin();
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  // By several threads at once. Throws PluginFailed, or InvalidRequest where the plugin refuses what it is given.
  std::vector<Tensor> run(std::span<const Tensor* const> inputs, int32_t num_outputs, const Check& check) const;
  // As errors name it.
  const std::string& title() const { return title_; }

 private:
  const trn_plugin_api& api_;
  const std::string title_;
  trn_plugin* plugin_ = nullptr;
};

}  // namespace trunnion::bundle
