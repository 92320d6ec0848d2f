#include "serving/encoder_pool.h"

#include <algorithm>
#include <cassert>

namespace trunnion::serving {

std::optional<int32_t> EncoderPool::find(int32_t num_rows) const {
  int32_t free_from = 0;
  for (const auto& [first, count] : runs_) {
    if (first - free_from >= num_rows) return free_from;
    free_from = first + count;
  }
  return num_rows_ - free_from >= num_rows ? std::optional(free_from) : std::nullopt;
}

int32_t EncoderPool::allocate(int32_t num_rows) {
  const std::optional<int32_t> first = find(num_rows);
  assert(first && num_rows > 0 && "can_allocate() comes first");
  runs_.emplace(*first, num_rows);
  num_used_ += num_rows;
  peak_used_ = std::max(peak_used_, num_used_);
  return *first;
}

void EncoderPool::release(int32_t first_row) {
  const auto found = runs_.find(first_row);
  assert(found != runs_.end() && "rows are released once");
  num_used_ -= found->second;
  runs_.erase(found);
}

}  // namespace trunnion::serving
