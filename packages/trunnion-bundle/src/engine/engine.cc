#include "engine/engine.h"

#include <dlfcn.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "bundle/errors.h"

namespace trunnion::bundle {
namespace {

using ErrorText = std::array<char, 1024>;

const trn_engine_api& api_of(void* library, const std::string& path) {
  const auto get = reinterpret_cast<trn_engine_get_api_fn>(dlsym(library, "trn_engine_get_api"));
  if (get == nullptr) throw EngineRefused(path + " exports no trn_engine_get_api");
  const trn_engine_api* api = get();
  if (api->abi_version != TRN_ENGINE_ABI_VERSION || api->struct_size != sizeof(trn_engine_api)) {
    throw EngineRefused(path + " has version " + std::to_string(api->abi_version) +
                        " of the engines' interface, this program has " + std::to_string(TRN_ENGINE_ABI_VERSION));
  }
  return *api;
}

// What an engine's build has put beside it for who cannot load it: engine_NAME.needs.txt, one line.
std::string needs_of(const std::string& library) {
  std::ifstream file(std::filesystem::path(library).replace_extension(".needs.txt"));
  std::string line;
  return std::getline(file, line) ? "; it needs " + line : "";
}

class LoadedEngine final : public Engine {
 public:
  LoadedEngine(const trn_engine_api& api, const EngineOptions& options) : api_(api) {
    std::vector<const char*> weights;
    for (const std::string& path : options.weights) weights.push_back(path.c_str());
    const trn_engine_options given{.struct_size = sizeof(trn_engine_options),
                                   .bundle = options.bundle.c_str(),
                                   .lowering = options.lowering.c_str(),
                                   .module = options.module.c_str(),
                                   .contract = options.contract.c_str(),
                                   .weights = weights.data(),
                                   .num_weights = static_cast<int32_t>(weights.size()),
                                   .num_runners = options.num_runners,
                                   .settings = options.settings.c_str()};
    ErrorText error{};
    if (api_.open(&given, &engine_, error.data(), error.size()) != TRN_ENGINE_OK) {
      throw EngineRefused("engine " + std::string(api_.name) + ": " + error.data());
    }
  }
  ~LoadedEngine() override { api_.close(engine_); }
  LoadedEngine(const LoadedEngine&) = delete;
  LoadedEngine& operator=(const LoadedEngine&) = delete;

  void infer(int runner, std::span<const trn_engine_tensor> inputs,
             std::span<const trn_engine_tensor> outputs) override {
    ErrorText error{};
    const auto status =
        api_.infer(engine_, runner, inputs.data(), static_cast<int32_t>(inputs.size()), outputs.data(),
                   static_cast<int32_t>(outputs.size()), error.data(), error.size());
    if (status == TRN_ENGINE_REFUSED) throw InvalidRequest(error.data());
    if (status != TRN_ENGINE_OK) throw EngineFailed("engine " + std::string(api_.name) + ": " + error.data());
  }

  bool is_simulated() const override { return api_.is_simulated != 0; }

 private:
  const trn_engine_api& api_;
  trn_engine* engine_ = nullptr;
};

}  // namespace

std::unique_ptr<Engine> open_engine(const std::string& library, const EngineOptions& options) {
  // Never closed: frameworks do not survive being unloaded.
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw EngineRefused(std::string("the engine cannot be loaded: ") + dlerror() + needs_of(library));
  return std::make_unique<LoadedEngine>(api_of(handle, library), options);
}

}  // namespace trunnion::bundle
