// Cache tensors and block counts against the model's cache groups.
#pragma once

#include <vector>

#include "backend.h"

namespace trunnion::executor {

/// The counts as a vector; REFUSED unless there is one of at least 2 per group.
std::vector<std::int32_t> check_num_blocks(const Description& description, const std::int32_t* num_blocks,
                                           std::int32_t num_groups);

/// The blocks of each group; REFUSED unless every tensor of every layer is there once, as its spec says.
std::vector<std::int32_t> check_cache_tensors(const Description& description, const trn_cache_tensor* tensors,
                                              std::int32_t num_tensors);

}  // namespace trunnion::executor
