// trn_host_options of a caller with an older header: what follows `executor` begins where the caller's executor options end.
#pragma once

#include <cstddef>
#include <cstring>
#include <optional>

#include "older_options.h"
#include "trunnion/serving.h"

namespace trunnion::serving {

/// In the layout of this header; nothing if the sizes are those of no header that is served.
inline std::optional<trn_host_options> whole_options(const trn_host_options& options) {
  constexpr std::size_t kBegin = offsetof(trn_host_options, executor);
  constexpr std::size_t kEnd = offsetof(trn_host_options, worker_sockets);
  static_assert(kEnd == kBegin + sizeof(trn_create_options));
  constexpr std::size_t kRest = sizeof(trn_host_options) - kEnd;
  if (options.struct_size < kBegin + kOldestOptions || !is_whole(options.executor)) return std::nullopt;
  const std::size_t end = kBegin + options.executor.struct_size;
  if (end % alignof(trn_host_options) != 0 || options.struct_size < end + kRest) return std::nullopt;
  trn_host_options whole{};
  const auto* from = reinterpret_cast<const char*>(&options);
  auto* to = reinterpret_cast<char*>(&whole);
  std::memcpy(to, from, kBegin);
  std::memcpy(to + kEnd, from + end, kRest);
  whole.struct_size = sizeof whole;
  whole.executor = trunnion::whole_options(options.executor);
  return whole;
}

}  // namespace trunnion::serving
