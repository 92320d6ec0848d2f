// The values of a batch against the contract and the bound caches, on host memory alone, before anything is enqueued.
#pragma once

#include <vector>

#include "batch_reader.h"

namespace trunnion::executor {

class Validator {
 public:
  /// With `samples` ids may stand for rows that are sampled on the device.
  Validator(const Description& description, const trn_limits& limits, bool samples);

  /// Blocks (states) of each cache group, block 0 included; from then on ids are checked against them.
  void set_num_blocks(const std::vector<std::int32_t>& num_blocks);
  /// REFUSED names the field, the value and the limit.
  void check(const BatchView& batch);

 private:
  /// Who used a block (or state) last: `step` tells an entry of this step from a stale one.
  struct Mark {
    std::uint64_t step = 0;
    std::int64_t request = 0;
  };
  struct GroupMarks {
    std::vector<Mark> in_row;   // the block stands in this request's row
    std::vector<Mark> written;  // this request writes to the block
    /// The leading `num_known[b]` entries of table row b, as they were when they last passed.
    std::vector<std::int32_t> known;
    std::vector<std::int64_t> num_known;
  };

  void check_requests(const BatchView& batch) const;
  void check_tokens(const BatchView& batch) const;
  void check_spans(const BatchView& batch) const;
  void check_encoder_indices(const BatchView& batch) const;
  void check_token_types(const BatchView& batch) const;
  void check_logits_indices(const BatchView& batch) const;
  void check_attention(const BatchView& batch, std::size_t group);
  std::int64_t check_row(const BatchView& batch, std::size_t group, std::int64_t request);
  void check_block(std::size_t group, std::int64_t request, std::int64_t column, std::int32_t block) const;
  void check_slots(const BatchView& batch, std::size_t group, std::int64_t request);
  void check_csr(const BatchView& batch, std::size_t group) const;
  void check_recurrent(const BatchView& batch, std::size_t group);
  void check_states(const GroupView& view, std::size_t group, std::int64_t request);

  const Description& description_;
  trn_limits limits_;
  std::int32_t least_id_;
  std::vector<std::int32_t> num_blocks_;
  std::vector<GroupMarks> marks_;
  std::uint64_t step_ = 0;
};

}  // namespace trunnion::executor
