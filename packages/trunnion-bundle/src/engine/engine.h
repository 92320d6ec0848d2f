// An engine of another shared library, behind a class: opened with RTLD_LOCAL, its errors as exceptions.
#pragma once

#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "trunnion_bundle/engine.h"

namespace trunnion::bundle {

// The lowering cannot run on this machine.
struct EngineRefused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The model or its engine failed on a batch.
struct EngineFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct EngineOptions {
  std::string bundle, lowering, module, contract;
  std::vector<std::string> weights;
  int num_runners = 1;
  std::string settings = "{}";
};

class Engine {
 public:
  virtual ~Engine() = default;
  // Throws EngineFailed, or InvalidRequest where the lowering has nothing for these sizes.
  virtual void infer(int runner, std::span<const trn_engine_tensor> inputs,
                     std::span<const trn_engine_tensor> outputs) = 0;
  virtual bool is_simulated() const = 0;
};

// `library` is the path of engine_NAME.so. Throws EngineRefused with the reason.
std::unique_ptr<Engine> open_engine(const std::string& library, const EngineOptions& options);

}  // namespace trunnion::bundle
