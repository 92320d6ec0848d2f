// One step before it runs: its entries, and its inputs in one of the lent buffer sets.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "serving/scheduler.h"
#include "trunnion/contract.h"

namespace trunnion::serving {

struct Plan {
  // A request that ended after the plan was made is null: its row runs, and what it returns is dropped.
  std::vector<BatchEntry> entries;
  trn_forward_batch batch{};
  // Made while the step before ran; rows that wait for a token of it still hold another.
  bool ahead = false;
  // When scheduling began, ended, and when the inputs were built; nanoseconds of CLOCK_MONOTONIC.
  int64_t schedule_ns = 0, build_ns = 0, ready_ns = 0;

  bool worth_running() const {
    return std::any_of(entries.begin(), entries.end(), [](const BatchEntry& entry) { return entry.request != nullptr; });
  }
  int64_t num_dropped_rows() const {
    return std::count_if(entries.begin(), entries.end(), [](const BatchEntry& entry) { return entry.request == nullptr; });
  }
  void forget(const Request& request) {
    for (BatchEntry& entry : entries) {
      if (entry.request == &request) entry.request = nullptr;
    }
  }
};

}  // namespace trunnion::serving
