// Options of hosts that were compiled with an older header: their structs end earlier, and what is missing is 0.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "trunnion/contract.h"

namespace trunnion {

/// Before it there were other fields, in other places.
inline constexpr std::uint32_t kOldestAbi = 5;
inline constexpr std::size_t kOldestOptions = offsetof(trn_create_options, num_threads);

/// Whether struct_size is one that the options' abi_version has.
inline bool is_whole(const trn_create_options& options) {
  return options.struct_size >= (options.abi_version <= kOldestAbi ? kOldestOptions : sizeof options);
}

/// `options`, of which struct_size bytes are there, in the layout of this header. A version that is not served stays.
inline trn_create_options whole_options(const trn_create_options& options) {
  trn_create_options whole{};
  std::memcpy(&whole, &options, std::min<std::size_t>(options.struct_size, sizeof whole));
  whole.struct_size = sizeof whole;
  if (options.abi_version == kOldestAbi) whole.abi_version = TRN_ABI_VERSION;
  return whole;
}

}  // namespace trunnion
