// Buffer sets in plain host memory.
#include "lent_buffers.h"

namespace trunnion::executor {

LentBuffers::LentBuffers(const Description& description, const trn_limits& limits) {
  for (int i = 0; i < kNumBufferSets; ++i) sets_.push_back(make_set(description, limits));
}

std::int32_t* LentBuffers::lend(std::size_t count) {
  memory_.push_back(std::make_unique<std::int32_t[]>(count));
  return memory_.back().get();
}

BufferSet LentBuffers::make_set(const Description& description, const trn_limits& limits) {
  const auto tokens = static_cast<std::size_t>(limits.max_num_tokens);
  const auto seqs = static_cast<std::size_t>(limits.max_num_seqs);
  const auto rows = static_cast<std::size_t>(limits.max_logits_rows);
  BufferSet set;
  for (const CacheGroup& group : description.groups) {
    trn_group_buffers lent{};
    if (group.recurrent()) {
      lent.state_indices = lend(seqs * static_cast<std::size_t>(group.max_blocks_per_seq));
      lent.has_initial_state = lend(seqs);
      if (description.has(TRN_FIELD_NUM_ACCEPTED)) lent.num_accepted = lend(seqs);
    } else {
      const auto width = static_cast<std::size_t>(group.max_blocks_per_seq);
      lent.slot_mapping = lend(tokens);
      lent.block_table = lend(seqs * width);
      lent.kv_start = lend(seqs);
      if (description.has(TRN_FIELD_KV_CSR)) {
        lent.kv_indptr = lend(seqs + 1);
        lent.kv_indices = lend(seqs * width);
        lent.kv_last_page_len = lend(seqs);
      }
    }
    set.groups.push_back(lent);
  }
  set.inputs.num_groups = static_cast<std::int32_t>(set.groups.size());
  set.inputs.input_ids = lend(tokens);
  set.inputs.positions = lend(tokens * static_cast<std::size_t>(description.num_position_axes));
  set.inputs.query_start_loc = lend(seqs + 1);
  set.inputs.seq_lens = lend(seqs);
  set.inputs.logits_indices = lend(rows);
  if (description.has(TRN_FIELD_HIDDEN_INDICES)) set.inputs.hidden_indices = lend(tokens);
  if (description.has(TRN_FIELD_ENCODER_INDICES)) set.inputs.encoder_indices = lend(tokens);
  if (description.accepts_prefix_levels) {
    set.inputs.prefix_indptr = lend(seqs + 1);
    set.inputs.prefix_lens = lend(seqs);
  }
  if (description.num_token_types > 0) set.inputs.token_type_ids = lend(tokens);
  output_rows_.push_back(std::make_unique<float[]>(rows * static_cast<std::size_t>(description.output_width)));
  float* output = output_rows_.back().get();
  (description.output_kind == TRN_OUTPUT_POOLED ? set.inputs.pooled : set.inputs.logits) = output;
  return set;
}

}  // namespace trunnion::executor
