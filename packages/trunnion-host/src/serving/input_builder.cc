#include "serving/input_builder.h"

#include <algorithm>

namespace trunnion::serving {

trn_forward_batch InputBuilder::build(const std::vector<BatchEntry>& entries, int32_t buffer_set,
                                      const trn_input_buffers& buffers) const {
  trn_forward_batch batch{};
  batch.struct_size = sizeof batch;
  batch.buffer_set = buffer_set;
  batch.decode_query_len = 1;
  batch.lens_are_exact = 1;
  buffers.query_start_loc[0] = 0;
  const bool wants_encoder = (required_fields_ & TRN_FIELD_ENCODER_INDICES) != 0;
  for (const BatchEntry& entry : entries) {
    const Request& request = *entry.request;
    for (int32_t i = 0; i < entry.num_tokens; ++i) {
      const int32_t position = request.num_computed + i;
      buffers.input_ids[batch.num_tokens] = request.tokens[position];
      request.images.positions.write(position, buffers.positions + batch.num_tokens * num_position_axes_);
      if (wants_encoder) buffers.encoder_indices[batch.num_tokens] = request.images.encoder_row(position);
      ++batch.num_tokens;
    }
    const int32_t seq_len = request.num_computed + entry.num_tokens;
    buffers.seq_lens[batch.num_reqs++] = seq_len;
    buffers.query_start_loc[batch.num_reqs] = batch.num_tokens;
    if (entry.wants_logits) buffers.logits_indices[batch.num_logits++] = batch.num_tokens - 1;
    batch.num_decodes += entry.is_decode;
    batch.max_query_len = std::max(batch.max_query_len, entry.num_tokens);
    batch.max_seq_len = std::max(batch.max_seq_len, seq_len);
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    groups_[g].recurrent() ? fill_recurrent(g, entries, buffers.groups[g])
                           : fill_attention(g, entries, buffers.groups[g]);
  }
  return batch;
}

void InputBuilder::fill_attention(size_t group, const std::vector<BatchEntry>& entries,
                                  const trn_group_buffers& buffers) const {
  const int32_t block_size = groups_[group].block_size;
  const int32_t width = groups_[group].max_blocks_per_seq;
  const bool wants_csr = (required_fields_ & TRN_FIELD_KV_CSR) != 0;
  int32_t* slot = buffers.slot_mapping;
  int32_t* row = buffers.block_table;
  int32_t num_indices = 0;
  if (wants_csr) buffers.kv_indptr[0] = 0;
  for (size_t b = 0; b < entries.size(); ++b, row += width) {
    const Request& request = *entries[b].request;
    const GroupBlocks& held = request.blocks.groups[group];
    const int32_t kv_start = held.num_dropped * block_size;
    const int32_t seq_len = request.num_computed + entries[b].num_tokens;
    for (int32_t position = request.num_computed; position < seq_len; ++position) {
      const int32_t offset = position - kv_start;
      *slot++ = held.blocks[offset / block_size] * block_size + offset % block_size;
    }
    buffers.kv_start[b] = kv_start;
    std::fill(std::copy(held.blocks.begin(), held.blocks.end(), row), row + width, 0);
    if (!wants_csr) continue;
    std::copy(held.blocks.begin(), held.blocks.end(), buffers.kv_indices + num_indices);
    num_indices += static_cast<int32_t>(held.blocks.size());
    buffers.kv_indptr[b + 1] = num_indices;
    buffers.kv_last_page_len[b] = (seq_len - kv_start - 1) % block_size + 1;
  }
}

void InputBuilder::fill_recurrent(size_t group, const std::vector<BatchEntry>& entries,
                                  const trn_group_buffers& buffers) const {
  const bool wants_accepted = (required_fields_ & TRN_FIELD_NUM_ACCEPTED) != 0;
  for (size_t b = 0; b < entries.size(); ++b) {
    const Request& request = *entries[b].request;
    const std::vector<int32_t>& states = request.blocks.groups[group].blocks;
    std::copy(states.begin(), states.end(), buffers.state_indices + b * states.size());
    buffers.has_initial_state[b] = request.num_computed > 0;
    // Nothing was drafted, so that the only state is the one after the last token.
    if (wants_accepted) buffers.num_accepted[b] = 1;
  }
}

}  // namespace trunnion::serving
