// The name of a full block in the prefix cache: a 128-bit hash of its tokens and of all tokens before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace trunnion::serving {

struct BlockKey {
  uint64_t low = 0, high = 0;
  bool operator==(const BlockKey&) const = default;
};

struct BlockKeyHash {
  size_t operator()(const BlockKey& key) const { return key.low; }
};

// Key of a block with these tokens whose predecessor has key `parent` (a default BlockKey for the first block).
BlockKey chain(const BlockKey& parent, std::span<const int32_t> tokens);

// Append the keys of all full blocks of `tokens` that `keys` does not hold yet.
void extend_keys(std::vector<BlockKey>& keys, std::span<const int32_t> tokens, int32_t block_size);

}  // namespace trunnion::serving
