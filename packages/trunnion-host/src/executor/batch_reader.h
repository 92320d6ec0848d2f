// From a host's batch to plain pointers: counts within limits, and each tensor's type, place, shape and layout.
#pragma once

#include <vector>

#include "backend.h"

namespace trunnion::executor {

struct BatchField;

struct GroupView {
  const std::int32_t *slot_mapping, *block_table, *kv_start;
  const std::int32_t *kv_indptr, *kv_indices, *kv_last_page_len;
  const std::int32_t *state_indices, *has_initial_state, *num_accepted;
  /// Entries behind `kv_indices`; how many of them count stands in `kv_indptr`.
  std::int64_t kv_indices_size;
};

/// Where the step's values lie now: in the lent buffers, or in the host's own memory.
struct BatchView {
  Counts counts{};
  const std::int32_t *input_ids{}, *positions{}, *query_start_loc{}, *seq_lens{}, *logits_indices{};
  /// nullptr where the model has no use for them.
  const std::int32_t *hidden_indices{}, *encoder_indices{};
  /// Read only where `counts.num_prefixes` is not 0.
  const std::int32_t *prefix_indptr{}, *prefix_lens{};
  /// Read only where `counts.has_token_types` is 1.
  const std::int32_t* token_type_ids{};
  std::vector<GroupView> groups;
};

inline std::int32_t query_len(const BatchView& batch, std::int64_t request) {
  return batch.query_start_loc[request + 1] - batch.query_start_loc[request];
}

/// Tokens of the request in the cache before this step.
inline std::int32_t num_computed(const BatchView& batch, std::int64_t request) {
  return batch.seq_lens[request] - query_len(batch, request);
}

/// Where the request's first token of this step lies in the request. With lengths that are upper bounds only its position
/// knows; where images span several axes, positions do not say, and lengths are exact.
inline std::int32_t first_place(const BatchView& batch, std::int64_t request) {
  return batch.counts.lens_are_exact ? num_computed(batch, request) : batch.positions[batch.query_start_loc[request]];
}

/// "groups[1].block_table", built only when something is refused.
std::string group_field(std::size_t group, const char* name);

class BatchReader {
 public:
  BatchReader(const Description& description, const trn_limits& limits);

  /// REFUSED names the field. The view is valid until the next call.
  const BatchView& read(const trn_forward_batch& batch, const BufferSet& set);
  /// Copy what the last `read` found outside the lent buffers into them; returns the number of tensors copied.
  std::size_t adopt();

 private:
  struct Copy {
    std::int32_t* to;
    const std::int32_t* from;
    std::int64_t count;
    std::size_t csr_group;  // for kv_indices, whose count is known once the values are; else kNoGroup
  };

  void read_counts(const trn_forward_batch& batch);
  void read_field(const BatchField& field, const trn_forward_batch& batch, const BufferSet& set);
  void read_groups(const trn_forward_batch& batch, const BufferSet& set);

  const Description& description_;
  trn_limits limits_;
  BatchView view_;
  std::vector<Copy> copies_;
  std::vector<std::int32_t> scratch_;
};

}  // namespace trunnion::executor
