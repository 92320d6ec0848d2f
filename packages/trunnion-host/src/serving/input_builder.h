// Fills the executor's lent buffers for one step, exactly as contract.h says; allocates nothing.
#pragma once

#include <cstdint>
#include <span>

#include "serving/kv_cache.h"
#include "serving/scheduler.h"
#include "trunnion/contract.h"

namespace trunnion::serving {

class InputBuilder {
 public:
  InputBuilder(std::span<const CacheGroup> groups, const trn_model_info& model)
      : groups_(groups), required_fields_(model.required_fields), num_position_axes_(model.num_position_axes) {}

  // Writes the token of a row that a plan made ahead left open.
  static void set_last_token(const trn_input_buffers& buffers, size_t request, int32_t token) {
    buffers.input_ids[buffers.query_start_loc[request + 1] - 1] = token;
  }

  // `buffers` are those of `buffer_set`; its fence has passed. The batch's decodes come first.
  trn_forward_batch build(const std::vector<BatchEntry>& entries, int32_t buffer_set,
                          const trn_input_buffers& buffers) const;

 private:
  void fill_attention(size_t group, const std::vector<BatchEntry>& entries, const trn_group_buffers& buffers) const;
  void fill_recurrent(size_t group, const std::vector<BatchEntry>& entries, const trn_group_buffers& buffers) const;

  const std::span<const CacheGroup> groups_;
  const uint32_t required_fields_;
  const int32_t num_position_axes_;
};

}  // namespace trunnion::serving
