#include "serving/block_pool.h"

#include <algorithm>
#include <cassert>

namespace trunnion::serving {

BlockPool::BlockPool(int32_t num_blocks) : blocks_(static_cast<size_t>(num_blocks)) {
  assert(num_blocks >= 2 && "a pool needs a block besides the reserved one");
  by_key_.reserve(blocks_.size());
  blocks_[0].references = 1;
  for (int32_t block = 1; block < num_blocks; ++block) link_before(block, 0);
}

int32_t BlockPool::allocate() {
  assert(num_free_ > 0 && "the caller checks num_free()");
  const int32_t block = blocks_[0].next;
  unpublish(block);
  acquire(block);
  return block;
}

void BlockPool::acquire(int32_t block) {
  assert(block > 0 && block <= num_total() && "block 0 is reserved");
  if (blocks_[block].references++ == 0) {
    unlink(block);
    peak_used_ = std::max(peak_used_, num_used());
  }
}

void BlockPool::release(int32_t block) {
  assert(block > 0 && block <= num_total() && blocks_[block].references > 0 && "released a block that nobody holds");
  if (--blocks_[block].references > 0) return;
  link_before(block, blocks_[block].published ? 0 : blocks_[0].next);
}

void BlockPool::publish(int32_t block, const BlockKey& key) {
  assert(blocks_[block].references > 0 && !blocks_[block].published && "only a held block without a name");
  if (!by_key_.emplace(key, block).second) return;
  blocks_[block].published = true;
  blocks_[block].key = key;
}

void BlockPool::unpublish(int32_t block) {
  Block &entry = blocks_[block];
  if (!entry.published) return;
  by_key_.erase(entry.key);
  entry.published = false;
  if (entry.references > 0) return;
  --num_cached_;
  // Without content it is to be reused before any block that has some.
  unlink(block);
  link_before(block, blocks_[0].next);
}

void BlockPool::unpublish_all() {
  for (int32_t block = 1; block <= num_total(); ++block) unpublish(block);
}

int32_t BlockPool::find(const BlockKey& key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? 0 : found->second;
}

void BlockPool::link_before(int32_t block, int32_t successor) {
  const int32_t predecessor = blocks_[successor].previous;
  blocks_[block].previous = predecessor;
  blocks_[block].next = successor;
  blocks_[predecessor].next = block;
  blocks_[successor].previous = block;
  ++num_free_;
  if (blocks_[block].published) ++num_cached_;
}

void BlockPool::unlink(int32_t block) {
  blocks_[blocks_[block].previous].next = blocks_[block].next;
  blocks_[blocks_[block].next].previous = blocks_[block].previous;
  --num_free_;
  if (blocks_[block].published) --num_cached_;
}

}  // namespace trunnion::serving
