#include "serving/kv_cache.h"

#include <algorithm>
#include <cassert>
#include <limits>

namespace trunnion::serving {

KvCache::KvCache(std::vector<CacheGroup> groups, std::span<const int32_t> num_blocks, bool prefix_caching)
    : groups_(std::move(groups)), prefix_caching_(prefix_caching) {
  assert(groups_.size() == num_blocks.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    pools_.emplace_back(num_blocks[g]);
    if (!groups_[g].recurrent()) block_size_ = groups_[g].block_size;
    has_draft_ = has_draft_ || groups_[g].draft;
  }
}

int32_t KvCache::first_visible_block(const CacheGroup& group, int32_t position) const {
  return group.window == 0 ? 0 : std::max(0, position - group.window + 1) / group.block_size;
}

// The most blocks held at once while `num_tokens` tokens are computed one by one.
int32_t KvCache::blocks_for(const CacheGroup& group, int32_t num_tokens) const {
  if (group.recurrent()) return group.max_blocks_per_seq;
  const int32_t all = (num_tokens + group.block_size - 1) / group.block_size;
  if (group.window == 0) return all;
  return std::min(all, (group.window + group.block_size - 2) / group.block_size + 1);
}

std::optional<std::string> KvCache::refuse(int32_t num_tokens) const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const int32_t needed = blocks_for(groups_[g], num_tokens);
    if (needed <= pools_[g].num_total()) continue;
    return std::to_string(num_tokens) + " tokens need " + std::to_string(needed) + " blocks of cache group " +
           std::to_string(g) + ", its pool has " + std::to_string(pools_[g].num_total());
  }
  return std::nullopt;
}

int32_t KvCache::max_cached_tokens() const {
  int64_t most = std::numeric_limits<int32_t>::max();
  for (size_t g = 0; g < groups_.size(); ++g) {
    const CacheGroup& group = groups_[g];
    if (group.recurrent()) continue;
    const int64_t tokens = int64_t{pools_[g].num_total()} * group.block_size;
    // A window that fits whole never needs more, however long the request grows.
    const bool endless = group.window > 0 && blocks_for(group, std::numeric_limits<int32_t>::max() / 2) <=
                                                 pools_[g].num_total();
    if (!endless) most = std::min(most, tokens);
  }
  return static_cast<int32_t>(most);
}

int32_t KvCache::widest_chunk(int32_t num_computed, int32_t wanted) const {
  int64_t chunk = wanted;
  for (const CacheGroup& group : groups_) {
    if (group.recurrent()) continue;
    const int64_t last_column = int64_t{first_visible_block(group, num_computed)} + group.max_blocks_per_seq;
    chunk = std::min(chunk, last_column * group.block_size - num_computed);
  }
  return static_cast<int32_t>(chunk);
}

BlockKey KvCache::name(size_t group, std::span<const BlockKey> keys, std::span<const int32_t> tokens,
                       int32_t block) const {
  const auto index = static_cast<size_t>(block);
  return groups_[group].draft ? chain(keys[index], tokens.subspan((index + 1) * static_cast<size_t>(block_size_), 1))
                              : keys[index];
}

int32_t KvCache::match(std::span<const BlockKey> keys, std::span<const int32_t> tokens) const {
  const auto num_tokens = static_cast<int32_t>(tokens.size());
  if (!prefix_caching_ || num_tokens <= 1) return 0;
  const int32_t most = std::min(static_cast<int32_t>(keys.size()), (num_tokens - 1) / block_size_);
  // First block of the unbroken run of cached blocks that ends at the current one, per group.
  std::vector<int32_t> run_begin(groups_.size(), 0);
  int32_t matched = 0;
  for (int32_t block = 0; block < most; ++block) {
    bool reusable = true;
    for (size_t g = 0; g < groups_.size(); ++g) {
      const bool cached = pools_[g].find(name(g, keys, tokens, block)) != 0;
      if (!cached && groups_[g].window == 0) return matched;
      if (!cached) run_begin[g] = block + 1;
      reusable = reusable && run_begin[g] <= first_visible_block(groups_[g], (block + 1) * block_size_) && cached;
    }
    if (reusable) matched = block + 1;
  }
  return matched;
}

void KvCache::adopt(RequestBlocks& blocks, std::span<const BlockKey> keys, std::span<const int32_t> tokens,
                    int32_t num_blocks) {
  assert(blocks.groups.empty() && "only a request that holds nothing adopts a prefix");
  blocks.groups.resize(groups_.size());
  blocks.num_published = num_blocks;
  for (size_t g = 0; g < groups_.size() && num_blocks > 0; ++g) {
    GroupBlocks& held = blocks.groups[g];
    held.num_dropped = first_visible_block(groups_[g], num_blocks * block_size_);
    for (int32_t j = held.num_dropped; j < num_blocks; ++j) {
      const int32_t block = pools_[g].find(name(g, keys, tokens, j));
      assert(block != 0 && "match() found it");
      pools_[g].acquire(block);
      held.blocks.push_back(block);
    }
  }
}

bool KvCache::reserve(RequestBlocks& blocks, int32_t num_computed, int32_t num_tokens) {
  if (blocks.groups.empty()) blocks.groups.resize(groups_.size());
  const auto missing = [&](size_t g) {
    const GroupBlocks& held = blocks.groups[g];
    const int32_t wanted = groups_[g].recurrent()
                               ? groups_[g].max_blocks_per_seq
                               : (num_computed + num_tokens + block_size_ - 1) / block_size_ - held.num_dropped;
    return std::max(0, wanted - static_cast<int32_t>(held.blocks.size()));
  };
  bool enough = true;
  for (size_t g = 0; g < groups_.size(); ++g) {
    GroupBlocks& held = blocks.groups[g];
    const int32_t first = groups_[g].recurrent() ? 0 : first_visible_block(groups_[g], num_computed);
    const auto num_dead = std::min<ptrdiff_t>(std::max(0, first - held.num_dropped), std::ssize(held.blocks));
    for (ptrdiff_t j = 0; j < num_dead; ++j) pools_[g].release(held.blocks[j]);
    held.blocks.erase(held.blocks.begin(), held.blocks.begin() + num_dead);
    held.num_dropped += static_cast<int32_t>(num_dead);
    enough = enough && missing(g) <= pools_[g].num_free();
  }
  if (!enough) return false;
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (int32_t n = missing(g); n > 0; --n) blocks.groups[g].blocks.push_back(pools_[g].allocate());
  }
  return true;
}

int32_t KvCache::capacity(const RequestBlocks& blocks) const {
  int64_t tokens = std::numeric_limits<int32_t>::max();
  for (size_t g = 0; g < blocks.groups.size(); ++g) {
    const GroupBlocks& held = blocks.groups[g];
    if (!groups_[g].recurrent()) tokens = std::min(tokens, (held.num_dropped + std::ssize(held.blocks)) * block_size_);
  }
  return static_cast<int32_t>(tokens);
}

void KvCache::publish(RequestBlocks& blocks, std::span<const BlockKey> keys, std::span<const int32_t> tokens,
                      int32_t num_computed) {
  if (!prefix_caching_) return;
  // A draft's block has no name before the token after it is known.
  const int32_t num_named = static_cast<int32_t>(tokens.size()) - (has_draft_ ? 1 : 0);
  const int32_t num_full =
      std::min(static_cast<int32_t>(keys.size()), std::min(num_computed, num_named) / block_size_);
  for (; blocks.num_published < num_full; ++blocks.num_published) {
    const int32_t index = blocks.num_published;
    for (size_t g = 0; g < groups_.size(); ++g) {
      const GroupBlocks& held = blocks.groups[g];
      if (index < held.num_dropped) continue;
      const int32_t block = held.blocks[index - held.num_dropped];
      pools_[g].publish(block, name(g, keys, tokens, index));
      fresh_.emplace_back(g, block);
    }
  }
}

void KvCache::retract() {
  for (const auto& [group, block] : fresh_) pools_[group].unpublish(block);
  fresh_.clear();
}

void KvCache::unpublish(const RequestBlocks& blocks) {
  for (size_t g = 0; g < blocks.groups.size(); ++g) {
    for (const int32_t block : blocks.groups[g].blocks) pools_[g].unpublish(block);
  }
}

void KvCache::release(RequestBlocks& blocks) {
  for (size_t g = 0; g < blocks.groups.size(); ++g) {
    // Last block first: a prefix is worth more than its continuations, so it is to be evicted after them.
    auto& held = blocks.groups[g].blocks;
    for (auto block = held.rbegin(); block != held.rend(); ++block) pools_[g].release(*block);
  }
  blocks.groups.clear();
  blocks.num_published = 0;
}

void KvCache::reset_prefix_cache() {
  for (BlockPool& pool : pools_) pool.unpublish_all();
}

}  // namespace trunnion::serving
