// How many blocks each cache group gets.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "serving/host_options.h"
#include "serving/kv_cache.h"
#include "trunnion/contract.h"

namespace trunnion::serving {

// The contract's groups as the host keeps them. std::invalid_argument when this host cannot serve one.
std::vector<CacheGroup> read_groups(std::span<const trn_cache_group_spec> specs, int32_t max_model_len);

// Blocks per group, block 0 included: as given, or as the byte budget allows, or enough for the limits. Recurrent
// groups get a state per request. std::invalid_argument names the option that does not suffice.
std::vector<int32_t> size_groups(std::span<const CacheGroup> groups, const HostOptions& options);

}  // namespace trunnion::serving
