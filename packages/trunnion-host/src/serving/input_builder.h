// Fills the executor's lent buffers for one step, exactly as contract.h says; allocates nothing.
#pragma once

#include <cstdint>
#include <span>

#include "serving/kv_cache.h"
#include "serving/scheduler.h"
#include "trunnion/contract.h"

namespace trunnion::serving {

// Which executor's inputs, beyond the groups and fields it has.
struct BuilderPlace {
  size_t first_group = 0;  // of a request's blocks
  int32_t shift = 0;       // 1 = a draft's, whose row at a position carries the token after it
};

class InputBuilder {
 public:
  InputBuilder(std::span<const CacheGroup> groups, const trn_model_info& model, BuilderPlace place = {})
      : groups_(groups),
        required_fields_(model.required_fields),
        num_position_axes_(model.num_position_axes),
        takes_token_types_(model.num_token_types > 0),
        place_(place) {}

  // Writes the token of a row that a plan made ahead left open.
  static void set_last_token(const trn_input_buffers& buffers, size_t request, int32_t token) {
    buffers.input_ids[buffers.query_start_loc[request + 1] - 1] = token;
  }

  // `buffers` are those of `buffer_set`; its fence has passed. The batch's decodes come first.
  trn_forward_batch build(const std::vector<BatchEntry>& entries, int32_t buffer_set,
                          const trn_input_buffers& buffers) const;

 private:
  void fill_rows(const BatchEntry& entry, const trn_input_buffers& buffers, trn_forward_batch& batch) const;
  void fill_attention(size_t group, const std::vector<BatchEntry>& entries, const trn_group_buffers& buffers) const;
  void fill_recurrent(size_t group, const std::vector<BatchEntry>& entries, const trn_group_buffers& buffers) const;

  const std::span<const CacheGroup> groups_;
  const uint32_t required_fields_;
  const int32_t num_position_axes_;
  const bool takes_token_types_;
  const BuilderPlace place_;
};

}  // namespace trunnion::serving
