#include "serving/block_key.h"

#include <algorithm>
#include <cstring>

#include "serving/images.h"

namespace trunnion::serving {
namespace {

// The finaliser of splitmix64 (Steele, Lea, Flood, 2014): every input bit reaches every output bit.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// Two independently mixed lanes; neither reads the other, so a collision needs both.
void add_word(BlockKey& key, uint64_t word) {
  key.low = mix(key.low + 0x9E3779B97F4A7C15 + word);
  key.high = mix((key.high ^ word) * 0xD1342543DE82EF95 + 1);
}

}  // namespace

BlockKey chain(const BlockKey& parent, std::span<const int32_t> tokens) {
  BlockKey key{mix(parent.low + 0x9E3779B97F4A7C15), mix(parent.high + 0xD1B54A32D192ED03)};
  for (const int32_t token : tokens) add_word(key, static_cast<uint32_t>(token));
  return key;
}

BlockKey content_key(std::span<const int32_t> grid, std::span<const std::byte> pixels) {
  BlockKey key = chain({}, grid);
  add_word(key, pixels.size());
  for (size_t at = 0; at < pixels.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, pixels.data() + at, std::min(sizeof word, pixels.size() - at));
    add_word(key, word);
  }
  return key;
}

void add_content(BlockKey& key, const BlockKey& content, int32_t offset, int32_t place) {
  add_word(key, content.low);
  add_word(key, content.high);
  add_word(key, static_cast<uint64_t>(static_cast<uint32_t>(offset)) << 32 | static_cast<uint32_t>(place));
}

void extend_keys(std::vector<BlockKey>& keys, std::span<const int32_t> tokens, const RequestImages& images,
                 int32_t block_size, const TokenTypes& types) {
  const size_t full_blocks = tokens.size() / static_cast<size_t>(block_size);
  while (keys.size() < full_blocks) {
    const BlockKey parent = keys.empty() ? BlockKey{} : keys.back();
    const auto first = static_cast<int32_t>(keys.size()) * block_size;
    keys.push_back(chain(parent, tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(block_size))));
    images.add_to_key(keys.back(), first, block_size);
    types.add_to_key(keys.back(), first, block_size);
  }
}

}  // namespace trunnion::serving
