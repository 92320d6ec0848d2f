// What a host's trace shows: each step with its parts, the requests' lives, and who holds what.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "serving/host_stats.h"
#include "serving/plan.h"
#include "serving/request.h"
#include "serving/trace_file.h"

namespace trunnion::serving {

// Nanoseconds of CLOCK_MONOTONIC.
inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// When a step and its parts on the loop thread began; each ends where the next begins.
struct StepTimes {
  int64_t begin = 0, execute = 0, sample = 0, draft = 0, publish = 0, end = 0;
};

// Every method does nothing when there is no file.
class StepTrace {
 public:
  StepTrace(const std::string& path, bool overlap);

  bool on() const { return file_.has_value(); }
  void arrived(const Request& request);
  // It is in a step; to be called for each step it is in, the first time counts.
  void scheduled(Request& request, int64_t at_ns);
  void sampled(const Request& request, int64_t at_ns);
  void finished(const Request& request, int32_t reason);
  // `stats` are those after the step, `executor` what it says of the last execute.
  void step(const StepTimes& times, const Plan& plan, const HostStats& stats, const trn_executor_stats& executor);
  // The draft's part of it; `executes` say when each of its executes began and ended.
  void drafts(const StepTimes& times, const std::vector<std::pair<int64_t, int64_t>>& executes);
  void flush();

 private:
  void execute_parts(const StepTimes& times, const trn_executor_stats& executor);

  std::optional<TraceFile> file_;
  uint64_t replays_ = 0, padded_tokens_ = 0, kv_event_steps_ = 0, prefix_level_steps_ = 0;
};

}  // namespace trunnion::serving
