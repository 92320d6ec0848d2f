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
  Admission(const trn_limits& limits, const trn_model_info& model, const KvCache& cache)
      : limits_(limits), model_(model), cache_(cache) {}

  // `images` is what read_images() made of it. std::invalid_argument names the field at fault.
  std::unique_ptr<Request> admit(const trn_host_request& submitted, RequestImages images) const;

 private:
  void check_ids(const char* field, const int32_t* ids, int32_t count) const;
  // An executor has one kind of output rows, so it serves one kind of request.
  void check_kind(int32_t kind) const;
  int32_t max_total_tokens(const trn_host_request& submitted) const;
  int32_t embedded_tokens(const trn_host_request& submitted) const;
  void read_sampling(const trn_host_request& submitted, Request& request) const;

  const trn_limits limits_;
  const trn_model_info model_;
  const KvCache& cache_;
};

}  // namespace trunnion::serving
