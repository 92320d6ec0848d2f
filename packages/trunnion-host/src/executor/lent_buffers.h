// Buffer sets in plain host memory, for an executor that has no tensors of its own to lend.
#pragma once

#include <vector>

#include "backend.h"

namespace trunnion::executor {

class LentBuffers {
 public:
  LentBuffers(const Description& description, const trn_limits& limits);
  LentBuffers(const LentBuffers&) = delete;
  LentBuffers& operator=(const LentBuffers&) = delete;

  const BufferSet& set(std::int32_t index) const { return sets_.at(static_cast<std::size_t>(index)); }

 private:
  std::int32_t* lend(std::size_t count);
  BufferSet make_set(const Description& description, const trn_limits& limits);

  std::vector<std::unique_ptr<std::int32_t[]>> memory_;
  std::vector<std::unique_ptr<float[]>> output_rows_;
  std::vector<BufferSet> sets_;
};

}  // namespace trunnion::executor
