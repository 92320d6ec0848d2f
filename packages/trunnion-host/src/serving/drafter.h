// The draft model of a host: its executor, and the steps that it takes after each step of the target.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "serving/host_options.h"
#include "serving/host_stats.h"
#include "serving/input_builder.h"
#include "serving/sampler.h"
#include "serving/scheduler.h"
#include "serving/watchdog.h"
#include "trunnion/executor.hpp"

namespace trunnion::serving {

// Row p of a draft carries token p + 1 and the hidden state that the target (or, guessing on, the draft itself) made of
// token p; it says what token p + 2 may be. Its caches are groups of the host's one KvCache, behind the target's.
class Drafter {
 public:
  // Loads the draft that is named, or that the target's model carries. std::invalid_argument when none fits.
  Drafter(const HostOptions& options, Executor& target, Watchdog& watchdog);

  std::vector<trn_cache_group_spec> kv_cache_spec() { return executor_.kv_cache_spec(); }
  // Allocate and warm up; the report of warm_up. The draft's groups are the last of `groups`, which must stay.
  std::string start(std::span<const CacheGroup> groups, std::span<const int32_t> num_blocks);

  // After a step of the target, whose entries these are: `num_real` rows of each are tokens now, `source_row` is its
  // first row there; requests that ended are left out. The draft's caches follow the target's, and requests that can
  // use drafts get some. When the first step goes wrong its requests are undrafted; a later one only ends the drafts.
  void propose(std::vector<BatchEntry>& entries, Scheduler& scheduler, HostStats& stats);

  trn_executor_stats read(HostStats& stats) { return stats.read_draft(executor_); }
  // When each execute of the last propose() began and ended; nanoseconds of CLOCK_MONOTONIC.
  const std::vector<std::pair<int64_t, int64_t>>& spans() const { return spans_; }

 private:
  // The rows of logits, or null when the step was refused or failed.
  const float* execute(const std::vector<BatchEntry>& entries, int32_t hidden_source, HostStats& stats);
  // A draft from each row; `guessing_` is then who goes on, one row each.
  void take(const std::vector<BatchEntry>& entries, const float* logits, const Scheduler& scheduler);

  Watchdog& watchdog_;
  Executor executor_;
  const trn_model_info model_info_;
  std::vector<trn_input_buffers> buffers_;
  std::optional<InputBuilder> builder_;
  Sampler sampler_;
  uint64_t num_executes_ = 0;
  std::vector<BatchEntry> guessing_, ran_;  // scratch
  std::vector<std::pair<int64_t, int64_t>> spans_;
};

}  // namespace trunnion::serving
