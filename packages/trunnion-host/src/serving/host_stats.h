// What a host can say about itself: written by the loop thread after each step, read by anyone.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "serving/image_rows.h"
#include "serving/kv_cache.h"
#include "trunnion/executor.hpp"
#include "trunnion/serving.h"

namespace trunnion::serving {

struct GroupStats {
  trn_cache_kind kind = TRN_CACHE_FULL;
  int64_t blocks_total = 0, blocks_used = 0, blocks_cached = 0, blocks_peak = 0;
};

struct HostStats {
  trn_host_stats totals{};
  std::vector<GroupStats> groups;
  std::string prefix_caching_off_reason;  // "" when it is on
  std::string prefix_levels_off_reason;   // the same
  std::vector<std::pair<std::string, uint64_t>> eager;        // reason, steps
  std::vector<std::pair<std::string, uint64_t>> draft_eager;  // of the draft

  // Read the pools' figures.
  void read(const KvCache& cache);
  void read(const ImageRows& images);
  // Read what the executor counts, and return it; on its thread.
  trn_executor_stats read(Executor& executor);
  // The same of its draft.
  trn_executor_stats read_draft(Executor& executor);
  std::string to_json() const;
};

class StatsBoard {
 public:
  void publish(const HostStats& stats) {
    const std::lock_guard lock(mutex_);
    stats_ = stats;
  }
  HostStats read() const {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

 private:
  mutable std::mutex mutex_;
  HostStats stats_;
};

}  // namespace trunnion::serving
