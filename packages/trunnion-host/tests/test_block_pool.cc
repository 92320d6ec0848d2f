// Content hashes, reference counts, and which free block is reused first.
#include <set>

#include "check.h"
#include "serving/block_key.h"
#include "serving/block_pool.h"
#include "serving/images.h"

using namespace trunnion::serving;

TEST(block_keys_depend_on_every_token_before) {
  const std::vector<int32_t> tokens{1, 2, 3, 4, 5, 6, 7, 8, 9};
  std::vector<BlockKey> keys;
  extend_keys(keys, tokens, {}, 4);
  CHECK_EQ(keys.size(), 2u);
  CHECK(keys[0] != keys[1]);
  for (size_t changed = 0; changed < 8; ++changed) {
    std::vector<int32_t> others = tokens;
    others[changed] += 1;
    std::vector<BlockKey> other_keys;
    extend_keys(other_keys, others, {}, 4);
    CHECK(other_keys[1] != keys[1]);
    CHECK_EQ(other_keys[0] == keys[0], changed >= 4);
  }
}

TEST(block_keys_extend_as_tokens_come) {
  std::vector<int32_t> tokens;
  std::vector<BlockKey> grown, whole;
  for (int32_t token = 0; token < 30; ++token) {
    tokens.push_back(token * 7 % 11);
    extend_keys(grown, tokens, {}, 4);
  }
  extend_keys(whole, tokens, {}, 4);
  CHECK(grown == whole);
  CHECK_EQ(whole.size(), 7u);
}

TEST(block_keys_of_equal_blocks_differ_by_place) {
  std::vector<BlockKey> keys;
  extend_keys(keys, std::vector<int32_t>(64, 5), {}, 4);
  const std::set<uint64_t> low([&] {
    std::set<uint64_t> values;
    for (const BlockKey& key : keys) values.insert(key.low);
    return values;
  }());
  CHECK_EQ(low.size(), keys.size());
}

TEST(block_keys_swapped_tokens_differ) {
  const std::vector<int32_t> ab{1, 2}, ba{2, 1};
  CHECK(chain({}, ab) != chain({}, ba));
}

TEST(pool_never_hands_out_block_0) {
  BlockPool pool(5);
  std::set<int32_t> blocks;
  for (int i = 0; i < 4; ++i) blocks.insert(pool.allocate());
  CHECK(blocks == (std::set<int32_t>{1, 2, 3, 4}));
  CHECK_EQ(pool.num_free(), 0);
  CHECK_EQ(pool.peak_used(), 4);
}

TEST(pool_evicts_the_least_recently_released) {
  BlockPool pool(4);
  std::vector<BlockKey> keys;
  extend_keys(keys, std::vector<int32_t>{1, 2, 3}, {}, 1);
  for (int i = 0; i < 3; ++i) pool.publish(pool.allocate(), keys[i]);
  for (const int i : {1, 0, 2}) pool.release(pool.find(keys[i]));
  CHECK_EQ(pool.num_cached(), 3);
  const int32_t kept = pool.find(keys[1]);
  pool.acquire(kept);  // used again: now the youngest
  pool.release(kept);
  pool.allocate();
  CHECK_EQ(pool.find(keys[0]), 0);
  pool.allocate();
  CHECK_EQ(pool.find(keys[2]), 0);
  CHECK_EQ(pool.find(keys[1]), kept);
  CHECK_EQ(pool.num_cached(), 1);
}

TEST(pool_prefers_free_blocks_without_content) {
  BlockPool pool(4);
  const BlockKey key{1, 2};
  const int32_t cached = pool.allocate();
  const int32_t plain = pool.allocate();
  pool.publish(cached, key);
  pool.release(cached);
  pool.release(plain);
  pool.allocate();
  pool.allocate();
  CHECK_EQ(pool.find(key), cached);
  CHECK_EQ(pool.allocate(), cached);
  CHECK_EQ(pool.find(key), 0);
}

TEST(pool_counts_references) {
  BlockPool pool(3);
  const int32_t block = pool.allocate();
  pool.acquire(block);
  pool.release(block);
  CHECK_EQ(pool.num_used(), 1);
  pool.release(block);
  CHECK_EQ(pool.num_used(), 0);
}

TEST(pool_keeps_the_first_of_two_equal_blocks) {
  BlockPool pool(4);
  const BlockKey key{3, 4};
  const int32_t first = pool.allocate(), second = pool.allocate();
  pool.publish(first, key);
  pool.publish(second, key);
  CHECK_EQ(pool.find(key), first);
  pool.release(second);
  CHECK_EQ(pool.num_cached(), 0);
  pool.unpublish(first);
  CHECK_EQ(pool.find(key), 0);
  pool.release(first);
  CHECK_EQ(pool.num_free(), 3);
}

TEST(pool_unpublishes_free_and_held_blocks) {
  BlockPool pool(4);
  const int32_t held = pool.allocate(), free = pool.allocate();
  pool.publish(held, {1, 1});
  pool.publish(free, {2, 2});
  pool.release(free);
  pool.unpublish_all();
  CHECK_EQ(pool.num_cached(), 0);
  CHECK_EQ(pool.find({1, 1}), 0);
  CHECK_EQ(pool.find({2, 2}), 0);
  CHECK_EQ(pool.num_used(), 1);
  CHECK_EQ(pool.allocate(), free);
}
