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
  trn_limits limits{};
  int32_t num_buffer_sets = 0;
  size_t num_position_axes = 1;
  int32_t encoder_patch_dim = 0;
  bool has_csr = false, has_num_accepted = false, has_hidden_indices = false, has_encoder_indices = false;
  bool accepts_prefix_levels = false;
  int32_t num_token_types = 0;
  std::vector<GroupFacts> groups;
  // Equal on all ranks, or they have not loaded the same model with the same options.
  std::vector<int32_t> fingerprint;
};

ModelFacts read_facts(Executor& executor, const trn_limits& limits);

}  // namespace trunnion::distributed
