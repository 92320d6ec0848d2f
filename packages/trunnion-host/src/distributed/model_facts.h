// What all ranks must agree on before the first step: shapes of batches and caches.
#pragma once

#include <cstdint>
#include <vector>

#include "trunnion/executor.hpp"

namespace trunnion::distributed {

struct GroupFacts {
  bool recurrent = false;
  int32_t max_blocks_per_seq = 0;
};

struct ModelFacts {
  // Of a loaded executor.
  ModelFacts(Executor& executor, const trn_limits& limits);

  trn_limits limits;
  int32_t num_buffer_sets;
  bool has_csr, has_num_accepted;
  std::vector<GroupFacts> groups;
  // Equal on all ranks, or they have not loaded the same model with the same options.
  std::vector<int32_t> fingerprint;
};

}  // namespace trunnion::distributed
