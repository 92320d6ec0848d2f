// From what a caller submits to a request that can run, or a line that says why it cannot.
#pragma once

#include <cstdint>
#include <memory>

#include "serving/kv_cache.h"
#include "serving/request.h"
#include "trunnion/serving.h"

namespace trunnion::serving {

// Reads only what never changes after start, so any thread may ask.
class Admission {
 public:
  Admission(const trn_limits& limits, int32_t vocab_size, const KvCache& cache)
      : limits_(limits), vocab_size_(vocab_size), cache_(cache) {}

  // std::invalid_argument names the field at fault.
  std::unique_ptr<Request> admit(const trn_host_request& submitted) const;

 private:
  void check_ids(const char* field, const int32_t* ids, int32_t count) const;
  int32_t max_total_tokens(const trn_host_request& submitted) const;

  const trn_limits limits_;
  const int32_t vocab_size_;
  const KvCache& cache_;
};

}  // namespace trunnion::serving
