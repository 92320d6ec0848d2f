// The name of a full block in the prefix cache: a 128-bit hash of its tokens, their images and types, and of all before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "serving/token_types.h"

namespace trunnion::serving {

struct RequestImages;

struct BlockKey {
  uint64_t low = 0, high = 0;
  bool operator==(const BlockKey&) const = default;
};

struct BlockKeyHash {
  size_t operator()(const BlockKey& key) const { return key.low; }
};

// Key of a block with these tokens whose predecessor has key `parent` (a default BlockKey for the first block).
BlockKey chain(const BlockKey& parent, std::span<const int32_t> tokens);

// What stands for an image in keys: a hash of its grid and pixels.
BlockKey content_key(std::span<const int32_t> grid, std::span<const std::byte> pixels);

// The block holds tokens of an image, from the image's `offset`-th on, at its own `place`. The tokens alone say neither.
void add_content(BlockKey& key, const BlockKey& content, int32_t offset, int32_t place);

// Append the keys of all full blocks of `tokens` that `keys` does not hold yet.
void extend_keys(std::vector<BlockKey>& keys, std::span<const int32_t> tokens, const RequestImages& images,
                 int32_t block_size, const TokenTypes& types = {});

}  // namespace trunnion::serving
