#include "serving/block_key.h"

namespace trunnion::serving {
namespace {

// The finaliser of splitmix64 (Steele, Lea, Flood, 2014): every input bit reaches every output bit.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

}  // namespace

BlockKey chain(const BlockKey& parent, std::span<const int32_t> tokens) {
  // Two independently mixed lanes; neither reads the other, so a collision needs both.
  uint64_t low = mix(parent.low + 0x9E3779B97F4A7C15);
  uint64_t high = mix(parent.high + 0xD1B54A32D192ED03);
  for (const int32_t token : tokens) {
    const auto word = static_cast<uint32_t>(token);
    low = mix(low + 0x9E3779B97F4A7C15 + word);
    high = mix((high ^ word) * 0xD1342543DE82EF95 + 1);
  }
  return {low, high};
}

void extend_keys(std::vector<BlockKey>& keys, std::span<const int32_t> tokens, int32_t block_size) {
  const size_t full_blocks = tokens.size() / static_cast<size_t>(block_size);
  while (keys.size() < full_blocks) {
    const BlockKey parent = keys.empty() ? BlockKey{} : keys.back();
    keys.push_back(chain(parent, tokens.subspan(keys.size() * block_size, block_size)));
  }
}

}  // namespace trunnion::serving
