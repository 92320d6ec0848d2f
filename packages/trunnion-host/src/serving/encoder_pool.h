// The rows of the executor's encoder pool: which runs of them are free.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace trunnion::serving {

// An image takes one run of neighbouring rows, the first that is long enough.
class EncoderPool {
 public:
  explicit EncoderPool(int32_t num_rows) : num_rows_(num_rows) {}

  int32_t num_rows() const { return num_rows_; }
  int32_t num_used() const { return num_used_; }
  int32_t peak_used() const { return peak_used_; }

  bool can_allocate(int32_t num_rows) const { return find(num_rows).has_value(); }
  // The first of `num_rows` rows; can_allocate() must have said so.
  int32_t allocate(int32_t num_rows);
  // What allocate() returned.
  void release(int32_t first_row);

 private:
  std::optional<int32_t> find(int32_t num_rows) const;

  const int32_t num_rows_;
  std::map<int32_t, int32_t> runs_;  // first row -> rows, of those in use
  int32_t num_used_ = 0, peak_used_ = 0;
};

}  // namespace trunnion::serving
