// Which requests of a step share leading blocks: read from the blocks that they hold, told to executors that accept it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "serving/kv_cache.h"
#include "serving/scheduler.h"
#include "trunnion/contract.h"

namespace trunnion::serving {

class PrefixLevels {
 public:
  // `groups` are the executor's own. A step is told of where reading each shared block once, instead of once a request,
  // saves at least `least_saved` tokens.
  PrefixLevels(std::span<const CacheGroup> groups, int32_t least_saved);

  // Put requests that share blocks side by side; decodes stay first.
  void gather(std::vector<BatchEntry>& entries) const;
  // Write the step's ranges to `buffers`; how many there are, 0 where they would save too little.
  int32_t fill(std::span<const BatchEntry> entries, const trn_input_buffers& buffers);

 private:
  struct Range {
    int32_t num_reqs, num_blocks;
    int64_t saved() const { return int64_t{num_reqs - 1} * num_blocks; }
  };

  // Whole blocks that the request had cached before the step, of the first group that sees everything.
  std::span<const int32_t> cached_blocks(const BatchEntry& entry) const;
  int32_t num_shared(const BatchEntry& one, const BatchEntry& other) const;
  void add(const BatchEntry& entry, int32_t num_shared);

  std::vector<size_t> groups_;  // those that see everything
  int32_t block_size_ = 1;
  int64_t least_saved_;
  std::vector<Range> ranges_;  // scratch
};

}  // namespace trunnion::serving
