// Computes batches of one signature: gathers rows, runs the steps and the engine, and scatters the results.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "batcher/batcher.h"
#include "bundle/contract.h"
#include "engine/engine.h"
#include "steps/program.h"

namespace trunnion::bundle {

class ModelExecutor final : public Executor {
 public:
  ModelExecutor(const ModuleSpec& module, const Program& program, std::unique_ptr<Engine> engine);

  Delivery execute(const Batch& batch, std::vector<BatchPart> parts) override;
  bool is_simulated() const { return engine_->is_simulated(); }

 private:
  using Sizes = std::map<std::string, int64_t>;

  void gather(const Batch& batch, const std::vector<BatchPart>& parts, Values& values) const;
  std::vector<Tensor*> pad_inputs(const Batch& batch, Values& values, std::deque<Tensor>& padded) const;
  // Refuses what does not fit the module; the sizes of its symbols.
  Sizes check_inputs(const Batch& batch, const std::vector<Tensor*>& given) const;
  void run_module(const Batch& batch, Values& values);
  void scatter(const std::vector<BatchPart>& parts, const Values& values) const;

  const ModuleSpec& module_;
  const Program& program_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace trunnion::bundle
