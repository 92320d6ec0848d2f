// The blocks (or states) of one cache group: who holds them, which are free, which can be found by content.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "serving/block_key.h"

namespace trunnion::serving {

// Block 0 is reserved for padding and never handed out. A published block that nobody holds stays findable until it is
// needed: free blocks without content go first, then the least recently released.
class BlockPool {
 public:
  explicit BlockPool(int32_t num_blocks);

  int32_t num_total() const { return static_cast<int32_t>(blocks_.size()) - 1; }
  int32_t num_free() const { return num_free_; }
  int32_t num_used() const { return num_total() - num_free_; }
  int32_t num_cached() const { return num_cached_; }  // free, but findable
  int32_t peak_used() const { return peak_used_; }
  int32_t references(int32_t block) const { return blocks_[block].references; }

  // A block held once, its old content forgotten. num_free() must not be 0.
  int32_t allocate();
  // Hold a block once more, free or not.
  void acquire(int32_t block);
  void release(int32_t block);

  // Make a held block findable. When another block already carries the key, that one stays and this one has no name.
  void publish(int32_t block, const BlockKey& key);
  void unpublish(int32_t block);
  void unpublish_all();
  // The block with this key, or 0.
  int32_t find(const BlockKey& key) const;

 private:
  struct Block {
    int32_t references = 0;
    int32_t previous = 0, next = 0;  // in the free list, whose head and tail is block 0
    bool published = false;
    BlockKey key;
  };

  void link_before(int32_t block, int32_t successor);
  void unlink(int32_t block);

  std::vector<Block> blocks_;
  std::unordered_map<BlockKey, int32_t, BlockKeyHash> by_key_;
  int32_t num_free_ = 0, num_cached_ = 0, peak_used_ = 0;
};

}  // namespace trunnion::serving
