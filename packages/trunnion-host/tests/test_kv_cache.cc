// Prefix matches over groups, windows that drop blocks, and what a reservation holds.
#include <numeric>

#include "check.h"
#include "serving/images.h"
#include "serving/kv_cache.h"

using namespace trunnion::serving;

namespace {

constexpr int32_t kBlockSize = 4;

KvCache make_cache(std::vector<int32_t> windows, int32_t num_blocks, bool prefix_caching = true) {
  std::vector<CacheGroup> groups;
  for (const int32_t window : windows) {
    groups.push_back({window > 0 ? TRN_CACHE_WINDOW : TRN_CACHE_FULL, kBlockSize, 100, window, 1});
  }
  return KvCache(groups, std::vector<int32_t>(windows.size(), num_blocks), prefix_caching);
}

std::vector<int32_t> tokens_of(int32_t num_tokens) {
  std::vector<int32_t> tokens(static_cast<size_t>(num_tokens));
  std::iota(tokens.begin(), tokens.end(), 100);
  return tokens;
}

std::vector<BlockKey> keys_of(int32_t num_tokens) {
  std::vector<BlockKey> keys;
  extend_keys(keys, tokens_of(num_tokens), {}, kBlockSize);
  return keys;
}

void compute(KvCache& cache, RequestBlocks& blocks, std::span<const BlockKey> keys, int32_t from, int32_t to) {
  CHECK(cache.reserve(blocks, from, to - from));
  cache.publish(blocks, keys, tokens_of(to), to);
}

}  // namespace

TEST(kv_cache_matches_full_blocks_but_never_the_last_token) {
  KvCache cache = make_cache({0}, 20);
  const auto keys = keys_of(18);
  RequestBlocks blocks;
  compute(cache, blocks, keys, 0, 18);
  cache.release(blocks);
  CHECK_EQ(cache.match(keys, tokens_of(18)), 4);
  CHECK_EQ(cache.match(keys, tokens_of(17)), 4);
  // A full hit: at least one token stays to be computed.
  CHECK_EQ(cache.match(std::span(keys).first(4), tokens_of(16)), 3);
  CHECK_EQ(cache.match(std::span(keys).first(1), tokens_of(4)), 0);
  CHECK_EQ(cache.match(std::span(keys).first(1), tokens_of(5)), 1);
}

TEST(kv_cache_publishes_only_computed_blocks) {
  KvCache cache = make_cache({0}, 20);
  const auto keys = keys_of(16);
  RequestBlocks blocks;
  CHECK(cache.reserve(blocks, 0, 16));
  CHECK_EQ(cache.match(keys, tokens_of(17)), 0);
  cache.publish(blocks, keys, tokens_of(7), 7);
  CHECK_EQ(cache.match(keys, tokens_of(17)), 1);
  cache.publish(blocks, keys, tokens_of(16), 16);
  CHECK_EQ(cache.match(keys, tokens_of(17)), 4);
}

TEST(kv_cache_shares_adopted_blocks) {
  KvCache cache = make_cache({0}, 20);
  const auto keys = keys_of(12);
  RequestBlocks first, second;
  compute(cache, first, keys, 0, 12);
  cache.adopt(second, keys, tokens_of(41), 2);
  CHECK(cache.reserve(second, 8, 4));
  CHECK_EQ(cache.pool(0).num_used(), 4);
  CHECK_EQ(second.groups[0].blocks[1], first.groups[0].blocks[1]);
  CHECK(second.groups[0].blocks[2] != first.groups[0].blocks[2]);
  cache.release(first);
  CHECK_EQ(cache.pool(0).num_used(), 3);
  cache.release(second);
  CHECK_EQ(cache.pool(0).num_used(), 0);
}

TEST(kv_cache_drops_whole_blocks_before_a_window) {
  KvCache cache = make_cache({6}, 20, false);
  RequestBlocks blocks;
  for (int32_t position = 0; position < 40; ++position) {
    CHECK(cache.reserve(blocks, position, 1));
    const GroupBlocks& held = blocks.groups[0];
    const int32_t kv_start = held.num_dropped * kBlockSize;
    const int32_t first_visible = std::max(0, position - 5);
    CHECK(kv_start <= first_visible);
    CHECK(first_visible - kv_start < kBlockSize);
    CHECK_EQ(std::ssize(held.blocks), position / kBlockSize - held.num_dropped + 1);
    CHECK_EQ(cache.pool(0).num_used(), std::ssize(held.blocks));
  }
}

TEST(kv_cache_prefix_hit_needs_only_the_blocks_of_a_window) {
  KvCache cache = make_cache({0, 6}, 40);
  const auto keys = keys_of(40);
  RequestBlocks blocks;
  compute(cache, blocks, keys, 0, 20);
  compute(cache, blocks, keys, 20, 40);
  cache.release(blocks);
  RequestBlocks other;
  CHECK_EQ(cache.match(keys, tokens_of(41)), 10);
  cache.adopt(blocks, keys, tokens_of(41), 10);
  CHECK_EQ(blocks.groups[1].num_dropped, 8);
  CHECK_EQ(blocks.groups[1].blocks.size(), 2u);
  CHECK_EQ(blocks.groups[0].blocks.size(), 10u);
  CHECK_EQ(cache.pool(1).num_used(), 2);
}

TEST(kv_cache_prefix_hit_stops_where_a_window_is_not_covered) {
  KvCache cache = make_cache({0, 6}, 40);
  const auto keys = keys_of(40);
  RequestBlocks blocks;
  compute(cache, blocks, keys, 0, 40);
  // Block 8 of the window group loses its name: prefixes of 9 and 10 blocks see it, one of 8 does not.
  RequestBlocks hole;
  hole.groups.resize(2);
  hole.groups[1].blocks = {blocks.groups[1].blocks[8]};
  cache.unpublish(hole);
  CHECK_EQ(cache.match(keys, tokens_of(41)), 8);
  // The same hole in the full group ends every longer prefix.
  hole.groups[1].blocks.clear();
  hole.groups[0].blocks = {blocks.groups[0].blocks[3]};
  cache.unpublish(hole);
  CHECK_EQ(cache.match(keys, tokens_of(41)), 3);
}

TEST(kv_cache_reserves_in_all_groups_or_in_none) {
  std::vector<CacheGroup> groups{{TRN_CACHE_FULL, kBlockSize, 10, 0, 1}, {TRN_CACHE_FULL, kBlockSize, 10, 0, 1}};
  KvCache cache(groups, std::vector<int32_t>{9, 3}, true);
  RequestBlocks blocks;
  CHECK(!cache.reserve(blocks, 0, 12));
  CHECK_EQ(cache.pool(0).num_used(), 0);
  CHECK(cache.reserve(blocks, 0, 8));
  CHECK_EQ(cache.pool(0).num_used(), 2);
  CHECK(cache.refuse(9).has_value());
  CHECK(!cache.refuse(8).has_value());
  CHECK_EQ(cache.max_cached_tokens(), 8);
}

TEST(kv_cache_evicts_continuations_before_prefixes) {
  KvCache cache = make_cache({0}, 5);
  const auto keys = keys_of(16);
  RequestBlocks blocks, other;
  compute(cache, blocks, keys, 0, 16);
  cache.release(blocks);
  CHECK(cache.reserve(other, 0, 8));
  CHECK_EQ(cache.match(keys, tokens_of(17)), 2);
}

TEST(kv_cache_names_a_drafts_block_by_the_token_after_it) {
  // Two executors' groups: the draft's cache holds at a position the token after it.
  std::vector<CacheGroup> groups(2, {TRN_CACHE_FULL, kBlockSize, 100, 0, 1});
  groups[1].draft = true;
  KvCache cache(groups, std::vector<int32_t>{20, 20}, true);
  const auto tokens = tokens_of(13);
  const auto keys = keys_of(13);
  RequestBlocks blocks;
  CHECK(cache.reserve(blocks, 0, 12));
  // The token after the third block is not known yet.
  cache.publish(blocks, keys, std::span(tokens).first(12), 12);
  CHECK_EQ(cache.match(keys, tokens), 2);
  cache.publish(blocks, keys, tokens, 12);
  CHECK_EQ(cache.match(keys, tokens), 3);
  // Where another token follows, the last block of the hit is of no use to the draft.
  auto other = tokens;
  other[8] = 7;
  std::vector<BlockKey> other_keys;
  extend_keys(other_keys, other, {}, kBlockSize);
  CHECK_EQ(cache.match(other_keys, other), 1);
  groups[1].draft = false;
  KvCache plain(groups, std::vector<int32_t>{20, 20}, true);
  RequestBlocks held;
  CHECK(plain.reserve(held, 0, 12));
  plain.publish(held, keys, tokens, 12);
  CHECK_EQ(plain.match(other_keys, other), 2);
}

TEST(kv_cache_counts_the_tokens_there_is_room_for) {
  KvCache cache = make_cache({0, 6}, 20);
  RequestBlocks blocks;
  CHECK(cache.reserve(blocks, 0, 9));
  CHECK_EQ(cache.capacity(blocks), 12);
  CHECK(cache.reserve(blocks, 9, 5));
  CHECK_EQ(blocks.groups[1].num_dropped, 1);
  CHECK_EQ(cache.capacity(blocks), 16);
}
