// The cache groups of one executor, and of its draft, seen together: what a request holds in each, and which prefixes can be reused.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "serving/block_pool.h"
#include "trunnion/contract.h"

namespace trunnion::serving {

struct CacheGroup {
  trn_cache_kind kind = TRN_CACHE_FULL;
  int32_t block_size = 0;  // 0 for recurrent groups
  int32_t max_blocks_per_seq = 0;  // of a recurrent group: states
  int32_t window = 0;  // 0 = all
  int64_t bytes_per_block = 0;
  // Of a draft, whose cache holds at a position the token after it: a block depends on one token more than it covers.
  bool draft = false;

  bool recurrent() const { return kind == TRN_CACHE_RECURRENT; }
};

// What one request holds in one group. Column j of its block table is `blocks[j]` and covers the tokens from
// `(num_dropped + j) * block_size` on. A recurrent group has its states instead.
struct GroupBlocks {
  int32_t num_dropped = 0;
  std::vector<int32_t> blocks;
};

struct RequestBlocks {
  std::vector<GroupBlocks> groups;
  int32_t num_published = 0;  // leading blocks whose fate in the prefix cache is settled
};

class KvCache {
 public:
  // All attention groups have the same block size. num_blocks counts block 0.
  KvCache(std::vector<CacheGroup> groups, std::span<const int32_t> num_blocks, bool prefix_caching);

  bool prefix_caching() const { return prefix_caching_; }
  int32_t block_size() const { return block_size_; }
  std::span<const CacheGroup> groups() const { return groups_; }
  const BlockPool& pool(size_t group) const { return pools_[group]; }

  // Why a request that caches `num_tokens` tokens could not run even alone, or nothing.
  std::optional<std::string> refuse(int32_t num_tokens) const;
  // The most tokens that one request can cache.
  int32_t max_cached_tokens() const;
  // Tokens of a chunk from `num_computed` on, at most `wanted`, that the block tables have columns for.
  int32_t widest_chunk(int32_t num_computed, int32_t wanted) const;

  // Leading full blocks that need not be computed again: the longest prefix that every group still has. At least one of
  // `tokens`, whose keys these are, is left to compute.
  int32_t match(std::span<const BlockKey> keys, std::span<const int32_t> tokens) const;
  // Hold what match() found; `blocks` must be empty.
  void adopt(RequestBlocks& blocks, std::span<const BlockKey> keys, std::span<const int32_t> tokens,
             int32_t num_blocks);

  // Drop what lies before the windows, then hold blocks for tokens [num_computed, num_computed + num_tokens). False,
  // and nothing more held, when a group has too few free blocks.
  bool reserve(RequestBlocks& blocks, int32_t num_computed, int32_t num_tokens);
  // Tokens, from the first on, that the held blocks have room for.
  int32_t capacity(const RequestBlocks& blocks) const;
  // Forget which blocks were published so far: retract() goes back to here.
  void mark() { fresh_.clear(); }
  // What was published since mark() was never computed: make it findable no more.
  void retract();
  // Make the full blocks among the first `num_computed` of `tokens` findable.
  void publish(RequestBlocks& blocks, std::span<const BlockKey> keys, std::span<const int32_t> tokens,
               int32_t num_computed);
  // Make none of the held blocks findable.
  void unpublish(const RequestBlocks& blocks);
  void release(RequestBlocks& blocks);
  void reset_prefix_cache();

 private:
  int32_t first_visible_block(const CacheGroup& group, int32_t position) const;
  int32_t blocks_for(const CacheGroup& group, int32_t num_tokens) const;
  // The name of a block in one group. A draft's cache holds at a position the token after it, so that a draft's block
  // is named by the first token of the next one, too: what match() finds was made for these tokens, last position
  // included, and no block of a hit has to be given up.
  BlockKey name(size_t group, std::span<const BlockKey> keys, std::span<const int32_t> tokens, int32_t block) const;

  std::vector<CacheGroup> groups_;
  std::vector<BlockPool> pools_;
  std::vector<std::pair<size_t, int32_t>> fresh_;  // (group, block) published since mark()
  bool prefix_caching_;
  bool has_draft_ = false;
  int32_t block_size_ = 0;
};

}  // namespace trunnion::serving
