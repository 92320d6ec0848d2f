#include "serving/prefix_levels.h"

#include <algorithm>

namespace trunnion::serving {

PrefixLevels::PrefixLevels(std::span<const CacheGroup> groups, int32_t least_saved) : least_saved_(least_saved) {
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].kind != TRN_CACHE_FULL && groups[g].kind != TRN_CACHE_MLA) continue;
    groups_.push_back(g);
    block_size_ = groups[g].block_size;
  }
}

std::span<const int32_t> PrefixLevels::cached_blocks(const BatchEntry& entry) const {
  const std::vector<int32_t>& blocks = entry.request->blocks.groups[groups_.front()].blocks;
  return std::span(blocks).first(static_cast<size_t>(entry.begin / block_size_));
}

void PrefixLevels::gather(std::vector<BatchEntry>& entries) const {
  if (groups_.empty()) return;
  // Neighbours in the order of their blocks share as many as any two do.
  const auto before = [&](const BatchEntry& one, const BatchEntry& other) {
    if (one.is_decode != other.is_decode) return one.is_decode;
    const auto left = cached_blocks(one), right = cached_blocks(other);
    const auto [l, r] = std::mismatch(left.begin(), left.end(), right.begin(), right.end());
    if (l != left.end() && r != right.end()) return *l < *r;
    if (left.size() != right.size()) return left.size() < right.size();
    return one.request->id < other.request->id;
  };
  std::sort(entries.begin(), entries.end(), before);
}

int32_t PrefixLevels::num_shared(const BatchEntry& one, const BatchEntry& other) const {
  if (groups_.empty()) return 0;
  auto count = static_cast<ptrdiff_t>(std::min(one.begin, other.begin) / block_size_);
  for (const size_t g : groups_) {
    const auto &ours = one.request->blocks.groups[g].blocks, &theirs = other.request->blocks.groups[g].blocks;
    count = std::mismatch(ours.begin(), ours.begin() + count, theirs.begin()).first - ours.begin();
  }
  return static_cast<int32_t>(count);
}

// `num_shared` with the entry before. A request joins a range where the range then saves no less than before.
void PrefixLevels::add(const BatchEntry& entry, int32_t num_shared) {
  const int32_t own = entry.begin / block_size_;
  if (ranges_.empty() || num_shared == 0) {
    ranges_.push_back({1, own});
    return;
  }
  Range& last = ranges_.back();
  const Range joined{last.num_reqs + 1, std::min(last.num_blocks, num_shared)};
  if (joined.saved() >= last.saved()) {
    last = joined;
  } else {
    ranges_.push_back({1, own});
  }
}

int32_t PrefixLevels::fill(std::span<const BatchEntry> entries, const trn_input_buffers& buffers) {
  ranges_.clear();
  for (size_t b = 0; b < entries.size(); ++b) add(entries[b], b == 0 ? 0 : num_shared(entries[b - 1], entries[b]));
  int64_t saved = 0;
  for (const Range& range : ranges_) saved += range.saved() * block_size_;
  if (saved < least_saved_) return 0;
  int32_t num_prefixes = 0;
  buffers.prefix_indptr[0] = 0;
  for (const Range& range : ranges_) {
    buffers.prefix_lens[num_prefixes] = range.num_reqs > 1 ? range.num_blocks * block_size_ : 0;
    buffers.prefix_indptr[num_prefixes + 1] = buffers.prefix_indptr[num_prefixes] + range.num_reqs;
    ++num_prefixes;
  }
  return num_prefixes;
}

}  // namespace trunnion::serving
