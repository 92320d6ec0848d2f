// Counters of one signature, in the names of /metrics.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "policy/batch_policy.h"
#include "request/request.h"

namespace trunnion::bundle {

// A count of durations below each bound, as Prometheus has it.
class Histogram {
 public:
  static constexpr std::array<double, 12> kBounds = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005,
                                                     0.01,   0.025,   0.05,   0.1,   0.5,    2.5};
  void add(double seconds);
  std::string text(const std::string& name, const std::string& labels) const;

 private:
  std::array<uint64_t, kBounds.size()> counts_{};
  uint64_t count_ = 0;
  double sum_ = 0;
};

class Metrics {
 public:
  void add_answer(Code code, int64_t rows);
  void add_refusal(Refusal refusal);
  void add_batch(const Batch& batch, double seconds);
  void add_wait(double seconds);
  // Lines without HELP and TYPE; `labels` are the model, version and signature.
  std::string text(const std::string& labels) const;

 private:
  mutable std::mutex mutex_;
  std::map<Code, uint64_t> requests_;
  std::map<Refusal, uint64_t> refusals_;
  std::map<std::pair<int64_t, RunReason>, uint64_t> batches_;
  uint64_t rows_ = 0, padded_rows_ = 0;
  Histogram queue_, execute_;
};

}  // namespace trunnion::bundle
