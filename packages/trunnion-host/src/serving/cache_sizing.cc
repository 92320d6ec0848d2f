#include "serving/cache_sizing.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

namespace trunnion::serving {
namespace {

std::string group_field(size_t group, const char* field) {
  return "groups[" + std::to_string(group) + "]." + field;
}

// Blocks of every attention group when they share `kv_bytes` after the recurrent groups have theirs.
int32_t blocks_within(std::span<const CacheGroup> groups, int64_t kv_bytes, int64_t num_seqs) {
  int64_t state_bytes = 0, bytes_per_block = 0;
  for (const CacheGroup& group : groups) {
    (group.recurrent() ? state_bytes : bytes_per_block) +=
        group.bytes_per_block * (group.recurrent() ? num_seqs * group.max_blocks_per_seq + 1 : 1);
  }
  const int64_t needed = state_bytes + 2 * bytes_per_block;
  if (kv_bytes < needed) {
    throw std::invalid_argument("kv_bytes is " + std::to_string(kv_bytes) + ", the smallest cache takes " +
                                std::to_string(needed));
  }
  if (bytes_per_block == 0) return 2;
  return static_cast<int32_t>(std::min<int64_t>((kv_bytes - state_bytes) / bytes_per_block,
                                                std::numeric_limits<int32_t>::max()));
}

}  // namespace

std::vector<CacheGroup> read_groups(std::span<const trn_cache_group_spec> specs, int32_t max_model_len) {
  std::vector<CacheGroup> groups;
  int32_t block_size = 0;
  for (size_t g = 0; g < specs.size(); ++g) {
    const trn_cache_group_spec& spec = specs[g];
    CacheGroup group{static_cast<trn_cache_kind>(spec.kind), spec.block_size, spec.max_blocks_per_seq, spec.window,
                     spec.bytes_per_block};
    if (!group.recurrent()) {
      if (block_size != 0 && spec.block_size != block_size) {
        throw std::invalid_argument(group_field(g, "block_size") + " is " + std::to_string(spec.block_size) +
                                    ", another group's is " + std::to_string(block_size) + ": expected one size");
      }
      block_size = spec.block_size;
      // A window starts anywhere in its first block.
      const int64_t needed = std::min<int64_t>(
          max_model_len, group.window > 0 ? int64_t{group.window} + block_size - 1 : max_model_len);
      if (int64_t{group.max_blocks_per_seq} * block_size < needed) {
        throw std::invalid_argument(group_field(g, "max_blocks_per_seq") + " is " +
                                    std::to_string(group.max_blocks_per_seq) + ", one request may need " +
                                    std::to_string((needed + block_size - 1) / block_size));
      }
    }
    groups.push_back(group);
  }
  return groups;
}

std::vector<int32_t> size_groups(std::span<const CacheGroup> groups, const HostOptions& options) {
  if (!options.num_blocks.empty()) {
    if (options.num_blocks.size() != groups.size()) {
      throw std::invalid_argument("num_blocks has " + std::to_string(options.num_blocks.size()) +
                                  " entries, the executor has " + std::to_string(groups.size()) + " cache groups");
    }
    return options.num_blocks;
  }
  const int64_t num_seqs = options.executor.limits.max_num_seqs;
  int32_t shared = options.kv_blocks;
  if (shared == 0 && options.kv_bytes > 0) shared = blocks_within(groups, options.kv_bytes, num_seqs);
  std::vector<int32_t> num_blocks;
  for (const CacheGroup& group : groups) {
    const int64_t enough = num_seqs * group.max_blocks_per_seq + 1;
    const int64_t count = group.recurrent() || shared == 0 ? enough : shared;
    num_blocks.push_back(static_cast<int32_t>(std::min<int64_t>(count, std::numeric_limits<int32_t>::max())));
  }
  return num_blocks;
}

}  // namespace trunnion::serving
