// The hash that the null model computes with.
#pragma once

#include <cstdint>

namespace trunnion::executor {

inline constexpr std::uint64_t kNullSeed = 0x243f6a8885a308d3u;

/// splitmix64's finaliser over both words.
inline std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  std::uint64_t z = (hash ^ (value + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2))) + 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace trunnion::executor
